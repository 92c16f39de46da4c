"""Options of the verbs that compare launches. Must not know what is compared."""

from __future__ import annotations

from typing import Annotated

import typer

from perfsuite.gate.rule import FIRST_LOOK

Paths = Annotated[
    list[str] | None, typer.Argument(help="Benchmark files and folders, as pytest takes them.")
]
Selection = Annotated[
    str | None, typer.Option("-k", metavar="EXPR", help="Only cells that match, as in pytest.")
]
Tolerance = Annotated[str, typer.Option(help="Slowdown that is accepted.")]
Limit = Annotated[str, typer.Option(help="Slowdown that must not pass.")]
MaxPairs = Annotated[int, typer.Option(min=FIRST_LOOK, help="Launches of each side, at most.")]
MaxMinutes = Annotated[float, typer.Option(min=0, help="No pair begins that would end later.")]
DrawnSeed = Annotated[int | None, typer.Option(min=0, help="Drawn, and told, unless given.")]
