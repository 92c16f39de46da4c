"""Give one process the random numbers that a run drew, call by call and sample by sample."""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from perfsuite.worker.equivalence.trace.draws import Call, Draw, DrawMode, in_backward, same_numbers

# Arguments may be computed from the data, in a precision as coarse as bfloat16.
_SAME_ARGUMENT = 2.0**-6
# Numbers that two parts of a batch draw alike by chance at most this often were seeded alike.
_LARGEST_CHANCE = 1e-9


class Replay(DrawMode):  # type: ignore[no-untyped-call]
    """Lets each operator that draws have drawn what the run's did, whatever it draws itself.

    `parts` are the draws of consecutive parts of a batch; None where none were recorded. The pass
    sees the samples from the first up to the second of the third in `rows`. One dimension may hold
    both the samples and the heads of attention: with `heads_first` sample by sample for each head.
    Afterwards `has_heads` says whether a dimension of several parts held several times their
    samples, `is_packed` whether it held another number, `given` what was drawn for the whole batch,
    `wrong` how the run's draws differ from one process's, and `unknown` why none can be given.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Draw]] | None,
        device: torch.device,
        rows: tuple[int, int, int],
        *,
        heads_first: bool = False,
    ) -> None:
        super().__init__(device)
        self.has_heads = self.is_packed = False
        self.given: list[Draw] = []
        self.wrong: list[str] = []
        self.unknown: list[str] = []
        self._parts = parts
        self._begin, self._end, self._num_samples = rows
        self._heads_first, self._num_calls = heads_first, 0
        self._calls: dict[bytes, int] = {}
        # Pairs of parts that have drawn the same numbers so far, and how unlikely that is.
        self._alike = list(itertools.combinations(range(len(parts or ())), 2))
        self._surprise = 0.0

    def handle(self, call: Call, state: bytes) -> None:
        """Put what the run drew in this call in the place of what was drawn now."""
        draw = call.describe(None)
        if self._parts is None:
            why = f"{draw.operator} draws random numbers unseen, in a compiled model or in threads"
            self.unknown.append(why)
            return
        if not in_backward():
            self._calls[state] = self._num_calls
            self._num_calls += 1
        elif state not in self._calls:
            self.unknown.append(f"{draw.operator} draws random numbers in the backward pass")
            return
        index = self._calls[state]
        recorded = [part[index] for part in self._parts if index < len(part)]
        if len(recorded) < len(self._parts):
            return  # `finish` says so
        self._compare(recorded, draw)
        values = None if self.wrong else self._whole(recorded, draw, call)
        if values is not None:
            call.put(values)
        if not in_backward():
            self.given.append(draw._replace(values=values))

    def finish(self) -> None:
        """Judge the pass as a whole, once it has ended."""
        for part in self._parts or ():
            if len(part) != self._num_calls:
                times = f"{len(part)} times, and one process {self._num_calls} times"
                self.wrong.append(f"a rank draws {times}; is a rank in eval mode?")
        if self._alike and self._surprise > -math.log(_LARGEST_CHANCE):
            one, other = self._alike[0]
            parts = f"parts {one + 1} and {other + 1} of the batch, which have other data"
            self.wrong.append(f"{parts}, draw the same numbers; seed each rank by its number")

    def expect_draws(self) -> None:
        """Refuse where a generator has moved and no operator was seen to draw from it."""
        if self._num_calls == 0:
            why = "an operator that torch does not tag nondeterministic_seeded draws random numbers"
            self.unknown.append(why)

    def _compare(self, recorded: Sequence[Draw], wanted: Draw) -> None:
        for draw in recorded:
            if draw.operator != wanted.operator:
                self.wrong.append(f"a rank calls {draw.operator}, one process {wanted.operator}")
            elif not _are_close(draw.arguments, wanted.arguments):
                called = f"a rank calls {draw.operator} with {_listed(draw.arguments)}"
                due = f"one process with {_listed(wanted.arguments)}"
                self.wrong.append(f"{called}, and {due}; has a rank another probability?")

    def _whole(self, recorded: Sequence[Draw], wanted: Draw, call: Call) -> Tensor | None:
        """What the parts have drawn, in the shape that this pass draws."""
        drawn, values = call.drawn(), [draw.values for draw in recorded if draw.values is not None]
        if drawn is None or len(values) < len(recorded):
            self.unknown.append(f"{wanted.operator} does not tell the random numbers that it draws")
            return None
        if self._end - self._begin < self._num_samples:
            return self._slice(recorded[0], wanted, drawn.shape)
        shapes = ", ".join(str(tuple(part.shape)) for part in values)
        found = f"{wanted.operator} draws {shapes} in the parts of the batch"
        mixed = "so its samples cannot be told apart"
        axes = [
            axis
            for axis, sizes in enumerate(zip(drawn.shape, *(p.shape for p in values), strict=False))
            if len(set(sizes)) > 1
        ]
        has_batch = [sum(part.shape[axis] for part in values) == drawn.shape[axis] for axis in axes]
        if any(part.dim() != drawn.dim() for part in values) or has_batch not in ([], [True]):
            reasons = self.wrong if len(values) == 1 else self.unknown
            reasons.append(f"{found} and {tuple(drawn.shape)} in the whole of it, {mixed}")
            return None
        if axes:
            if (shifted := self._shift(recorded, wanted)) is not None:
                self._note_alike(values)
                return self._join(shifted, axes[0])
        elif all(torch.equal(part, values[0]) for part in values):
            return values[0]
        self.unknown.append(f"{found}, other numbers in each, {mixed}")
        return None

    def _shift(self, recorded: Sequence[Draw], wanted: Draw) -> list[Tensor] | None:
        """The parts' values; those that number the samples of a part number those of the whole."""
        values = [draw.values for draw in recorded if draw.values is not None]
        bounds = [draw.bound or 0 for draw in recorded]
        if wanted.bound is None or all(bound == wanted.bound for bound in bounds):
            return values
        if sum(bounds) != wanted.bound:
            return None
        before = itertools.accumulate(bounds, initial=0)
        return [part + shift for part, shift in zip(values, before, strict=False)]

    def _join(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """The whole batch's draw, of those of its parts."""
        sizes = [part.shape[axis] for part in parts]
        num_heads, rest = divmod(sum(sizes), self._num_samples or sum(sizes))
        # Packed samples of several lengths may have as many elements as samples with heads.
        is_packed = rest > 0 or any(size % num_heads for size in sizes)
        self.is_packed |= is_packed
        if is_packed or num_heads == 1:
            return torch.cat(list(parts), axis)
        self.has_heads = True
        heads = [self._split(part, axis, num_heads) for part in parts]
        return torch.cat(heads, axis + self._heads_first).flatten(axis, axis + 1)

    def _split(self, values: Tensor, axis: int, num_heads: int) -> Tensor:
        sizes = (num_heads, -1) if self._heads_first else (-1, num_heads)
        return torch.unflatten(values, axis, sizes)

    def _slice(self, draw: Draw, wanted: Draw, shape: torch.Size) -> Tensor | None:
        """A slice of the whole batch's draw; None where it is not divided by samples."""
        values, size = draw.values, self._end - self._begin
        if values is None or values.dim() != len(shape) or draw.bound != wanted.bound:
            return None
        axes = [axis for axis, length in enumerate(values.shape) if length != shape[axis]]
        if not axes:
            return values
        axis, *others = axes
        num_heads, rest = divmod(values.shape[axis], self._num_samples)
        if others or rest or shape[axis] != num_heads * size:
            return None
        heads = self._split(values, axis, num_heads)
        return heads.narrow(axis + self._heads_first, self._begin, size).flatten(axis, axis + 1)

    def _note_alike(self, values: Sequence[Tensor]) -> None:
        self._alike = [
            (one, other) for one, other in self._alike if same_numbers(values[one], values[other])
        ]
        if self._alike:
            drawn = values[self._alike[0][0]]
            _, counts = torch.unique(drawn, return_counts=True)
            # Of two elements drawn alike, the chance is the sum of the squares of the shares.
            shares = counts.double() / drawn.numel()
            self._surprise -= drawn.numel() * math.log(float(shares.square().sum()))


def _are_close(ones: Sequence[float], others: Sequence[float]) -> bool:
    close = partial(math.isclose, rel_tol=_SAME_ARGUMENT)
    return len(ones) == len(others) and all(map(close, ones, others))


def _listed(arguments: Sequence[float]) -> str:
    return ", ".join(f"{argument:g}" for argument in arguments) or "no argument"
