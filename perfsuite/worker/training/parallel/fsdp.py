"""Sharded over the ranks: FSDP, hybrid FSDP, ZeRO-2 (Rajbhandari et al. 2020)."""

import itertools
from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from perfsuite.worker.training.checkpointing import checkpoint_units
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
        blocks = self.local_blocks(model)
        for unit in checkpoint_units(self.recipe, blocks) if blocks else []:
            if model not in unit and not _shares_weights(unit, model):
                self._shard(unit, mesh)
        self._shard([model], mesh)
        assert isinstance(model, FSDPModule)
        self._model = model
        return model

    def set_reduction(self, is_last: bool) -> None:
        """Reduce the gradients in the last micro-batch alone."""
        self._model.set_requires_gradient_sync(is_last)

    def _mesh(self) -> DeviceMesh:
        size = self.recipe.plan.size
        return init_device_mesh(self.device.type, (size,), mesh_dim_names=("shard",))

    def _shard(self, modules: list[nn.Module], mesh: DeviceMesh) -> None:
        # A group has one dtype, and O2 leaves BatchNorm in float32 beside float16.
        groups = itertools.chain(([layer] for layer in _layers_of_rarer_dtype(modules)), [modules])
        for group in groups:
            fully_shard(group, mesh=mesh, reshard_after_forward=self._reshards_after_forward)


class HSDP(FSDP):
    """The `Strategy` of "hsdp": copies of the model, each sharded over some of the ranks."""

    def _mesh(self) -> DeviceMesh:
        plan = self.recipe.plan
        shape = (plan.size // plan.num_shards, plan.num_shards)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))


class ZeRO2(FSDP):
    """The `Strategy` of "zero2": FSDP that gathers parameters in forward alone, and keeps them."""

    _reshards_after_forward = False


def _shares_weights(unit: list[nn.Module], model: nn.Module) -> bool:
    """Whether a weight of the unit is also used outside, and so belongs to the root."""
    inside = {module for block in unit for module in block.modules()}
    outside = {
        id(weight)
        for module in model.modules()
        if module not in inside
        for weight in module.parameters(recurse=False)
    }
    return any(id(weight) in outside for block in unit for weight in block.parameters())


def _layers_of_rarer_dtype(modules: list[nn.Module]) -> Iterator[nn.Module]:
    sizes: Counter[torch.dtype] = Counter()
    for module in modules:
        for parameter in module.parameters():
            if not isinstance(parameter, DTensor):
                sizes[parameter.dtype] += parameter.numel()
    rarer = {dtype for dtype, _ in sizes.most_common()[1:]}
    for module in modules:
        for layer in module.modules():
            own = [p for p in layer.parameters(recurse=False) if not isinstance(p, DTensor)]
            if any(parameter.dtype in rarer for parameter in own):
                yield layer
