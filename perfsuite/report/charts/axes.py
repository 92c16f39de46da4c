"""The axes of a chart: where a value lies between both ends, and which values are written there.

Must not know what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MOST_POWERS: Final = 6
# What is less is drawn as 0: a file may hold times whose quotients no float can.
_SMALLEST_SHOWN: Final = 1e-100


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis.

    Attributes:
        ticks: At least two values in order; the first and the last are the ends.
        is_logarithmic: Whether equal lengths are equal factors, and all values are above 0.
    """

    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """The part of the axis that lies below a value, 0 to 1.

        >>> Axis(ticks=(0.0, 2.0, 4.0)).place(1.0)
        0.25
        >>> Axis(ticks=(1.0, 10.0, 100.0), is_logarithmic=True).place(10.0)
        0.5
        """
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_logarithmic:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


def linear(largest: float, unit: float = 1.0, *, least_step: float = 0.0) -> Axis:
    """Return the axis from 0 to at least `largest`, its ticks round numbers of a unit.

    Args:
        largest: Value that it holds.
        unit: What ticks are written in.
        least_step: Between two ticks: 1 where what is counted has no halves.
    """
    return Axis(ticks=tuple(tick * unit for tick in ticks(largest / unit, least_step=least_step)))


def logarithmic(values: Sequence[float], base: int = 10) -> Axis:
    """Return the axis over positive values, its ticks powers of `base`, not more than seven.

    >>> logarithmic([3.0, 700.0]).ticks
    (1.0, 10.0, 100.0, 1000.0)
    """
    first = math.floor(math.log(min(values), base) + 1e-9)
    last = max(math.ceil(math.log(max(values), base) - 1e-9), first + 1)
    step = math.ceil((last - first) / _MOST_POWERS)
    powers = range(first, last + step, step)
    return Axis(ticks=tuple(float(base) ** power for power in powers), is_logarithmic=True)


def binary_unit(num_bytes: float) -> float:
    """Return the largest power of 1024 up to a number, so that ticks in it are round numbers."""
    return float(1024 ** int(math.log(num_bytes, 1024))) if num_bytes >= 1 else 1.0


def ticks(largest: float, *, least_step: float = 0.0) -> tuple[float, ...]:
    """Return about five round numbers from 0 to at least `largest`.

    Steps of 1, 2 or 5 times a power of ten (Heckbert 1990, "Nice Numbers for Graph Labels").

    >>> ticks(8.0), ticks(0.0), ticks(2.0, least_step=1.0)
    ((0.0, 2.0, 4.0, 6.0, 8.0), (0.0, 1.0), (0.0, 1.0, 2.0))
    """
    if largest < _SMALLEST_SHOWN:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(n * power for n in (1, 2, 5, 10) if n * power * 4 >= largest * (1 - 1e-9))
    step = max(step, least_step)
    count = math.ceil(largest / step - 1e-9)
    return tuple(float(f"{step * number:.12g}") for number in range(count + 1))
