"""A copy of the whole model for each shard of the data: DataParallel, DDP, and ZeRO stage 1."""

import inspect

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from perfsuite.errors import NotExercisedError, RecipeError
from perfsuite.records.recipe import Recipe
from perfsuite.worker.training.parallel.strategy import Strategy, refuse_sparse_gradients

# PowerSGD compresses from this step on. Two is the least that warm start and error feedback allow
# (powerSGD_hook.PowerSGDState), and the step after which DDP has rebuilt its buckets.
_POWERSGD_START_ITER = 2


def require_replicas(parallel: DataParallel[nn.Module], recipe: Recipe) -> None:
    """Let the first forward pass refuse too few replicas: nn.DataParallel may silently run one."""
    calls: list[None] = []  # appending is safe from the replicas' threads, which share the hooks
    size = recipe.plan.size

    def check(*_: object) -> None:
        for hook in hooks:
            hook.remove()
        if len(calls) != size:
            found = f"parallel {recipe.parallel!r} ran {len(calls)} of its {size} replicas"
            raise NotExercisedError(f"{found}; use a micro_batch_size that is a multiple of {size}")

    counting = parallel.module.register_forward_hook(lambda *_: calls.append(None))
    hooks = (counting, parallel.register_forward_hook(check))


class DP(Strategy):
    """The `Strategy` of "dp": nn.DataParallel, one process with a thread for each replica."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model under nn.DataParallel: one GPU carries all replicas, several carry one each."""
        size = self.recipe.plan.size
        devices = [0] * size if torch.cuda.device_count() == 1 else list(range(size))
        parallel = DataParallel(model, device_ids=devices)
        require_replicas(parallel, self.recipe)
        return parallel


class DDP(Strategy):
    """The `Strategy` of "ddp": DistributedDataParallel with the options of the recipe."""

    # Names the parameters in each bucket, in the order of DDP's reduction: under PowerSGD alone,
    # whose result depends on it, and final once it compresses.
    bucket_layout: list[list[str]]
    _model: DistributedDataParallel
    _has_synchronised = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model under DistributedDataParallel, with the recipe's communication hook."""
        if self.recipe.comm_hook in ("fp16", "powersgd") or dist.get_backend() == "nccl":
            refuse_sparse_gradients(model, self.recipe)
        self._model = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.recipe.bucket_cap_mb,
            find_unused_parameters=self.recipe.find_unused_parameters,
            gradient_as_bucket_view=self.recipe.gradient_as_bucket_view,
            static_graph=self.recipe.static_graph,
        )
        self.bucket_layout = []
        _register_comm_hook(self._model, self.recipe.comm_hook, self.bucket_layout)
        return self._model

    def set_reduction(self, is_last: bool) -> None:
        """Reduce the gradients in the last micro-batch alone, as `no_sync` would."""
        # A static graph is learned from the first micro-batch of all, which must be reduced for
        # that. Its average is averaged once more with the others, which changes nothing.
        learns_graph = self.recipe.static_graph and not self._has_synchronised
        self._has_synchronised = True
        self._model.require_backward_grad_sync = is_last or learns_graph


class ZeRO1(DDP):
    """The `Strategy` of "zero1", ZeRO stage 1 (Rajbhandari et al. 2020): each steps a share."""

    def build_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The workload's optimizer, made again from its defaults on a share of the parameters."""
        whole = super().build_optimizer(parameters)
        # `defaults` also holds options that a class passes to its base (AdamW to Adam) and refuses.
        accepted = inspect.signature(type(whole)).parameters
        options = {name: value for name, value in whole.defaults.items() if name in accepted}
        _refuse_lost(whole, type(whole)(whole.param_groups, **options))
        return ZeroRedundancyOptimizer(whole.param_groups, optimizer_class=type(whole), **options)


def _refuse_lost(optimizer: Optimizer, rebuilt: Optimizer) -> None:
    public = (name for name in vars(optimizer) if not name.startswith("_"))
    options = (name for name in public if name not in ("state", "param_groups"))
    lost = [name for name in options if vars(rebuilt).get(name) != vars(optimizer)[name]]
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        lost.append("the step hooks")
    if lost:
        raise RecipeError(
            f"zero1 makes the optimizer again on each rank from its defaults, and would lose "
            f"{', '.join(lost)} of this {type(optimizer).__name__}; use defaults alone, or ddp:N"
        )


def _register_comm_hook(model: DistributedDataParallel, name: str, layout: list[list[str]]) -> None:
    if name in ("fp16", "bf16"):
        model.register_comm_hook(None, getattr(default_hooks, f"{name}_compress_hook"))
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=_POWERSGD_START_ITER)
        names = {parameter: name for name, parameter in model.module.named_parameters()}

        def reduce(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
            """PowerSGD of one bucket; notes its parameters as long as DDP may still move them."""
            if state.iter <= _POWERSGD_START_ITER:
                layout[bucket.index() :] = [[names[parameter] for parameter in bucket.parameters()]]
            reduced = powerSGD_hook.powerSGD_hook(state, bucket)
            # The end of PowerSGD's earlier collectives starts its later ones. Under gloo that
            # happens in a thread: two unfinished buckets would start theirs in different orders on
            # different ranks, which then wait for each other. NCCL's are started at once, in the
            # order of the buckets.
            if dist.get_backend() == "gloo":
                reduced.wait()
            return reduced

        model.register_comm_hook(state, reduce)
