"""Where the rule looks, and which part of its error rates it spends there.

The looks at the first 20 pairs spend four fifths of alpha and beta. Later pairs form parts, and so
do those of a re-run of the same two trees; each part spends a fifth of what the one before spent.
So all spend no more than alpha and beta, and pairs of a noisy cell cost the others no power.
"""

import bisect
from dataclasses import dataclass

# In the first part, whose end is a look too. The first one can only end in PASS: where spikes hit
# head alone, two pairs would fail identical code.
_LOOKS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
FIRST_LOOK = _LOOKS[0]
FIRST_FULL_LOOK = _LOOKS[1]

# With 16 a slowdown of the limit at a pair sd of 2 % would be found in nine of ten sessions.
_FIRST_PART = 20
# Of what is left: the rest is for later parts, which at nine tenths could prove next to nothing.
_SPENT_BY_PART = 0.8
# The power of a look's number of pairs that its share of alpha is in proportion to: as the pairs'
# own spread alone proves a FAIL, few pairs prove little, and what they are given is lost.
_ALPHA_POWER = 2


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The looks of `num_sessions` of the same two trees, each up to `max_pairs` further pairs."""

    max_pairs: int
    num_sessions: int = 1
    first_look: int = FIRST_LOOK

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of pairs at which the rule looks."""
        return tuple(look for part in range(len(self._part_ends)) for look in self._looks_of(part))

    @property
    def _part_ends(self) -> list[int]:
        ends = sorted({min(_FIRST_PART, self.max_pairs), self.max_pairs})
        return [n * self.max_pairs + end for n in range(self.num_sessions) for end in ends]

    def _looks_of(self, part: int) -> tuple[int, ...]:
        end = self._part_ends[part]
        if part == 0:
            return (*(look for look in _LOOKS if self.first_look <= look < end), end)
        return tuple(sorted({(self._part_ends[part - 1] + end + 1) // 2, end}))

    def shares(self, num_pairs: int) -> tuple[float, float]:
        """Return which part of alpha and of beta is spent at the first look that is not earlier.

        Fixed beforehand: within a part alpha in proportion to the square of a look's number of
        pairs, and beta equally. A look at two pairs spends nothing of alpha.
        """
        part = bisect.bisect_left(self._part_ends, num_pairs)
        looks = self._looks_of(part)
        full = [look for look in looks if look >= FIRST_FULL_LOOK]
        next_full = next(look for look in full if look >= num_pairs)
        spent = _SPENT_BY_PART * (1 - _SPENT_BY_PART) ** part
        weights = {look: look**_ALPHA_POWER for look in full}
        return spent * weights[next_full] / sum(weights.values()), spent / len(looks)
