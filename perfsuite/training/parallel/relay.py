"""One batch through the stages of a cut model, one stage after the other, without gradients.

Nothing overlaps: what is evaluated once an epoch need not, and a schedule would want each batch to
divide into chunks, which the last of a split seldom does. Must not know how a model was cut.

Two neighbouring stages are of two ranks: no pipeline has one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfsuite.training.parallel.cut import ModelStage


def relay(
    stages: Mapping[int, ModelStage],
    num_stages: int,
    inputs: Mapping[str, Any],
    device: torch.device,
) -> Any | None:
    """Return what the model returns, on the rank of its last stage; None on the others.

    Args:
        stages: Those of this rank, by their number; rank r has r, r + world_size, ...
        num_stages: Of all ranks together.
        inputs: The model's, by the names of the parameters of its forward; every rank has them.
        device: Where this rank computes.
    """
    world_size = dist.get_world_size()
    outputs: Any = ()
    for index, stage in sorted(stages.items()):
        activations = () if index == 0 else _receive((index - 1) % world_size, device)
        given = (inputs[name] for name in stage.input_names)
        outputs = stage.module(*activations, *given)
        if index < num_stages - 1:
            _send(outputs, (index + 1) % world_size, device)
    return outputs if num_stages - 1 in stages else None


def _send(activations: Sequence[Tensor], target: int, device: torch.device) -> None:
    forms = [(tensor.shape, tensor.dtype) for tensor in activations]
    dist.send_object_list([forms], dst=target, device=device)
    for tensor in activations:
        dist.send(tensor.contiguous(), dst=target)


def _receive(source: int, device: torch.device) -> tuple[Tensor, ...]:
    forms: list[Any] = [None]
    dist.recv_object_list(forms, src=source, device=device)
    activations = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in forms[0])
    for tensor in activations:
        dist.recv(tensor, src=source)
    return activations
