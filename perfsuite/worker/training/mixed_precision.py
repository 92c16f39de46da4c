"""What each precision means, as one table, and how a model trains in it.

Mixed precision training, Micikevicius et al. 2018. O0 to O3 are Apex-like: the properties of
`apex.amp` (apex/amp/frontend.py, removed 2025-05) with torch's autocast for patched functions.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from perfsuite.errors import NotExercisedError, RecipeError
from perfsuite.records.capability import Hardware, why_not_timed
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.dtensor import local_tensor
from perfsuite.worker.training.batches import cast_floating
from perfsuite.worker.training.forwards import wrap_forward

BATCHNORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

# What the kernels of 8 bits divide a matrix into (torch._scaled_mm).
_DIVISOR = 16


class PrecisionPolicy(NamedTuple):
    """What one precision means."""

    name: str
    parameter_dtype: torch.dtype = torch.float32  # of floating buffers and inputs too
    keeps_batchnorm_fp32: bool = False  # of affine layers
    autocast_dtype: torch.dtype | None = None
    fsdp_dtype: torch.dtype | None = None  # of what FSDP gathers; it reduces in float32
    loss_scale: Literal["dynamic", 1] = 1
    master_weights: bool = False  # float32 copies of the parameters, which the optimizer steps
    allows_tf32: bool = False  # for float32 products on CUDA
    float8_recipe: Literal["tensorwise", "rowwise"] | None = None  # torchao's, of linear layers

    @property
    def is_plain(self) -> bool:
        """Whether tensors and operations are what the user wrote: float32, nothing cast."""
        return self.parameter_dtype == torch.float32 and self.autocast_dtype is None


_FP16, _BF16 = torch.float16, torch.bfloat16
_O3 = PrecisionPolicy(name="O3", parameter_dtype=_FP16)
_POLICIES = (
    PrecisionPolicy(name="fp64", parameter_dtype=torch.float64),
    PrecisionPolicy(name="fp32"),
    PrecisionPolicy(name="tf32", allows_tf32=True),
    PrecisionPolicy(name="bf16", parameter_dtype=_BF16),
    PrecisionPolicy(name="amp-bf16", autocast_dtype=_BF16),
    PrecisionPolicy(name="amp-fp16", autocast_dtype=_FP16, loss_scale="dynamic"),
    PrecisionPolicy(name="mp-bf16", fsdp_dtype=_BF16),
    PrecisionPolicy(name="fp8-tensorwise", autocast_dtype=_BF16, float8_recipe="tensorwise"),
    PrecisionPolicy(name="fp8-rowwise", autocast_dtype=_BF16, float8_recipe="rowwise"),
    PrecisionPolicy(name="O0"),
    PrecisionPolicy(name="O1", autocast_dtype=_FP16, loss_scale="dynamic"),
    _O3._replace(name="O2", keeps_batchnorm_fp32=True, master_weights=True, loss_scale="dynamic"),
    _O3,
)
# By the precision of a `Recipe`.
PRECISION_POLICIES = {policy.name: policy for policy in _POLICIES}


def set_tf32(policy: PrecisionPolicy, device: torch.device) -> None:
    """Switch TensorFloat-32 on CUDA on for "tf32" and off for every other precision.

    It is a setting of the process, which a model's module may set too: call this before and after.
    """
    if device.type != "cuda":
        return
    # torch leaves it on for convolutions, so that "fp32" would silently not be float32. The older
    # switches first: torch.compile reads them, which raises where they say something else than the
    # newer. For "off" they have convolutions inherit what is set for all of torch.
    torch.set_float32_matmul_precision("high" if policy.allows_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = policy.allows_tf32
    cudnn: Any = torch.backends.cudnn
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if policy.allows_tf32 else "ieee"


def use_float8(
    model: nn.Module, workload: Workload, policy: PrecisionPolicy, device: torch.device
) -> nn.Module:
    """Return the model with torchao's linear layers, if the policy has any, of the same weights."""
    if policy.float8_recipe is None:
        return model
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:  # it is there, and was not built for this torch
        found = f"precision {policy.name!r} needs the package torchao, which cannot be imported"
        raise NotExercisedError(f"{found}: {error}") from error
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    hardware = Hardware(device=device.type, compute_capability=capability)
    config = replace(
        Float8LinearConfig.from_recipe_name(policy.float8_recipe),
        emulate=why_not_timed(Recipe(precision=policy.name), hardware) is not None,
        pad_inner_dim=True,
    )
    if not any(map(_can_be_float8, model.modules())):
        raise RecipeError(
            f"precision {policy.name!r} needs an nn.Linear whose in_features and out_features are "
            f"divisible by {_DIVISOR}; workload {workload.name!r} has none; use "
            "precision='amp-bf16'"
        )
    model = convert_to_float8_training(model, config=config, module_filter_fn=_can_be_float8)

    def wrapper(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        # torchao asks for the autocast of CUDA alone, so it is given what that would cast.
        with torch.autocast(device.type, enabled=False):
            low = torch.bfloat16
            return forward(*cast_floating(args, low), **cast_floating(kwargs, low))

    for layer in model.modules():
        if hasattr(layer, "linear_mm_config"):
            wrap_forward(layer, wrapper)
    return model


def _can_be_float8(layer: nn.Module, _name: str = "") -> bool:
    # A subclass may compute otherwise, and nn.MultiheadAttention never calls its own.
    return type(layer) is nn.Linear and not any(size % _DIVISOR for size in layer.weight.shape)


def cast_parameters(model: nn.Module, policy: PrecisionPolicy) -> None:
    """Cast floating parameters and buffers to the policy's dtype, in place: tied ones stay tied."""
    # O2 leaves BatchNorm with weights in float32 (convert_network in apex/fp16_utils/fp16util.py).
    for module in model.modules():
        if policy.keeps_batchnorm_fp32 and isinstance(module, BATCHNORM_LAYERS) and module.affine:
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(policy.parameter_dtype)


def autocast(policy: PrecisionPolicy, device: torch.device) -> AbstractContextManager[Any]:
    """The context for the model's forward and the loss."""
    if policy.autocast_dtype is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=policy.autocast_dtype)


def autocast_forward(module: nn.Module, policy: PrecisionPolicy, device: torch.device) -> None:
    """Let the module's forward run under the policy's autocast, in place."""
    if policy.autocast_dtype is None:
        return

    # The threads of nn.DataParallel would re-enter one around it without its dtype, in float16.
    def wrapper(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with autocast(policy, device):
            return forward(*args, **kwargs)

    wrap_forward(module, wrapper)


def cast_inputs(inputs: Any, policy: PrecisionPolicy) -> Any:
    """The inputs with floating tensors in the dtype of the parameters."""
    if policy.parameter_dtype == torch.float32:
        return inputs
    return cast_floating(inputs, policy.parameter_dtype)


def cast_for_loss(value: Any, policy: PrecisionPolicy) -> Any:
    """Outputs or a target in the dtype of the loss, float32 or finer; as is for a float32 model."""
    if policy.parameter_dtype == torch.float32:
        return value
    return cast_floating(value, torch.promote_types(policy.parameter_dtype, torch.float32))


class LossScaler(GradScaler):
    """A GradScaler of a precision; it does nothing where the precision does not scale."""

    # With `agrees_over_ranks` the ranks hold different gradients, so one rank's overflow makes
    # every rank skip the step, and `unscale_` is a collective.
    def __init__(
        self, policy: PrecisionPolicy, device: torch.device, *, agrees_over_ranks: bool
    ) -> None:
        super().__init__(device.type, enabled=policy.loss_scale == "dynamic")
        self._agrees_over_ranks = agrees_over_ranks
        # Otherwise a rank that never sees a loss (an earlier pipeline stage) has no scale.
        self.scale(torch.ones((), device=device))

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        # Not public, but torch's own ShardedGradScaler overrides it too. That class cannot be used,
        # because it refuses plain gradients beside DTensors, and "tp" has both.
        if not self._agrees_over_ranks:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = local_tensor(parameter.grad)
                    if gradient.is_sparse:  # as torch's own does
                        parameter.grad = gradient = gradient.coalesce()
                        gradient = gradient._values()
                    by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for gradients in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


class MasterWeights(Optimizer):
    """Steps float32 copies of a model's low-precision parameters, then copies them back.

    Its parameter groups are the inner optimizer's and hold the copies, so `GradScaler.unscale_` and
    clipping work on float32 gradients. One step is: clear the model's gradients, backward (summed
    in the model's own dtype), `collect_gradients`, unscale, clip, `step`.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        build_optimizer: Callable[[list[nn.Parameter]], Optimizer],
    ) -> None:
        master_weights = [
            p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for p in parameters
        ]
        pairs = zip(parameters, master_weights, strict=True)
        self._copied = [(p, master) for p, master in pairs if p is not master]
        self.optim = build_optimizer(master_weights)
        # The groups are the same dicts, so a learning rate set on either holds for both.
        super().__init__(self.optim.param_groups, self.optim.defaults)
        self.state = self.optim.state

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Give each master weight its parameter's gradient in float32, before it is unscaled."""
        copied: list[tuple[Tensor, Tensor]] = []
        for parameter, master in self._copied:
            if parameter.grad is None or parameter.grad.layout != torch.strided:
                master.grad = None if parameter.grad is None else parameter.grad.float()
            else:
                master.grad = torch.empty_like(master)
                copied.append((master.grad, parameter.grad))
        _copy_all(copied)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # returns no loss
        """Step the master weights and round them to the model's parameters."""
        self.optim.step(closure)
        _copy_all(self._copied)


def _copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    if locally := [(local_tensor(to), local_tensor(source)) for to, source in pairs]:
        targets, sources = map(list, zip(*locally, strict=True))
        torch._foreach_copy_(targets, sources)
