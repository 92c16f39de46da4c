"""One optimizer step as an algorithm, and the parts of it that a parallel mode may call.

Gradients are clipped by the norm of all of them together, wherever their parts live. Nothing here
waits for the device, except the scaler where the precision scales.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from perfsuite.errors import NotExercisedError, WorkloadError
from perfsuite.records.stages import Stage
from perfsuite.worker.dtensor import by_mesh, is_dtensor, local_tensor
from perfsuite.worker.training import mixed_precision
from perfsuite.worker.training.batches import copy_to_device
from perfsuite.worker.training.trainer import Trainer


def train_step(trainer: Trainer, batches: Iterator[Any], stage: Stage) -> Tensor | None:
    """Take one optimizer step and return the mean loss of this rank's micro-batches.

    That is a detached scalar; None where this rank holds no loss (a pipeline's earlier stage).
    `stage` marks "load" around each `next(batches)`, "forward" around the model's call, "backward"
    around loss and backward, and "optimizer" around the rest, but for the copy to the device.
    """
    num_micro_batches, losses = trainer.recipe.grad_accumulation_steps, []
    with stage("optimizer"):
        trainer.optimizer.zero_grad()
        for parameter in trainer.unstepped:
            parameter.grad = None
    for index in range(num_micro_batches):
        with stage("load"):
            batch = next(batches)
        inputs, target = prepare_batch(trainer, batch)
        loss = trainer.strategy.run_micro_batch(
            trainer, inputs, target, is_last=index == num_micro_batches - 1, stage=stage
        )
        if loss is not None:
            losses.append(loss)
    with stage("optimizer"):
        apply_gradients(trainer)
    if len(losses) > 1:
        return torch.stack(losses).mean()
    return losses[0] if losses else None


def apply_gradients(trainer: Trainer) -> None:
    """Step the optimizer by the gradients of the model, once they are reduced over the ranks."""
    finish_gradients(trainer)
    if trainer.recipe.clip_grad_norm is not None:
        trainer.scaler.unscale_(trainer.optimizer)
        clip_gradients(trainer, trainer.recipe.clip_grad_norm)
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()


def evaluate_batch(trainer: Trainer, batches: Iterator[Any], stage: Stage) -> Tensor | None:
    """Return the loss of one batch in eval mode, detached; None where another rank has the outputs.

    `stage` marks "load" around `next(batches)`, "evaluation" around the model's call and loss.
    """
    if trainer.strategy.why_not_evaluated is not None:
        raise NotExercisedError(trainer.strategy.why_not_evaluated)
    with stage("load"):
        batch = next(batches)
    inputs, target = prepare_batch(trainer, batch)
    with eval_mode(trainer.model), torch.no_grad(), stage("evaluation"):
        outputs = trainer.strategy.evaluate(trainer, inputs)
        return None if outputs is None else compute_loss(trainer, outputs, target)


def prepare_batch(trainer: Trainer, batch: Any) -> tuple[Any, Any]:
    """Return (inputs, target) on the device, floating inputs in the dtype of the parameters."""
    inputs, target = copy_to_device(batch, trainer.device, non_blocking=trainer.recipe.non_blocking)
    return mixed_precision.cast_inputs(inputs, trainer.precision), target


def compute_loss(trainer: Trainer, outputs: Any, target: Any) -> Tensor:
    """Return the workload's loss: the mean over the micro-batch, in the precision's loss dtype."""
    loss: object
    if trainer.precision.is_plain:  # in a small step even calls that do nothing take time
        loss = trainer.workload.loss(outputs, target)
    else:
        with mixed_precision.autocast(trainer.precision, trainer.device):
            values = mixed_precision.cast_for_loss((outputs, target), trainer.precision)
            loss = trainer.workload.loss(*values)
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    is_tensor = isinstance(loss, Tensor)
    found = f"tensor of shape {tuple(loss.shape)}" if is_tensor else type(loss).__name__
    returned = f"workload {trainer.workload.name!r}: its loss returned a {found}"
    raise WorkloadError(f"{returned}; return a scalar tensor, the mean over the batch")


def scale_loss(trainer: Trainer, loss: Tensor) -> Tensor:
    """Return the tensor for backward: this micro-batch's share of the step's mean, scaled."""
    num_micro_batches = trainer.recipe.grad_accumulation_steps
    # A division by one would add two operators to a plain training step.
    return trainer.scaler.scale(loss / num_micro_batches if num_micro_batches > 1 else loss)


def finish_gradients(trainer: Trainer) -> None:
    """Wait for the reduction over ranks, then copy the gradients to master weights, if any."""
    trainer.strategy.finish_gradients()
    if isinstance(trainer.optimizer, mixed_precision.MasterWeights):
        trainer.optimizer.collect_gradients()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Hold a model in eval mode; afterwards each module is in its earlier mode."""
    # Module by module, because a user may keep some of them in eval mode while training.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
_EPSILON = 1e-6


@torch.no_grad()
def clip_gradients(trainer: Trainer, max_norm: float) -> Tensor:
    """Clip the norm of all unscaled gradients together to `max_norm`; return the norm before.

    As torch.nn.utils.clip_grad_norm_, for gradients of three kinds: plain and equal on all ranks;
    DTensors, and plain ones that are equal on all ranks (fsdp, tp, mesh); plain ones that only this
    rank has (pp, mp). For the latter two, of split parameters, it is a collective.
    """
    parameters = [one for group in trainer.optimizer.param_groups for one in group["params"]]
    if not trainer.strategy.splits_parameters:
        return clip_grad_norm_(parameters, max_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    are_own = trainer.recipe.plan.properties.cuts_model
    norm = _norm_over_ranks(gradients, trainer.device, are_own=are_own)
    scale = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
    for gradient in gradients:
        local_tensor(gradient).mul_(scale)
    return norm


def _norm_over_ranks(gradients: list[Tensor], device: torch.device, *, are_own: bool) -> Tensor:
    # The norm of no gradients is torch's zero on the CPU, and copying that waits for the device.
    square = torch.zeros((), dtype=torch.float64, device=device)
    for those in by_mesh(gradients):
        norm = get_total_norm(those)
        full = norm.full_tensor() if is_dtensor(norm) else norm
        square += full.to(device, torch.float64).square()  # that of float16 would overflow
    if are_own:
        dist.all_reduce(square)
    return square.sqrt()
