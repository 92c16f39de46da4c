"""Where two batches differ, bit for bit and sample by sample.

A batch is a pair (inputs, target) of nested containers of B samples, as `default_collate` makes it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def find_differences(
    batches: Sequence[Any], expected: Sequence[Any], batch_size: int
) -> list[tuple[int, str, int]]:
    """Return the index of each batch that differs, its first such part, how many samples.

    More may be expected than there is. A list may equal a tuple.
    """
    differences = []
    for index, (batch, theirs) in enumerate(zip(batches, expected, strict=False)):
        wrong = _wrong_parts(batch, theirs, batch_size)
        if wrong:
            num_samples = int(torch.stack(list(wrong.values())).any(dim=0).sum())
            differences.append((index, next(iter(wrong)), num_samples))
    return differences


def is_among(batch: Any, batches: Iterable[Any]) -> bool:
    """Whether a batch is one of these, bit for bit."""
    return any(not _wrong_parts(batch, one, 1) for one in batches)


def _wrong_parts(batch: Any, expected: Any, batch_size: int) -> dict[str, Tensor]:
    """For each part that differs, which samples do (B,)."""
    ours, theirs = (
        dict([*_parts(inputs, "inputs"), *_parts(target, "target")])
        for inputs, target in (batch, expected)
    )
    if ours.keys() != theirs.keys():
        return {"the structure": torch.ones(batch_size, dtype=torch.bool)}
    wrong = {place: _wrong_samples(ours[place], theirs[place], batch_size) for place in theirs}
    return {place: samples for place, samples in wrong.items() if samples.any()}


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Each tensor, string and number in nested containers, with its place."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _parts(part, f"{place}[{index}]")
    else:
        yield place, value


def _wrong_samples(ours: Any, theirs: Any, batch_size: int) -> Tensor:
    """Which samples differ (B,); all of them where the samples cannot be separated."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        if (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape):
            differs = _bytes(ours) != _bytes(theirs)
            if ours.shape[:1] == (batch_size,):
                return differs.view(batch_size, differs.numel() // batch_size).any(dim=1)
            return differs.any().expand(batch_size)
        return torch.ones(batch_size, dtype=torch.bool)
    # repr separates 0.0 from -0.0, and is the same for any nan.
    return torch.full((batch_size,), type(ours) is not type(theirs) or repr(ours) != repr(theirs))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8)
