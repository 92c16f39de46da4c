"""The user's own parallelisation: a function of theirs over a DeviceMesh of the recipe's axes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from perfsuite.errors import RecipeError, WorkloadError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.dtensor import is_dtensor
from perfsuite.worker.training.parallel.strategy import Strategy


class Mesh(Strategy):
    """The `Strategy` of "mesh": what `Workload.parallelize` makes of the model."""

    _model: nn.Module | None = None

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        super().__init__(workload, recipe, device)
        plan = recipe.plan
        if workload.parallelize is None:
            raise RecipeError(
                f"parallel {recipe.parallel!r} needs the workload's own function, and workload "
                f"{workload.name!r} has none; use Workload(parallelize=f) with "
                f"f(model, mesh) -> model, or a mode that needs none, such as fsdp:{plan.size}"
            )
        at = plan.coordinates(dist.get_rank())
        self.speaks_for_shard = not any(at[axis.name] for axis in plan.model_axes)

    @property
    def splits_parameters(self) -> bool:
        """Whether the user's function has made DTensors of parameters."""
        return self._model is not None and any(map(is_dtensor, self._model.parameters()))

    def wrap(self, model: nn.Module) -> nn.Module:
        """What the user's function returns: the model, which keeps its parameters' names."""
        assert self.workload.parallelize is not None
        sizes = tuple(axis.size for axis in self.recipe.plan.axes)
        axes = tuple(axis.name for axis in self.recipe.plan.axes)
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=axes)
        names = {name for name, _ in model.named_parameters()}
        parallelized: object = self.workload.parallelize(model, mesh)
        if not isinstance(parallelized, nn.Module) or model not in parallelized.modules():
            another = "another model, " if isinstance(parallelized, nn.Module) else ""
            raise WorkloadError(
                f"workload {self.workload.name!r}: parallelize returned {another}a "
                f"{type(parallelized).__name__}; return the model that it is given, changed in "
                "place, or a wrapper around it"
            )
        kept = {name for name, _ in model.named_parameters()}
        if changed := [*sorted(names - kept), *sorted(kept - names)]:
            verb = "took away" if changed[0] in names else "added"
            raise WorkloadError(
                f"workload {self.workload.name!r}: parallelize {verb} parameter {changed[0]!r}; "
                "keep the parameters' names, as fully_shard and parallelize_module do, so that "
                "their gradients can be compared with those of one process"
            )
        self._model = model
        return parallelized
