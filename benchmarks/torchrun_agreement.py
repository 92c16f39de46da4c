"""Whether a cell is as fast under torchrun as under the one-machine launcher, with equal ranks.

python benchmarks/torchrun_agreement.py compare

Two ranks under torchrun and the launcher in this process, which knows nothing of torchrun's
variables, measure the same cells in turn; each measurement has fresh ranks, and every other pair
begins with the other side. Exits with 1 unless the times agree within 3 %, and all counts exactly.

Needs a machine without other load. torchrun starts every rank in a session of its own, and Linux
shares processors out by session (sched_autogroup_enabled): beside other programs that want them,
two ranks in two sessions wait for each other longer than two in one. At a load of 12 on 2 cores an
all_reduce of ranks started by hand took 2.8 ms in one session, and 11.5 ms in two.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Annotated

import typer
from torchrun_launches import ROOT, torchrun_command

from perfsuite import Recipe
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.ranks.torchrun.membership import read_membership
from perfsuite.ranks.torchrun.peers import Peers
from perfsuite.records.cell import Outcome
from perfsuite.stats.intervals import robust_sd
from perfsuite.units import format_seconds

_MAX_DIFFERENCE_RATIO = 0.03
# By name: the parallel mode of LeNet's training step; None is the sum of a MiB over two ranks.
_CELLS = {"lenet-digits ddp:2": "ddp:2", "lenet-digits single": "single", "all_reduce": None}

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    num_pairs: Annotated[int, typer.Option("--pairs", min=2, help="Measurements a side.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of a measurement.")] = 10,
    two_agents: Annotated[
        bool, typer.Option("--two-agents", help="One rank each, as on two hosts.")
    ] = False,
) -> None:
    """Alternate both sides, and print the ratio torchrun / one machine of each cell."""
    pairs: dict[str, list[tuple[Outcome, Outcome]]] = {cell: [] for cell in _CELLS}
    with _ranks_under_torchrun(num_agents=2 if two_agents else 1) as ranks:
        for number in range(num_pairs):
            for cell, measured in pairs.items():
                if number % 2 == 0:
                    alone = _measure(cell, rounds, None)
                    measured.append((alone, _ask(ranks, cell, rounds)))
                else:
                    together = _ask(ranks, cell, rounds)
                    measured.append((_measure(cell, rounds, None), together))
            typer.echo(f"pair {number + 1} of {num_pairs}", err=True)
    wrong = [text for cell, measured in pairs.items() for text in _show(cell, measured)]
    typer.echo("\n".join(wrong) or "as promised")
    sys.exit(bool(wrong))


@app.command(hidden=True)
def serve(address: str) -> None:
    """Be a rank: measure what the first one is asked for, until it is asked for nothing."""
    membership = read_membership(os.environ)
    assert membership is not None
    peers = Peers(membership)
    asker = Client(address) if membership.is_first else None
    while asked := peers.gather("asked", asker.recv() if asker else None)[0]:
        cell, rounds = asked
        outcome = _measure(cell, rounds, peers)
        if asker is not None:
            asker.send(outcome)
        peers.end_phase(None)
    peers.leave(0)
    peers.close()


@contextmanager
def _ranks_under_torchrun(num_agents: int) -> Iterator[Connection]:
    """Two ranks; what the first one is sent is what it measures."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "asker")
        with Listener(address) as listener:
            agents = [
                subprocess.Popen(
                    [*command, __file__, "serve", address],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
                for command in torchrun_command(
                    [()] * num_agents, num_ranks=2 // num_agents, host="127.0.0.1"
                )
            ]
            with listener.accept() as ranks:
                yield ranks
                ranks.send(None)
                for agent in agents:
                    agent.wait()


def _ask(ranks: Connection, cell: str, rounds: int) -> Outcome:
    ranks.send((cell, rounds))
    outcome: Outcome = ranks.recv()
    return outcome


def _measure(cell: str, rounds: int, peers: Peers | None) -> Outcome:
    """Measure in a session of its own, so that the other side can hold the machine next."""
    session = Session(GroupPolicy(), say=print, num_rounds=rounds)
    if peers is not None:
        session.join(peers)
    try:
        parallel = _CELLS[cell]
        if parallel is None:
            return session.measure_all_reduce("ddp:2", 2**20)
        return session.measure_cell("lenet-digits", Recipe(parallel=parallel))
    finally:
        session.close()


def _show(cell: str, pairs: list[tuple[Outcome, Outcome]]) -> list[str]:
    """Print a cell's figures, and return what is wrong with them."""
    # Other load only ever adds time: the fastest round of a measurement has the least of it.
    fastest = [tuple(min(one.step_times_s) for one in pair) for pair in pairs]
    ratios = [together / alone for alone, together in fastest]
    ratio = statistics.median(ratios)
    spread = robust_sd([math.log(one) for one in ratios])
    error = math.sqrt(math.pi / 2 / len(ratios)) * spread  # of a median of normal samples
    counts = {outcome.record.counts for pair in pairs for outcome in pair}
    typer.echo(
        f"{cell}: {format_seconds(statistics.median([alone for alone, _ in fastest]))} alone, "
        f"{format_seconds(statistics.median([both for _, both in fastest]))} under torchrun; "
        f"ratio {ratio:.4f} +- {error:.4f} of {len(pairs)} pairs, "
        f"{'equal counts' if len(counts) == 1 else 'counts differ'}"
    )
    wrong = []
    if abs(ratio - 1) > _MAX_DIFFERENCE_RATIO:
        wrong.append(f"{cell}: the times differ by {ratio - 1:+.2%}")
    if len(counts) != 1:
        wrong.append(f"{cell}: {len(counts)} different counts: {counts}")
    return wrong


if __name__ == "__main__":
    app()
