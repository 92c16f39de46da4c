"""The verb `calibrate`: the gate's error rates on this machine, and the noise behind them."""

import contextlib
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, say, write_json
from perfsuite.errors import SettingError
from perfsuite.gate.calibrate import CalibrationResult, Plant, PlantedResult, calibrate
from perfsuite.gate.judge.trial import Budget
from perfsuite.gate.noise import CALIBRATION_FILE, Calibration, CellNoise, median, write_calibration
from perfsuite.gate.request import GateRequest
from perfsuite.ranks.messages import INJECTABLE_FAULTS
from perfsuite.records.recipe import parse_recipe
from perfsuite.stats.sequential import DEFAULT_MAX_PAIRS, recommend
from perfsuite.system.files import check_writable
from perfsuite.units import counted, format_ratio, option_bounds, parse_ratio


@options.explained(
    num_sessions="Of each slowdown.",
    num_identical="Of identical code; as many unless given.",
    planted="Slowdown to plant, 5%, a field of every recipe to change, precision=fp32, a leak (of "
    "17 MiB) or a synchronization; may be given several times.",
)
def calibrate_machine(
    paths: options.Paths = None,
    num_sessions: Annotated[int, typer.Option("--sessions", min=0)] = 20,
    num_identical: Annotated[int | None, typer.Option("--identical", min=1)] = None,
    planted: list[str] | None = None,
    select: options.Selection = None,
    tolerance: options.Tolerance = None,
    limit: options.Limit = "5%",
    max_pairs: options.MaxPairs = DEFAULT_MAX_PAIRS,
    *,
    seed: options.DrawnSeed,
    json_file: JsonFile = None,
) -> None:
    """Measure the gate's error rates here: false alarms of identical code, power over slowdowns.

    Each session compares the working tree with a fresh checkout of HEAD. The verb writes
    baselines/calibration.json; once you commit it, later gates know the noise of each cell.
    """
    plants = [_plant(text) for text in (planted or ["5%"])]
    bounds = option_bounds(tolerance, limit)
    check_writable(CALIBRATION_FILE)
    command = options.pytest_command(paths, select)
    budget = Budget(max_pairs=max_pairs, max_s=float("inf"))
    request = GateRequest(
        command=command, tolerance=bounds[0], limit=bounds[1], floor_s=0.0, budget=budget, seed=seed
    )
    result = calibrate(
        request,
        num_identical=num_identical or max(1, num_sessions),
        num_sessions=num_sessions,
        plants=plants,
        say=say,
        machine=options.wait_for_machine(),
    )
    found = Calibration(fingerprint=options.environment_here().fingerprint, cells=result.noise)
    write_calibration(CALIBRATION_FILE, found)
    for line in describe(result):
        typer.echo(line)
    typer.echo(f"seed {request.seed}; written to {CALIBRATION_FILE}")
    write_json(json_file, **to_document(result))


def _plant(text: str) -> Plant:
    if "=" in text:
        parse_recipe("--planted", [text])
    elif text not in INJECTABLE_FAULTS:
        with contextlib.suppress(ValueError):
            if (ratio := parse_ratio(text)) > 0:
                return Plant(ratio=ratio)
        allowed = f"a slowdown such as 5%, FIELD=VALUE, {' or '.join(INJECTABLE_FAULTS)}"
        raise SettingError(f"--planted is {text!r}; use {allowed}")
    return Plant(in_recipe=text)


def describe(result: CalibrationResult) -> list[str]:
    """Return the result in lines; a session counts as red, as the gate's would, by any FAIL."""
    trials, alarms = result.identical.num_sessions, result.identical.num_red
    bound = f", below {format_ratio(1 - 0.05 ** (1 / trials))} at 95 % confidence" * (alarms == 0)
    lines = [f"false alarms: {alarms} of {trials}{bound} ({_cost(result.identical)})"]
    for one in result.planted:
        label = f"{one.plant} planted" if one.plant.in_recipe else f"power at {one.plant}"
        lines.append(f"{label}: {one.num_red} of {one.num_sessions} ({_cost(one)})")
    for name, noise in result.noise.items():
        lines += [f"pair sd of {name}: {_describe_noise(noise)}", f"  {_advise(noise, result)}"]
    return lines


def _describe_noise(noise: CellNoise) -> str:
    text = f"{format_ratio(noise.sd)} ({counted(noise.num_pairs, 'pair')}"
    if noise.round_sd is not None and noise.launch_sd is not None:
        text += f"; rounds explain {format_ratio(noise.round_sd)}"
        text += f", launches {format_ratio(noise.launch_sd)}"
    if noise.order_effect is not None and noise.order_error is not None:
        text += f"; running first changes {noise.order_effect * 100:+.2f} % "
        text += f"± {format_ratio(noise.order_error)}"
    text += ")"
    if noise.session_sd is not None and noise.bias is not None and noise.bias_error is not None:
        text += f"; sessions differ by {format_ratio(noise.session_sd)} more than their pairs "
        text += f"explain, and from a fresh checkout by {noise.bias * 100:+.2f} % "
        text += f"± {format_ratio(noise.bias_error)}"
    return text


def _advise(noise: CellNoise, result: CalibrationResult) -> str:
    if (found := recommend_for(noise, result)) is None:
        return "too noisy for any limit up to 50 %; its counts can still gate it"
    bounds = "tolerance {}, limit {}".format(*map(format_ratio, found))
    return f"the tightest that this machine supports: {bounds}"


def recommend_for(noise: CellNoise, result: CalibrationResult) -> tuple[float, float] | None:
    """Return tolerance and limit that suit a cell with this noise, None if none does."""
    return recommend(noise.as_prior(), num_cells=result.num_cells, max_pairs=result.max_pairs)


def to_document(result: CalibrationResult) -> dict[str, Any]:
    """Return the result as the verb's JSON has it."""
    results = (result.identical, *result.planted)
    slowed = [one for one in result.planted if not one.plant.in_recipe]
    return {
        "sessions": result.identical.num_sessions,
        "cells": result.num_cells,
        "false_alarms": [result.identical.num_red, result.identical.num_sessions],
        "power": {str(one.plant): [one.num_red, one.num_sessions] for one in slowed},
        "pair_sd": median(noise.sd for noise in result.noise.values()),
        "session_sd": median(noise.session_sd for noise in result.noise.values()),
        "pair_sd_by_cell": {name: noise.sd for name, noise in result.noise.items()},
        "noise": {
            name: msgspec.structs.asdict(noise)
            | {"launch_sd": noise.launch_sd, "recommended": recommend_for(noise, result)}
            for name, noise in result.noise.items()
        },
        "verdicts": {str(one.plant): one.verdicts for one in results},
        "mean_pairs": {str(one.plant): one.mean_pairs for one in results},
        "wall_s": {str(one.plant): one.wall_s for one in results},
    }


def _cost(planted: PlantedResult) -> str:
    words = ", ".join(f"{number} {word}" for word, number in sorted(planted.verdicts.items()))
    cost = f"{planted.mean_pairs:.1f} pairs a cell, {planted.wall_s:.0f} s a session"
    return f"cells: {words}; {cost}"
