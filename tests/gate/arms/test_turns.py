"""Turns: their order, who waits for whom, and that no interleaving runs two arms or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.gate.arms.turns import Scheduler

A, B = "base", "head"


def referee(first: str = A) -> Scheduler:
    return Scheduler([A, B], first=first)


def order_of_turns(first: str, num_rounds: int) -> list[str]:
    """Who runs when both always want another turn."""
    court = referee(first)
    running = [*court.want(A), *court.want(B)]
    order = []
    for _ in range(2 * num_rounds):
        (arm,) = running
        order.append(arm)
        running = [*court.end(arm), *court.want(arm)]
    return order


# --- order ---


def test_turns_go_a_b_b_a_and_so_on() -> None:
    assert order_of_turns(A, 4) == [A, B, B, A, A, B, B, A]


def test_the_first_arm_is_the_one_that_is_named() -> None:
    assert order_of_turns(B, 4) == [B, A, A, B, B, A, A, B]


def test_each_cell_begins_its_rounds_anew() -> None:
    court = referee()
    court.want(A)
    court.want(B)
    court.end(A)
    court.leave(A)
    court.end(B)
    court.leave(B)
    court.cross_border()

    assert [*court.want(A), *court.want(B)] == [B]  # the round of the first cell was whole: B A
    assert [*court.end(B), *court.want(B)] == [A]


def test_what_is_left_of_a_round_does_not_reach_into_the_next_cell() -> None:
    court = referee()
    court.leave(A)
    court.want(B)
    court.end(B)  # A never had its turn of the round
    court.leave(B)
    court.cross_border()

    assert [*court.want(B), *court.want(A)] == [A]
    assert [*court.end(A), *court.want(A)] == [B]


# --- waiting ---


def test_an_arm_waits_until_the_other_wants_a_turn_too() -> None:
    court = referee()

    assert court.want(A) == []
    assert court.want(B) == [A]


def test_what_an_arm_does_between_its_turns_is_waited_for() -> None:
    court = referee()
    court.want(A)
    court.want(B)

    assert court.end(A) == []  # A collects its garbage; B would be disturbed
    assert court.want(A) == [B]


def test_an_arm_runs_alone_after_the_other_has_left_the_cell() -> None:
    court = referee()

    assert court.leave(B) == []
    assert court.want(A) == [A]
    assert court.end(A) == []
    assert court.want(A) == [A]


def test_an_arm_that_waits_gets_its_turn_when_the_other_leaves() -> None:
    court = referee()
    court.want(B)

    assert court.leave(A) == [B]


def test_an_arm_that_leaves_in_the_midst_of_its_turn_gives_it_back() -> None:
    court = referee()
    court.want(A)
    court.want(B)

    assert court.leave(A) == [B]


def test_the_end_of_a_turn_that_nobody_has_changes_nothing() -> None:
    court = referee()
    court.want(A)
    court.want(B)

    assert court.end(B) == []
    assert court.end(A) == []
    assert court.want(A) == [B]


# --- agreeing ---


def test_nobody_agrees_before_both_want_to() -> None:
    court = referee()

    assert court.agree(A) == []
    assert court.conclude() == []
    assert court.agree(B) == []
    assert court.conclude() == [A, B]
    assert court.conclude() == []


def test_the_other_arm_runs_on_while_one_waits_to_agree() -> None:
    court = referee()
    court.agree(A)

    assert court.want(B) == [B]
    assert court.end(B) == []
    assert court.want(B) == [B]


def test_an_arm_that_waits_gets_its_turn_when_the_other_wants_to_agree() -> None:
    court = referee()
    court.want(B)

    assert court.agree(A) == [B]


def test_an_arm_agrees_with_itself_once_the_other_has_left_the_cell() -> None:
    court = referee()
    court.agree(A)
    court.leave(B)

    assert court.conclude() == [A]


def test_after_agreeing_both_arms_have_a_turn_in_each_round_again() -> None:
    court = referee()
    court.agree(A)
    court.want(B)
    court.end(B)
    court.agree(B)
    court.conclude()

    assert [*court.want(B), *court.want(A)] == [A]
    assert [*court.end(A), *court.want(A)] == [B]


# --- the border ---


def test_nobody_crosses_the_border_before_both_have_left() -> None:
    court = referee()

    assert court.cross_border() == []
    court.leave(B)
    assert court.cross_border() == []
    court.leave(A)
    assert court.cross_border() == [A, B]
    assert court.cross_border() == []


def test_after_the_border_an_arm_waits_for_the_other_again() -> None:
    court = referee()
    for arm in (A, B):
        court.leave(arm)
    court.cross_border()

    assert court.want(B) == []


# --- an arm that goes ---


def test_an_arm_goes_on_alone_when_the_other_has_gone() -> None:
    court = referee()
    court.want(A)

    assert court.go(B) == [A]
    assert court.end(A) == []
    assert court.want(A) == [A]


def test_an_arm_that_goes_in_the_midst_of_its_turn_gives_it_back() -> None:
    court = referee()
    court.want(A)
    court.want(B)

    assert court.go(A) == [B]


def test_an_arm_at_the_border_crosses_it_when_the_other_has_gone() -> None:
    court = referee()
    court.leave(A)

    assert court.cross_border() == []
    court.go(B)
    assert court.cross_border() == [A]


def test_a_single_arm_needs_nobody() -> None:
    court = Scheduler([A], first=A)

    assert court.want(A) == [A]
    assert court.end(A) == []
    assert court.leave(A) == []
    assert court.cross_border() == [A]


# --- any interleaving ---


class Play:
    """Two arms that act when they can, and the referee between them.

    Each arm goes through its cells, some turns in each; it is free, waiting for its turn, running,
    waiting at a border, or gone.
    """

    def __init__(self, turns: dict[str, list[int]], first: str) -> None:
        self.court = referee(first)
        self.left = {arm: [*numbers] for arm, numbers in turns.items()}
        self.state = dict.fromkeys(turns, "free")
        self.cells = dict.fromkeys(turns, 0)
        self.granted: list[str] = []

    def can_act(self) -> list[str]:
        return sorted(arm for arm, state in self.state.items() if state in ("free", "running"))

    def act(self, arm: str, *, breaks: bool = False) -> None:
        """Do what the arm does next: end its turn, want one, leave the cell, or go.

        One that breaks leaves the cell without ending its turn.
        """
        if self.state[arm] == "running" and breaks:
            self.left[arm].pop(0)
            self.leave(arm)
        elif self.state[arm] == "running":
            self.state[arm] = "free"
            self.grant(self.court.end(arm))
        elif not self.left[arm]:
            self.go(arm)
        elif self.left[arm][0]:
            self.left[arm][0] -= 1
            self.state[arm] = "waiting"
            self.grant(self.court.want(arm))
        else:
            self.left[arm].pop(0)
            self.leave(arm)

    def leave(self, arm: str) -> None:
        self.state[arm] = "at the border"
        self.grant(self.court.leave(arm))
        self.cross()

    def go(self, arm: str) -> None:
        self.state[arm] = "gone"
        self.grant(self.court.go(arm))
        self.cross()

    def grant(self, arms: list[str]) -> None:
        for arm in arms:
            assert self.state[arm] == "waiting"
            self.state[arm] = "running"
            self.granted.append(arm)
            for other in self.state.keys() - {arm}:
                assert self.state[other] in ("waiting", "at the border", "gone")
                assert self.state[other] != "waiting" or self.cells[arm] == self.cells[other]

    def cross(self) -> None:
        for arm in self.court.cross_border():
            if self.state[arm] != "gone":
                assert self.state[arm] == "at the border"
                self.state[arm] = "free"
                self.cells[arm] += 1


turns_of_cells = st.lists(st.integers(min_value=0, max_value=4), max_size=4)


@given(
    turns=st.fixed_dictionaries({A: turns_of_cells, B: turns_of_cells}),
    first=st.sampled_from([A, B]),
    data=st.data(),
)
def test_never_do_two_arms_run_nor_do_all_wait(
    turns: dict[str, list[int]], first: str, data: st.DataObject
) -> None:
    play = Play(turns, first)

    while set(play.state.values()) != {"gone"}:
        able = play.can_act()
        assert able, f"both wait for ever: {play.state}"
        play.act(data.draw(st.sampled_from(able)))

    assert sorted(play.granted) == sorted([A] * sum(turns[A]) + [B] * sum(turns[B]))


@given(
    turns=st.fixed_dictionaries({A: turns_of_cells, B: turns_of_cells}),
    first=st.sampled_from([A, B]),
    victim=st.sampled_from([A, B]),
    dies_after=st.integers(min_value=0, max_value=20),
    data=st.data(),
)
def test_an_arm_that_breaks_off_or_is_killed_at_any_moment_never_stops_the_other(
    turns: dict[str, list[int]], first: str, victim: str, dies_after: int, data: st.DataObject
) -> None:
    play = Play(turns, first)
    num_steps = 0

    while set(play.state.values()) != {"gone"}:
        if num_steps == dies_after and play.state[victim] != "gone":
            play.go(victim)
        able = play.can_act()
        assert able or set(play.state.values()) == {"gone"}, f"both wait: {play.state}"
        if able:
            arm = data.draw(st.sampled_from(able))
            play.act(arm, breaks=arm == victim and data.draw(st.booleans()))
        num_steps += 1

    survivor = B if victim == A else A
    assert play.granted.count(survivor) == sum(turns[survivor])


@given(num_rounds=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
def test_equal_arms_take_turns_a_b_b_a_whoever_asks_first(
    num_rounds: list[int], data: st.DataObject
) -> None:
    play = Play({A: num_rounds, B: num_rounds}, A)

    while set(play.state.values()) != {"gone"}:
        play.act(data.draw(st.sampled_from(play.can_act())))

    rounds = [play.granted[at : at + 2] for at in range(0, len(play.granted), 2)]
    assert rounds == [[A, B] if number % 2 == 0 else [B, A] for number in range(len(rounds))]


# --- cells that one arm enters at a time ---


def test_an_arm_enters_a_cell_of_two_at_once() -> None:
    court = referee()

    assert court.enter(B, alone=False) == [B]
    assert court.enter(A, alone=False) == [A]


@pytest.mark.parametrize("first", [A, B])
def test_the_first_of_the_pair_enters_first_whoever_came_first(first: str) -> None:
    court = referee(first)
    second = B if first == A else A

    assert court.enter(second, alone=True) == []
    assert court.enter(first, alone=True) == [first]


def test_an_arm_that_is_alone_in_a_cell_waits_for_nobody() -> None:
    court = referee()
    court.enter(A, alone=True)

    assert court.agree(A) == []
    assert court.conclude() == [A]
    assert court.want(A) == [A]
    assert court.end(A) == []
    assert court.want(A) == [A]


def test_the_door_opens_when_the_other_has_left() -> None:
    court = referee()
    court.enter(A, alone=True)
    court.enter(B, alone=True)
    assert court.open_door() == []

    court.leave(A)

    assert court.open_door() == [B]
    assert court.cross_border() == []
    assert court.want(B) == [B]
    court.leave(B)
    assert court.cross_border() == [A, B]


def test_the_door_opens_when_the_other_is_gone() -> None:
    court = referee()
    court.enter(B, alone=True)

    court.go(A)

    assert court.open_door() == [B]


def test_the_next_cell_is_for_two_again() -> None:
    court = referee()
    for arm in (A, B):
        court.enter(arm, alone=True)
        court.open_door()
        court.leave(arm)
    court.cross_border()

    assert court.enter(A, alone=False) == [A]
    assert court.want(A) == []  # waits for B, as ever
