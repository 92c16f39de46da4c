"""Sharded over the ranks: FSDP, hybrid FSDP, ZeRO-2 (Rajbhandari et al. 2020)."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from perfsuite.worker.training.checkpointing import units_to_shard
from perfsuite.worker.training.mixed_precision import BATCHNORM_LAYERS, PRECISION_POLICIES
from perfsuite.worker.training.parallel.strategy import Strategy, refuse_sparse_gradients


class FSDP(Strategy):
    """The `Strategy` of "fsdp": what is checkpointed together is gathered together."""

    # Whether parameters are freed after forward and gathered again for backward; None frees all
    # but the root's (`fully_shard`).
    _reshards_after_forward: bool | None = None
    _model: FSDPModule

    def wrap(self, model: nn.Module) -> nn.Module:
        """The same module with DTensors as parameters: blocks first, then the rest at the root."""
        refuse_sparse_gradients(model, self.recipe)
        mesh = self._mesh()
        for unit in units_to_shard(self.recipe, model, self.local_blocks(model)):
            self._shard(unit, mesh)
        self._shard([model], mesh, is_root=True)
        assert isinstance(model, FSDPModule)
        self._model = model
        return model

    def set_reduction(self, is_last: bool) -> None:
        """Reduce the gradients in the last micro-batch alone."""
        self._model.set_requires_gradient_sync(is_last)

    def _mesh(self) -> DeviceMesh:
        size = self.recipe.plan.size
        return init_device_mesh(self.device.type, (size,), mesh_dim_names=("shard",))

    def _shard(self, modules: list[nn.Module], mesh: DeviceMesh, is_root: bool = False) -> None:
        low = PRECISION_POLICIES[self.recipe.precision].fsdp_dtype
        wide = None if low is None else torch.float32
        cast = MixedPrecisionPolicy(low, wide, wide if is_root else None)
        shard = partial(fully_shard, mesh=mesh, reshard_after_forward=self._reshards_after_forward)
        apart = [*_layers_apart(modules, has_mixed_precision=low is not None)]
        for layer in apart:
            shard([layer])
        if rest := [module for module in modules if module not in apart]:
            shard(rest, mp_policy=cast)


class HSDP(FSDP):
    """The `Strategy` of "hsdp": copies of the model, each sharded over some of the ranks."""

    def _mesh(self) -> DeviceMesh:
        plan = self.recipe.plan
        shape = (plan.size // plan.num_shards, plan.num_shards)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))


class ZeRO2(FSDP):
    """The `Strategy` of "zero2": FSDP that gathers parameters in forward alone, and keeps them."""

    _reshards_after_forward = False


def _layers_apart(modules: list[nn.Module], *, has_mixed_precision: bool) -> Iterator[nn.Module]:
    # A group has one dtype, and O2 leaves BatchNorm in float32 beside float16. And no kernel of
    # BatchNorm takes parameters in bfloat16 beside buffers in float32.
    sizes: Counter[torch.dtype] = Counter()
    parameters = (parameter for module in modules for parameter in module.parameters())
    for parameter in (one for one in parameters if not isinstance(one, DTensor)):
        sizes[parameter.dtype] += parameter.numel()
    rarer = {dtype for dtype, _ in sizes.most_common()[1:]}
    for module in modules:
        for layer in module.modules():
            own = [p for p in layer.parameters(recurse=False) if not isinstance(p, DTensor)]
            is_batchnorm = has_mixed_precision and isinstance(layer, BATCHNORM_LAYERS)
            if any(is_batchnorm or parameter.dtype in rarer for parameter in own):
                yield layer
