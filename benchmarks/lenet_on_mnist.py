"""LeNet on the real MNIST by number of loader workers, beside the table that it is quoted with.

python benchmarks/lenet_on_mnist.py

Ten epochs each; minutes. Exits with 1 where the table's shape is another than the quoted one's, and
with 2 where MNIST is not on disk: MNIST_ROOT names the folder that holds MNIST/raw.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.options import open_session
from perfsuite.errors import PerfsuiteError
from perfsuite.records.recipe import Recipe

# One idea of its shape for the tests and for this table.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from mnist_table import QUOTED, Line, differences, line_of

# The quoted runs augment their images.
WORKLOAD = "lenet-mnist-affine"
HEADER = """\
| workers | load / update | total | accuracy | quoted: load / update | total | accuracy |
|---|---|---|---|---|---|---|"""


def main(
    num_epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of each training.")] = 10,
) -> None:
    """Train with each number of workers that has a processor each, and print the table."""
    num_cores = len(os.sched_getaffinity(0))
    session = open_session("auto", 0)
    lines = []
    typer.echo(HEADER)
    try:
        for quoted in QUOTED:
            if quoted.num_workers > num_cores:
                continue
            recipe = Recipe(num_workers=quoted.num_workers)
            run = session.profile(WORKLOAD, recipe, num_epochs=num_epochs)
            lines.append(line_of(run.profile))
            typer.echo(f"| {quoted.num_workers} | {in_words(lines[-1])} | {in_words(quoted)} |")
    except PerfsuiteError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    finally:
        session.close()
    found = differences(lines)
    for text in found:
        typer.echo(text)
    raise typer.Exit(1 if found else 0)


def in_words(line: Line) -> str:
    """Return the figures of a line."""
    return (
        f"{line.load_s * 1e3:.2f} / {line.update_s * 1e3:.2f} ms | {line.total_s:.1f} s | "
        f"{line.accuracy:.2%}"
    )


if __name__ == "__main__":
    typer.run(main)
