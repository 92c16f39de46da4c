"""Where the rule looks, and which part of its error rates it spends there.

The looks of one session spend four fifths of alpha and beta. A re-run of the same two trees goes on
from the pairs of the session before, with looks of its own that spend a fifth of what that session
spent: however many re-runs there are, all looks together spend no more than alpha and beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# As far as `max_pairs` allows, which itself is the last look of a session. The first one can only
# end in PASS: where spikes hit head alone, two pairs would fail identical code.
_LOOKS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
FIRST_LOOK: Final = _LOOKS[0]
FIRST_FULL_LOOK: Final = _LOOKS[1]

# Of what is left: the rest is for re-runs. At nine tenths a re-run could prove next to nothing.
_SPENT_BY_SESSION: Final = 0.8
# The power of a look's number of pairs that its share of alpha is in proportion to: as the pairs'
# own spread alone proves a FAIL, few pairs prove little, and what they are given is lost.
_ALPHA_POWER: Final = 2


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The looks of one or more sessions of the same two trees.

    Attributes:
        max_pairs: Where the rule gives up in one session.
        num_sessions: Of the same two trees, this one included: they go on from their pairs.
    """

    max_pairs: int
    num_sessions: int = 1
    first_look: int = FIRST_LOOK

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of pairs at which the rule looks.

        >>> Schedule(max_pairs=16).looks
        (2, 3, 4, 5, 6, 8, 10, 12, 16)
        >>> Schedule(max_pairs=9, num_sessions=3).looks  # a re-run half-way through and at its end
        (2, 3, 4, 5, 6, 8, 9, 14, 18, 23, 27)
        """
        return tuple(look for number in range(self.num_sessions) for look in self._looks_of(number))

    def _looks_of(self, number: int) -> tuple[int, ...]:
        """The looks of a session, which are counted from 0."""
        if number == 0:
            earlier = (look for look in _LOOKS if self.first_look <= look < self.max_pairs)
            return (*earlier, self.max_pairs)
        before = number * self.max_pairs
        return before + (self.max_pairs + 1) // 2, before + self.max_pairs

    def shares(self, num_pairs: int) -> tuple[float, float]:
        """Return which part of alpha and of beta is spent at the first look that is not earlier.

        Fixed beforehand: within a session alpha in proportion to the square of a look's number of
        pairs, and beta equally. A look at two pairs spends nothing of alpha.

        >>> Schedule(max_pairs=5).shares(4)  # 16 of 9 + 16 + 25, one of four looks; of 0.8 both
        (0.256, 0.2)
        >>> Schedule(max_pairs=4, num_sessions=2).shares(7)  # at 8: 64 of 36 + 64
        (0.10239999999999999, 0.07999999999999999)
        """
        number = (num_pairs - 1) // self.max_pairs
        looks = self._looks_of(number)
        full = [look for look in looks if look >= FIRST_FULL_LOOK]
        next_full = next(look for look in full if look >= num_pairs)
        spent = _SPENT_BY_SESSION * (1 - _SPENT_BY_SESSION) ** number
        weights = {look: look**_ALPHA_POWER for look in full}
        return spent * weights[next_full] / sum(weights.values()), spent / len(looks)
