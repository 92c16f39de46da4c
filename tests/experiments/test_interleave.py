"""Cells measured in turn: every one in each repetition, in an order that is drawn."""

from __future__ import annotations

from made_up_cells import MadeUpSession, make_outcome

from perfsuite.experiments.interleave import Bench, Cell
from perfsuite.records.recipe import Recipe

CELLS = {
    count: Cell(workload="toy-mlp", recipe=Recipe(num_workers=count), activity="load")
    for count in range(5)
}


def measure(
    session: MadeUpSession, seed: int = 7
) -> tuple[dict[int, tuple[float, ...]], list[str]]:
    lines: list[str] = []
    bench = Bench(
        session=session,  # type: ignore[arg-type]
        seed=seed,
        say=lines.append,
        num_repetitions=3,
    )
    return bench.measure_times_s(CELLS), lines


def test_every_cell_is_measured_once_in_each_repetition() -> None:
    session = MadeUpSession(lambda workload, recipe, activity: make_outcome([0.001]))

    measure(session)

    workers = [recipe.num_workers for _, recipe, _ in session.measured]
    for start in (0, 5, 10):
        assert sorted(workers[start : start + 5]) == [0, 1, 2, 3, 4]
    assert {activity for _, _, activity in session.measured} == {"load"}
    assert set(session.rounds) == {1}


def test_the_order_differs_between_repetitions_and_repeats_with_its_seed() -> None:
    orders = []
    for seed in (7, 7, 8):
        session = MadeUpSession(lambda workload, recipe, activity: make_outcome([0.001]))
        measure(session, seed)
        orders.append([recipe.num_workers for _, recipe, _ in session.measured])

    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:5] != orders[0][5:10]


def test_times_are_in_the_order_of_repetitions() -> None:
    launches = iter([[0.002], [0.005], [0.004]])

    def answer(workload: str, recipe: Recipe, activity: str):  # type: ignore[no-untyped-def]
        return make_outcome(next(launches) if recipe.num_workers == 2 else [0.001])

    times, lines = measure(MadeUpSession(answer))

    assert times[2] == (0.002, 0.005, 0.004)
    assert list(times) == [0, 1, 2, 3, 4]
    assert len(lines) == 15
    assert "repetition 1 of 3, 2: 2.00 ms an iteration" in lines


def test_a_cell_of_several_names_is_shown_by_all_of_them() -> None:
    lines: list[str] = []
    session = MadeUpSession(lambda workload, recipe, activity: make_outcome([0.001]))
    bench = Bench(session=session, seed=7, say=lines.append, num_repetitions=1)  # type: ignore[arg-type]

    bench.measure({("single", 2): CELLS[2]})

    assert lines == ["repetition 1 of 1, single 2: 1.00 ms an iteration"]
