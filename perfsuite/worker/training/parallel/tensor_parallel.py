"""Linear layers split over the ranks, each computing its columns or rows: tensor parallelism.

Megatron-LM, Shoeybi et al. 2019, as torch's `parallelize_module`. The plan is derived from the
model and is safe for any model: a split layer takes and gives whole tensors, except in a pair
inside an nn.Sequential with only an elementwise activation between the two layers.
"""

from collections import Counter

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, parallel

from perfsuite.errors import RecipeError
from perfsuite.worker.training.parallel.strategy import Strategy

# Activations that compute each element from itself alone, without parameters or random numbers, so
# that a shard's result is the result's shard.
_ELEMENTWISE = (
    *(nn.ELU, nn.GELU, nn.Hardswish, nn.Identity, nn.LeakyReLU, nn.Mish, nn.ReLU, nn.ReLU6),
    *(nn.SELU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Tanh),
)


class TensorParallel(Strategy):
    """The `Strategy` of "tp": every rank computes the same batch with its part of each layer."""

    def split(self, model: nn.Module) -> nn.Module:
        """The same module with DTensors as weights of its split layers."""
        size = self.recipe.plan.size
        if not (plan := plan_layers(model, size)):
            widths = sorted({m.out_features for m in model.modules() if type(m) is nn.Linear})
            found = f"widths {', '.join(map(str, widths))}" if widths else "no such layer"
            divisors = [n for n in range(2, size) if any(width % n == 0 for width in widths)]
            advice = f"use tp:{divisors[-1]}" if divisors else f"use ddp:{size}"
            raise RecipeError(
                f"parallel {self.recipe.parallel!r} needs an nn.Linear whose out_features are "
                f"divisible by {size} and whose weight no other module shares; workload "
                f"{self.workload.name!r} has {found}; {advice}"
            )
        if self.recipe.num_segments and any(block in plan for block in self.local_blocks(model)):
            raise RecipeError(
                f"checkpointing {self.recipe.checkpointing!r} cannot be combined with parallel "
                f"{self.recipe.parallel!r} where a block is itself a split nn.Linear; "
                "use checkpointing='every-block'"
            )
        mesh = init_device_mesh(self.device.type, (size,), mesh_dim_names=("tensor",))
        for layer, style in plan.items():
            parallel.parallelize_module(layer, mesh, style)
        self.speaks_for_shard = mesh.get_local_rank() == 0
        return model


def plan_layers(model: nn.Module, size: int) -> dict[nn.Module, parallel.ParallelStyle]:
    """How layers of the model are split over `size` ranks; those that stay whole are left out."""
    modules = list(model.modules())
    uses = Counter(id(weight) for one in modules for weight in one.parameters(recurse=False))
    # A subclass may compute otherwise, and a shared weight would be split in the other module too.
    dense = [one for one in modules if type(one) is nn.Linear and one.out_features % size == 0]
    divisible = [one for one in dense if all(uses[id(p)] == 1 for p in one.parameters())]
    plan: dict[nn.Module, parallel.ParallelStyle] = {}
    for sequential in (module for module in modules if type(module) is nn.Sequential):
        layers = list(sequential)
        for up, between, down in zip(layers, layers[1:], layers[2:], strict=False):
            is_pair = type(up) is type(down) is nn.Linear and type(between) in _ELEMENTWISE
            is_free = up in divisible and up not in plan
            if is_pair and is_free and all(uses[id(p)] == 1 for p in down.parameters()):
                plan[up], plan[down] = parallel.ColwiseParallel(), parallel.RowwiseParallel()
    for linear in divisible:
        if linear not in plan:
            plan[linear] = parallel.ColwiseParallel(output_layouts=Replicate())
    return plan
