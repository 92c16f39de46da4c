"""Whether an all_reduce under torchrun takes as long as its bytes take on a wire of known speed.

sudo python benchmarks/torchrun_over_a_wire.py

Two network namespaces stand for two hosts, joined by a veth pair that tbf shapes in both
directions. Of two ranks each sends and receives the whole message once (2 (n - 1) / n times), so
the time is bytes x 8 / rate, and what headers add. Needs root. Exits with 1 unless every time lies
between that and 15 % more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from torchrun_launches import ROOT, torchrun_command

from perfsuite.records.cell import CellLine, decode_line
from perfsuite.units import format_bytes, format_seconds

_MIB = 2**20
# By rate in bits per second: messages that take between 0.1 and 1 s.
_MESSAGE_BYTES = {
    1_000_000_000: (16 * _MIB, 64 * _MIB),
    100_000_000: (2 * _MIB, 8 * _MIB),
    20_000_000: (_MIB // 2, 2 * _MIB),
}
# 66 of 1514 bytes of a frame are headers, 4.6 %; acknowledgements of the other direction, and the
# 0.3 ms until the ranks have said that they are ready, are the rest.
_MAX_EXCESS_RATIO = 0.15
# What tbf lets pass at once shortens a message by so much. Of less than two milliseconds' worth, or
# than one of the kernel's 64 KiB packets, it does not reach its rate.
_BURST_S = 0.002
_MIN_BURST_BYTES = 64 * 1024
_CELLS = """
import os
import pytest

@pytest.mark.parametrize("message_bytes", [int(one) for one in os.environ["BYTES"].split(",")])
def test_wire(all_reduce_benchmark, message_bytes):
    all_reduce_benchmark("ddp:2", message_bytes)
"""
_HOSTS = {"perfsuite-a": "10.199.0.1", "perfsuite-b": "10.199.0.2"}
_WIRE = "wire0"


def main() -> None:
    """Measure at each rate and print measured and expected times."""
    wrong = []
    with tempfile.TemporaryDirectory() as name, _two_hosts():
        folder = Path(name)
        (folder / "test_wire.py").write_text(_CELLS)
        (folder / "pytest.ini").write_text("[pytest]\n")
        for rate_bits_per_s, sizes in _MESSAGE_BYTES.items():
            _shape(rate_bits_per_s)
            lines = _measure(folder, sizes)
            for num_bytes in sizes:
                line = lines[f"test_wire.py::test_wire[{num_bytes}]"]
                measured_s = min(line.step_times_s)  # other load only ever adds time
                expected_s = num_bytes * 8 / rate_bits_per_s
                excess = measured_s / expected_s - 1
                text = (
                    f"{rate_bits_per_s / 1e6:g} Mbit/s, {format_bytes(num_bytes)}: "
                    f"{format_seconds(measured_s)}, expected {format_seconds(expected_s)} "
                    f"({excess:+.1%})"
                )
                typer.echo(text)
                if not -_burst_bytes(rate_bits_per_s) / num_bytes <= excess <= _MAX_EXCESS_RATIO:
                    wrong.append(f"not as promised: {text}")
    typer.echo("\n".join(wrong) or "as promised")
    sys.exit(bool(wrong))


def _measure(folder: Path, sizes: Sequence[int]) -> dict[str, CellLine]:
    """Return what two ranks on two hosts measured of each size, by test."""
    commands = torchrun_command(
        [("ip", "netns", "exec", host) for host in _HOSTS], num_ranks=1, host=_HOSTS["perfsuite-a"]
    )
    agents = [
        subprocess.Popen(
            [*command, "-m", "pytest", "--quiet", "--perf-device=cpu", "--perf-rounds=5"],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "GLOO_SOCKET_IFNAME": _WIRE,
                "BYTES": ",".join(map(str, sizes)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    outputs = [agent.communicate()[0] for agent in agents]
    if any(agent.returncode for agent in agents):
        sys.exit("\n".join(outputs))
    data = (folder / "results" / "cells.jsonl").read_bytes()
    return {line.fullname: line for line in map(decode_line, data.splitlines())}


@contextmanager
def _two_hosts() -> Iterator[None]:
    """Two namespaces with one interface each, joined; gone afterwards."""
    first, second = _HOSTS
    try:
        for host in _HOSTS:
            _run("ip", "netns", "add", host)
        ends = ("type", "veth", "peer", "name", _WIRE, "netns", second)
        _run("ip", "-n", first, "link", "add", _WIRE, *ends)
        for host, address in _HOSTS.items():
            _run("ip", "-n", host, "address", "add", f"{address}/24", "dev", _WIRE)
            for device in ("lo", _WIRE):
                _run("ip", "-n", host, "link", "set", device, "up")
        yield
    finally:
        for host in _HOSTS:
            subprocess.run(["ip", "netns", "delete", host], check=False)


def _shape(rate_bits_per_s: int) -> None:
    """Let each end send at most so fast; the queue is long enough for nothing to be dropped."""
    for host in _HOSTS:
        _run(
            *("tc", "-n", host, "qdisc", "replace", "dev", _WIRE, "root", "tbf"),
            *("rate", f"{rate_bits_per_s}bit"),
            *("burst", str(_burst_bytes(rate_bits_per_s)), "limit", str(64 * _MIB)),
        )


def _burst_bytes(rate_bits_per_s: int) -> int:
    return max(_MIN_BURST_BYTES, int(_BURST_S * rate_bits_per_s / 8))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    typer.run(main)
