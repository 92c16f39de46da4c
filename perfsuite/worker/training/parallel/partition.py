"""Cut a model into stages between its blocks, so that each rank of a pipeline holds some.

torch.fx records the code between the blocks, with every module that contains no block as one call;
the modules themselves stay the user's, with their names, their hooks and their mode.
`torch.distributed.pipelining.pipeline` would run an exported graph of one batch shape and mode.
"""

import inspect
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from perfsuite.errors import RecipeError, WorkloadError
from perfsuite.worker.training.batches import call_model

# Recording raises these where a forward needs the numbers in a recorded value.
_NOT_RECORDABLE = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError)


class ModelStage(NamedTuple):
    """A stage: (activations of the one before, inputs of these names) -> activations or outputs."""

    module: fx.GraphModule
    input_names: tuple[str, ...]


def partition_model(
    model: nn.Module, blocks: Sequence[nn.Module], num_stages: int, given: Collection[str]
) -> list[ModelStage]:
    """Return the stages of a model: runs of its blocks with lengths that differ by one at most.

    The first stage also holds all code before the first block, the last stage all code after the
    last block. Values made of the model's inputs without any weight, such as a mask, are computed
    anew in each stage that needs them; all others go from stage to stage. No module is copied.
    `blocks` are in the order of the calls. `given` are the parameters of the model's forward that
    calls will name; the others keep their defaults, and the recording holds for these alone.
    """
    if len(blocks) < num_stages:
        advice = "use fewer stages, or name smaller blocks"
        raise RecipeError(f"there are {len(blocks)} blocks for {num_stages} stages; {advice}")
    by_module = {module: name for name, module in model.named_modules()}
    if not all(block in by_module for block in blocks):
        raise WorkloadError("blocks names a module that is not part of the model; name its own")
    names = [by_module[block] for block in blocks]
    graph = _record(model, names, given)
    starts = [names[index * len(blocks) // num_stages] for index in range(1, num_stages)]
    owner = _owners(graph, starts)
    stages = [_build_stage(model, graph, owner, index, num_stages) for index in range(num_stages)]
    _refuse_shared_weights([stage.module for stage in stages])
    return stages


def bind_inputs(signature: inspect.Signature, inputs: Any) -> dict[str, Any]:
    """The model's inputs by the names of its forward's parameters; `signature` is without self."""
    return dict(call_model(signature.bind, inputs).arguments)


class _BlockTracer(fx.Tracer):
    """Records the code of modules that contain blocks, and any other module as one call."""

    # Otherwise a buffer would be recorded as its present number.
    proxy_buffer_attributes = True

    def __init__(self, block_names: Sequence[str]) -> None:
        super().__init__()
        parts = [name.split(".") for name in block_names]
        self._containers = {".".join(part[:end]) for part in parts for end in range(len(part))}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self._containers


def _record(model: nn.Module, block_names: list[str], given: Collection[str]) -> fx.Graph:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if name not in given and parameter.default is not inspect.Parameter.empty
    }
    buffers = dict(model.named_buffers())
    try:
        graph = _BlockTracer(block_names).trace(model, concrete_args=defaults or None)
    except _NOT_RECORDABLE as error:
        first_line, *_ = str(error).strip().splitlines() or [""]
        raise RecipeError(
            "the model's forward has code between its blocks that cannot be recorded "
            f"({type(error).__name__}: {first_line}); move that code into a submodule"
        ) from error
    # A stage would not see the new tensor.
    for name, buffer in model.named_buffers():
        if buffer is not buffers.get(name):
            found = f"the model's forward assigns the buffer {name!r} between its blocks"
            raise RecipeError(f"{found}; change it in place, or move that code into a submodule")
    called = [node.target for node in graph.nodes if node.target in block_names]
    if called != block_names:
        raise RecipeError(
            f"the model's forward calls its blocks as {', '.join(map(str, called)) or 'none'}, and "
            f"blocks names {', '.join(block_names)}; name each once, in the order of the calls"
        )
    return graph


def _owners(graph: fx.Graph, starts: Sequence[str]) -> dict[fx.Node, int]:
    """The stage that each value belongs to; none where it is made of the model's inputs alone."""
    owner: dict[fx.Node, int] = {}
    index = 0
    for node in graph.nodes:
        if index < len(starts) and node.target == starts[index]:
            index += 1
        makes_value = node.op in ("placeholder", "call_function", "call_method")
        if not makes_value or any(source in owner for source in node.all_input_nodes):
            owner[node] = index
        elif node.op == "call_method" and node.target.rstrip("_") + "_" == node.target:
            found = f"changes an input in place by {node.target!r} between its blocks"
            raise RecipeError(f"the model's forward {found}; use {node.target.rstrip('_')!r}")
    return owner


def _crossing(graph: fx.Graph, owner: dict[fx.Node, int], index: int) -> list[fx.Node]:
    """The values from stages before `index` for that stage or later ones, in order."""
    before = (node for node in graph.nodes if owner.get(node, index) < index)
    return [one for one in before if any(owner.get(user, -1) >= index for user in one.users)]


def _build_stage(
    model: nn.Module, graph: fx.Graph, owner: dict[fx.Node, int], index: int, num_stages: int
) -> ModelStage:
    stage = fx.Graph()
    copies = {node: stage.placeholder(node.name) for node in _crossing(graph, owner, index)}
    needed = {node for node in graph.nodes if owner.get(node) == index}
    for node in reversed(graph.nodes):  # and all that these are made of, of the inputs alone
        if node not in owner and not needed.isdisjoint(node.users):
            needed.add(node)
    input_names = []
    for node in graph.nodes:
        if node.op == "placeholder" and node in needed:
            copies[node] = stage.placeholder(node.name)
            input_names.append(node.target)
        elif node.op != "output" and node in needed:
            copies[node] = stage.node_copy(node, copies.__getitem__)
    if index == num_stages - 1:
        (output,) = (node for node in graph.nodes if node.op == "output")
        stage.output(fx.map_arg(output.args[0], copies.__getitem__))
    else:
        stage.output(tuple(copies[node] for node in _crossing(graph, owner, index + 1)))
    return ModelStage(fx.GraphModule(model, stage), tuple(input_names))


def _refuse_shared_weights(stages: Sequence[nn.Module]) -> None:
    seen: dict[Tensor, str] = {}
    for stage in stages:
        here = {one: name for name, one in (*stage.named_parameters(), *stage.named_buffers())}
        for tensor, name in here.items():
            if (first := seen.get(tensor)) is not None:
                other = f" (as {name!r})" if name != first else ""
                raise RecipeError(
                    f"two stages share the weight {first!r}{other}, and no one would add up its "
                    "gradients; do not tie it, or name blocks that keep its uses together"
                )
        seen |= here
