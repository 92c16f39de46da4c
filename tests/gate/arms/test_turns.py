"""Turns: their order, who waits for whom, and that no interleaving runs two arms or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.gate.arms.turns import Scheduler

A, B = "base", "head"


def scheduler(first: str = A) -> Scheduler:
    return Scheduler([A, B], first=first)


def order_of_turns(first: str, num_rounds: int) -> list[str]:
    """The arms in the order in which they run when both always request another turn."""
    turns = scheduler(first)
    running = [*turns.request(A), *turns.request(B)]
    order = []
    for _ in range(2 * num_rounds):
        (arm,) = running
        order.append(arm)
        running = [*turns.end(arm), *turns.request(arm)]
    return order


# --- order ---


def test_turns_go_a_b_b_a_and_so_on() -> None:
    assert order_of_turns(A, 4) == [A, B, B, A, A, B, B, A]


def test_the_first_arm_is_the_one_that_is_named() -> None:
    assert order_of_turns(B, 4) == [B, A, A, B, B, A, A, B]


def test_each_cell_begins_its_rounds_anew() -> None:
    turns = scheduler()
    turns.request(A)
    turns.request(B)
    turns.end(A)
    turns.leave(A)
    turns.end(B)
    turns.leave(B)
    turns.pass_barrier()

    assert [*turns.request(A), *turns.request(B)] == [
        B
    ]  # the round of the first cell was whole: B A
    assert [*turns.end(B), *turns.request(B)] == [A]


def test_what_is_left_of_a_round_does_not_reach_into_the_next_cell() -> None:
    turns = scheduler()
    turns.leave(A)
    turns.request(B)
    turns.end(B)  # A never had its turn of the round
    turns.leave(B)
    turns.pass_barrier()

    assert [*turns.request(B), *turns.request(A)] == [A]
    assert [*turns.end(A), *turns.request(A)] == [B]


# --- waiting ---


def test_an_arm_waits_until_the_other_requests_a_turn_too() -> None:
    turns = scheduler()

    assert turns.request(A) == []
    assert turns.request(B) == [A]


def test_what_an_arm_does_between_its_turns_is_waited_for() -> None:
    turns = scheduler()
    turns.request(A)
    turns.request(B)

    assert turns.end(A) == []  # A collects its garbage; B would be disturbed
    assert turns.request(A) == [B]


def test_an_arm_runs_alone_after_the_other_has_left_the_cell() -> None:
    turns = scheduler()

    assert turns.leave(B) == []
    assert turns.request(A) == [A]
    assert turns.end(A) == []
    assert turns.request(A) == [A]


def test_an_arm_that_waits_gets_its_turn_when_the_other_leaves() -> None:
    turns = scheduler()
    turns.request(B)

    assert turns.leave(A) == [B]


def test_an_arm_that_leaves_in_the_midst_of_its_turn_gives_it_back() -> None:
    turns = scheduler()
    turns.request(A)
    turns.request(B)

    assert turns.leave(A) == [B]


def test_the_end_of_a_turn_that_no_arm_has_changes_nothing() -> None:
    turns = scheduler()
    turns.request(A)
    turns.request(B)

    assert turns.end(B) == []
    assert turns.end(A) == []
    assert turns.request(A) == [B]


# --- agreeing ---


def test_no_arm_agrees_before_both_wait_to() -> None:
    turns = scheduler()

    assert turns.agree(A) == []
    assert turns.conclude() == []
    assert turns.agree(B) == []
    assert turns.conclude() == [A, B]
    assert turns.conclude() == []


def test_the_other_arm_runs_on_while_one_waits_to_agree() -> None:
    turns = scheduler()
    turns.agree(A)

    assert turns.request(B) == [B]
    assert turns.end(B) == []
    assert turns.request(B) == [B]


def test_an_arm_that_waits_gets_its_turn_when_the_other_waits_to_agree() -> None:
    turns = scheduler()
    turns.request(B)

    assert turns.agree(A) == [B]


def test_an_arm_agrees_with_itself_once_the_other_has_left_the_cell() -> None:
    turns = scheduler()
    turns.agree(A)
    turns.leave(B)

    assert turns.conclude() == [A]


def test_after_agreeing_both_arms_have_a_turn_in_each_round_again() -> None:
    turns = scheduler()
    turns.agree(A)
    turns.request(B)
    turns.end(B)
    turns.agree(B)
    turns.conclude()

    assert [*turns.request(B), *turns.request(A)] == [A]
    assert [*turns.end(A), *turns.request(A)] == [B]


def test_a_turn_before_agreeing_leaves_the_order_of_rounds_as_it_is() -> None:
    turns = scheduler()
    turns.request(B)
    assert turns.request(A) == [A]  # each prepares itself alone
    turns.end(A)
    assert turns.agree(A) == [B]
    turns.end(B)
    turns.agree(B)
    turns.conclude()

    assert [*turns.request(B), *turns.request(A)] == [A]
    assert [*turns.end(A), *turns.request(A)] == [B]


# --- the barrier ---


def test_no_arm_passes_the_barrier_before_both_have_left() -> None:
    turns = scheduler()

    assert turns.pass_barrier() == []
    turns.leave(B)
    assert turns.pass_barrier() == []
    turns.leave(A)
    assert turns.pass_barrier() == [A, B]
    assert turns.pass_barrier() == []


def test_after_the_barrier_an_arm_waits_for_the_other_again() -> None:
    turns = scheduler()
    for arm in (A, B):
        turns.leave(arm)
    turns.pass_barrier()

    assert turns.request(B) == []


# --- an arm that goes ---


def test_an_arm_goes_on_alone_when_the_other_has_finished() -> None:
    turns = scheduler()
    turns.request(A)

    assert turns.finish(B) == [A]
    assert turns.end(A) == []
    assert turns.request(A) == [A]


def test_an_arm_that_goes_in_the_midst_of_its_turn_gives_it_back() -> None:
    turns = scheduler()
    turns.request(A)
    turns.request(B)

    assert turns.finish(A) == [B]


def test_an_arm_at_the_barrier_passes_it_when_the_other_has_finished() -> None:
    turns = scheduler()
    turns.leave(A)

    assert turns.pass_barrier() == []
    turns.finish(B)
    assert turns.pass_barrier() == [A]


def test_a_single_arm_needs_nobody() -> None:
    turns = Scheduler([A], first=A)

    assert turns.request(A) == [A]
    assert turns.end(A) == []
    assert turns.leave(A) == []
    assert turns.pass_barrier() == [A]


# --- any interleaving ---


class Play:
    """Two arms that act when they can, and the scheduler between them.

    Each arm goes through its cells, some turns in each; it is free, waiting for its turn, running,
    waiting at the barrier, or finished.
    """

    def __init__(self, turns: dict[str, list[int]], first: str) -> None:
        self.turns = scheduler(first)
        self.left = {arm: [*numbers] for arm, numbers in turns.items()}
        self.state = dict.fromkeys(turns, "free")
        self.cells = dict.fromkeys(turns, 0)
        self.granted: list[str] = []

    def can_act(self) -> list[str]:
        return sorted(arm for arm, state in self.state.items() if state in ("free", "running"))

    def act(self, arm: str, *, breaks: bool = False) -> None:
        """Do what the arm does next: end its turn, request one, leave the cell, or finish.

        One that breaks leaves the cell without ending its turn.
        """
        if self.state[arm] == "running" and breaks:
            self.left[arm].pop(0)
            self.leave(arm)
        elif self.state[arm] == "running":
            self.state[arm] = "free"
            self.grant(self.turns.end(arm))
        elif not self.left[arm]:
            self.finish(arm)
        elif self.left[arm][0]:
            self.left[arm][0] -= 1
            self.state[arm] = "waiting"
            self.grant(self.turns.request(arm))
        else:
            self.left[arm].pop(0)
            self.leave(arm)

    def leave(self, arm: str) -> None:
        self.state[arm] = "at the barrier"
        self.grant(self.turns.leave(arm))
        self.cross()

    def finish(self, arm: str) -> None:
        self.state[arm] = "finished"
        self.grant(self.turns.finish(arm))
        self.cross()

    def grant(self, arms: list[str]) -> None:
        for arm in arms:
            assert self.state[arm] == "waiting"
            self.state[arm] = "running"
            self.granted.append(arm)
            for other in self.state.keys() - {arm}:
                assert self.state[other] in ("waiting", "at the barrier", "finished")
                assert self.state[other] != "waiting" or self.cells[arm] == self.cells[other]

    def cross(self) -> None:
        for arm in self.turns.pass_barrier():
            if self.state[arm] != "finished":
                assert self.state[arm] == "at the barrier"
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

    while set(play.state.values()) != {"finished"}:
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

    while set(play.state.values()) != {"finished"}:
        if num_steps == dies_after and play.state[victim] != "finished":
            play.finish(victim)
        able = play.can_act()
        assert able or set(play.state.values()) == {"finished"}, f"both wait: {play.state}"
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

    while set(play.state.values()) != {"finished"}:
        play.act(data.draw(st.sampled_from(play.can_act())))

    rounds = [play.granted[at : at + 2] for at in range(0, len(play.granted), 2)]
    assert rounds == [[A, B] if number % 2 == 0 else [B, A] for number in range(len(rounds))]


# --- cells that one arm enters at a time ---


def test_an_arm_enters_a_cell_of_two_at_once() -> None:
    turns = scheduler()

    assert turns.enter(B, alone=False) == [B]
    assert turns.enter(A, alone=False) == [A]


@pytest.mark.parametrize("first", [A, B])
def test_the_first_of_the_pair_enters_first_whoever_came_first(first: str) -> None:
    turns = scheduler(first)
    second = B if first == A else A

    assert turns.enter(second, alone=True) == []
    assert turns.enter(first, alone=True) == [first]


def test_an_arm_that_is_alone_in_a_cell_waits_for_nobody() -> None:
    turns = scheduler()
    turns.enter(A, alone=True)

    assert turns.agree(A) == []
    assert turns.conclude() == [A]
    assert turns.request(A) == [A]
    assert turns.end(A) == []
    assert turns.request(A) == [A]


def test_an_arm_is_admitted_when_the_other_has_left() -> None:
    turns = scheduler()
    turns.enter(A, alone=True)
    turns.enter(B, alone=True)
    assert turns.admit() == []

    turns.leave(A)

    assert turns.admit() == [B]
    assert turns.pass_barrier() == []
    assert turns.request(B) == [B]
    turns.leave(B)
    assert turns.pass_barrier() == [A, B]


def test_an_arm_is_admitted_when_the_other_has_finished() -> None:
    turns = scheduler()
    turns.enter(B, alone=True)

    turns.finish(A)

    assert turns.admit() == [B]


def test_the_next_cell_is_for_two_again() -> None:
    turns = scheduler()
    for arm in (A, B):
        turns.enter(arm, alone=True)
        turns.admit()
        turns.leave(arm)
    turns.pass_barrier()

    assert turns.enter(A, alone=False) == [A]
    assert turns.request(A) == []  # waits for B, as ever
