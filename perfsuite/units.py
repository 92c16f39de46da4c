"""Seconds, bytes and ratios as people write and read them; only reports show "ms" or "%"."""

import itertools
import math
import re
from collections.abc import Collection, Sequence
from decimal import Decimal

from perfsuite.errors import SettingError

# Decimal, so that "50us" is the very number that 5e-05 is.
_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
}
# Python waits in nanoseconds of 64 bits, which are 292 years.
_MOST_S = 9e9
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")
# From this part of a unit on, three digits read as the whole unit: 999.5 ms is 1.00 s.
_ROUNDS_UP = 0.9995
# From here on a change is said as a factor.
_FACTOR = 1000


def parse_ratio(text: str) -> float:
    """Return "2%" or "0.02" as the ratio 0.02; raises ValueError for other texts, as for "2"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if match is None or (not match[2] and float(match[1]) >= 1):
        raise ValueError(f"{text!r} is not a ratio; write '2%' or '0.02'")
    number = float(match[1])
    if math.isinf(number):
        raise ValueError(f"{text!r} is more than a float can hold; write '2%' or '0.02'")
    return number / 100 if match[2] else number


def option_ratio(option: str, text: str) -> float:
    """Return `parse_ratio` of an option's value; raises a SettingError that names the option."""
    try:
        return parse_ratio(text)
    except ValueError as error:
        raise SettingError(f"{option} is {text!r}; use a ratio such as 2%") from error


def option_bounds(tolerance: str | None, limit: str, *, prefix: str = "--") -> tuple[float, float]:
    """Return the values of --tolerance and --limit, or of options with another prefix."""
    most = option_ratio(f"{prefix}limit", limit)
    if tolerance is None:
        return default_tolerance(most), most
    bounds = option_ratio(f"{prefix}tolerance", tolerance), most
    if bounds[0] >= 1:
        raise SettingError(f"{prefix}tolerance is {tolerance}; use less than 100%")
    if bounds[1] < bounds[0]:
        wrong = f"{prefix}tolerance is {tolerance}, above the limit of {limit}"
        raise SettingError(f"{wrong}; use a smaller one, or a larger {prefix}limit")
    return bounds


def default_tolerance(limit: float) -> float:
    """Return the slowdown that is accepted where a limit alone is given: 0.4 of it, at most 0.9."""
    return min(limit / 2.5, 0.9)


def parse_seconds(text: str, unit: str = "s") -> float:
    """Return "50us" or "3", of that unit, as seconds; a ValueError for other and too long ones."""
    if (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)?\s*", text)) is None:
        allowed = ", ".join(name for name in _SECONDS if name != "µs")
        raise ValueError(f"{text!r} is not a duration; write a number and one of {allowed}")
    if (seconds := float(Decimal(match[1]) * _SECONDS[match[2] or unit])) > _MOST_S:
        raise ValueError(f"{text!r} is more than any clock waits for; write at most {_MOST_S:.0f}")
    return seconds


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits: "2.13 ms", "15.0 us", "0 s"."""
    if seconds == 0:
        return "0 s"
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, scale in units.items() if abs(seconds) >= _ROUNDS_UP * scale), "ns")
    return f"{_three_digits(seconds / units.get(unit, 1e-9))} {unit}"


def format_bytes(num_bytes: float) -> str:
    """Return a number of bytes in binary units: "0 B", "241 KiB", "3.00 GiB"."""
    size, unit = _scaled(num_bytes, _BINARY, 1024, 1023.5)
    return f"{size:.0f} B" if unit == "B" else f"{_three_digits(size)} {unit}"


def format_count(count: float) -> str:
    """Return a count with a decimal prefix: "177", "72.4 M", "15.8 k"."""
    size, prefix = _scaled(count, _DECIMAL, 1000, _ROUNDS_UP * 1000)
    return f"{_three_digits(size)} {prefix}" if prefix else f"{size:.0f}"


def _scaled(number: float, units: Sequence[str], base: int, whole: float) -> tuple[float, str]:
    """Return a number below `whole` with its unit, or with the last unit."""
    size = float(number)
    for unit in units[:-1]:
        if abs(size) < whole:
            return size, unit
        size /= base
    return size, units[-1]


def format_ratio(ratio: float) -> str:
    """Return a ratio as a percentage: 0.034 is "3.4 %"."""
    return f"{ratio * 100:.1f} %"


def format_change(ratio: float) -> str:
    """Return a ratio as a signed change, or as a factor where a percentage would be too long.

    >>> format_change(1.05), format_change(0.98), format_change(2e17), format_change(float("inf"))
    ('+5.0 %', '-2.0 %', '2e+17 times', 'any')
    """
    if math.isinf(ratio):
        return "any"
    if ratio >= _FACTOR:
        return f"{ratio:.3g} times"
    return f"{'+' if ratio >= 1 else '-'}{format_ratio(abs(ratio - 1))}"


def counted(number: int, noun: str) -> str:
    """Return how many of them there are: "1 cell", "0 cells", "2 processes"."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural * (number != 1)}"


def listed(names: Collection[object], most: int = 3) -> str:
    """Return the first few of them: "a, b, c and 2 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, itertools.islice(names, most))) + more


def short_commit(commit: str) -> str:
    """Return the seven digits of a commit's name that git shows; two may look alike."""
    return commit[:7]


def _three_digits(number: float) -> str:
    if abs(number) >= _ROUNDS_UP * 1000:
        return f"{number:.0f}"
    return f"{number:#.3g}".removesuffix(".")
