"""The workload contract, and how a name, which is all the controller has, becomes a workload."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from perfsuite.errors import WorkloadError
from perfsuite.records.recipe import is_int_from, optional

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer
    from torch.utils.data import Dataset


Split = Literal["train", "validation", "test"]


def no_dataset(split: Split) -> None:
    """Be the `build_dataset` of a workload that builds its own loader."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained. Every `build_*` is called under the cell's seed, on every rank.

    Attributes:
        name: Its name in reports.
        build_model: () -> the model, in float32 on the CPU and in train mode.
        build_dataset: (split) -> a map-style dataset of (inputs, target), None for a split that
            the workload does not have. `inputs` may be a tensor (`model(inputs)`), a tuple or list
            (`model(*inputs)`) or a dict (`model(**inputs)`).
        build_loader: In its place (split, shard_index, num_shards) -> this shard's batches, pairs
            (inputs, target) of `micro_batch_size` samples: a DataLoader of any kind, or another
            iterable with a length, new in each epoch; None for a split that it does not have.
        loss: (outputs, targets) -> scalar mean over the batch.
        build_optimizer: (parameters) -> the optimizer.
        blocks: (model) -> the modules, in order, between which checkpointing, pipeline and
            splitting cut; None where the model has no such chain.
        micro_batch_size: Samples in a batch unless the recipe says otherwise.
        metric: "accuracy", "none", or (outputs, targets) -> dict of numbers, means over the batch.
        parallelize: (model, mesh) -> the model, parallelized in place, or a wrapper around it; used
            under `parallel="mesh:AXIS=N[,AXIS=N]"` alone, on every rank. The model is on the
            device, in the precision's dtype; `mesh` is the DeviceMesh of those axes. Ranks of axes
            that begin with dp, ddp or fsdp are given samples of their own; those of others (tp,
            cp) are given the same batch and return the same outputs. Gradients are means over the
            whole batch. Parameters keep their names; one that is split is a DTensor.
    """

    name: str
    build_model: Callable[[], Module]
    loss: Callable[[Any, Any], Tensor]
    build_optimizer: Callable[[Iterator[Parameter]], Optimizer]
    build_dataset: Callable[[Split], Dataset[Any] | None] = no_dataset
    build_loader: Callable[[Split, int, int], Iterable[Any] | None] | None = None
    blocks: Callable[[Any], Sequence[Module]] | None = None
    micro_batch_size: int = 32
    metric: str | Callable[[Any, Any], dict[str, float]] = "accuracy"
    parallelize: Callable[[Any, DeviceMesh], Module] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise WorkloadError(f"Workload name is {self.name!r}; use a non-empty string")
        for field, (allowed, is_allowed) in _ALLOWED.items():
            value = getattr(self, field)
            if not is_allowed(value):
                raise WorkloadError(f"workload {self.name!r}: {field} is {value!r}; use {allowed}")
        if (self.build_dataset is no_dataset) == (self.build_loader is None):
            has = "neither build_dataset nor" if self.build_loader is None else "build_dataset and"
            raise WorkloadError(f"workload {self.name!r} has {has} build_loader; use one of them")

    def has_split(self, split: Split) -> bool:
        """Whether there are data of a split."""
        if self.build_loader is not None:
            return self.build_loader(split, 0, 1) is not None
        return self.build_dataset(split) is not None

    def own_loader(self, split: Split, shard_index: int, num_shards: int) -> Collection[Any]:
        """Return what `build_loader` builds; a WorkloadError where it cannot be trained from."""
        assert self.build_loader is not None
        loader: Any = self.build_loader(split, shard_index, num_shards)
        try:
            num_batches = len(loader) if hasattr(loader, "__iter__") else 0
        except TypeError:
            num_batches = 0
        if num_batches == 0:
            kind = "None" if loader is None else f"a {type(loader).__name__}"
            call = f"build_loader({split!r}, {shard_index}, {num_shards})"
            due = "an iterable of at least one batch, with a __len__ that says when an epoch ends"
            raise WorkloadError(f"workload {self.name!r}: {call} returned {kind}; return {due}")
        return cast("Collection[Any]", loader)


# Each field but the name with what it may be, in words and as a test.
_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("build_model", "build_dataset", "loss", "build_optimizer"), ("a callable", callable)
    ),
    "build_loader": ("None or a function of (split, shard_index, num_shards)", optional(callable)),
    "blocks": ("None or a function from the model to a list of its modules", optional(callable)),
    "micro_batch_size": ("a whole number from 1", is_int_from(1)),
    "metric": (
        "'accuracy', 'none' or a function of (outputs, targets)",
        lambda value: value in ("accuracy", "none") or callable(value),
    ),
    "parallelize": ("None or a function from (model, mesh) to the model", optional(callable)),
}

WorkloadFactory = Callable[[], Workload]

# References, so that naming a built-in workload imports nothing.
_BUILT_IN = {
    "toy-mlp": "perfsuite.worker.workloads.mlp:toy_mlp",
    "lenet-digits": "perfsuite.worker.workloads.lenet:lenet_digits",
    "lenet-digits-affine": "perfsuite.worker.workloads.lenet:lenet_digits_affine",
    "lenet-mnist": "perfsuite.worker.workloads.lenet:lenet_mnist",
    "lenet-mnist-affine": "perfsuite.worker.workloads.lenet:lenet_mnist_affine",
    "transformer-tiny": "perfsuite.worker.workloads.transformer:transformer_tiny",
    "transformer-tiny-lora": "perfsuite.worker.workloads.transformer:transformer_tiny_lora",
    "resnet18": "perfsuite.worker.workloads.resnet:resnet18",
}
_REGISTERED: dict[str, WorkloadFactory] = {}


def workload(name: str) -> Callable[[WorkloadFactory], WorkloadFactory]:
    """Return a decorator that registers a function, which returns a `Workload`, under `name`.

    Raises a WorkloadError for an empty name, one with a colon, or a built-in one's.
    """
    if not isinstance(name, str) or not name or ":" in name or name in _BUILT_IN:
        advice = "use a non-empty name without a colon that no built-in workload has"
        raise WorkloadError(f"cannot register a workload as {name!r}; {advice}")

    def register(factory: WorkloadFactory) -> WorkloadFactory:
        _REGISTERED[name] = factory
        return factory

    return register


def workload_names() -> list[str]:
    """Return all names that can be given for a workload now, sorted."""
    return sorted({*_BUILT_IN, *_REGISTERED})


def find_workload(reference: str | Workload) -> Workload | WorkloadFactory | str:
    """Return what a rank needs to build the workload; nothing is imported or built here.

    An object stays itself, a registered name becomes its factory, a built-in name and
    "package.module:attribute" become a reference to import in the rank. Raises a WorkloadError
    where the name is unknown, or the reference is neither a name nor a Workload.
    """
    if isinstance(reference, Workload):
        return reference
    if not isinstance(reference, str):
        found = f"workload is {reference!r}; use a name, a perfsuite.Workload or 'module:attribute'"
        raise WorkloadError(found)
    known = _BUILT_IN | _REGISTERED
    module, _, attribute = reference.partition(":")
    if reference in known:
        return known[reference]
    if all(name.isidentifier() for name in (*module.split("."), *attribute.split("."))):
        return reference
    names = ", ".join(workload_names())
    others = "'package.module:attribute', or register it with @perfsuite.workload"
    raise WorkloadError(f"workload {reference!r} is not known; use one of {names}, or {others}")


def load_workload(found: Workload | WorkloadFactory | str) -> Workload:
    """Return the workload, importing and calling what `find_workload` returned. Runs in a rank.

    Raises a WorkloadError where the module or attribute does not exist, or leads to no Workload.
    """
    source = getattr(found, "__qualname__", repr(found))
    due = "a perfsuite.Workload or a function without arguments that returns one"
    value: Any = _import_reference(found) if isinstance(found, str) else found
    if callable(value) and not isinstance(value, Workload):
        try:
            inspect.signature(value).bind()
        except (TypeError, ValueError) as error:
            refusal = f"{source} cannot be called without arguments ({error})"
            raise WorkloadError(f"{refusal}; name {due}") from error
        value = value()
    if not isinstance(value, Workload):
        raise WorkloadError(f"{source} is of the type {type(value).__name__}, not {due}")
    return value


def _import_reference(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        places = "the current directory, pytest's rootdir or the installed packages"
        if (stem := module.removesuffix(".py")) != module:
            places += f"; name the module: {stem.replace('/', '.')}:{attribute}"
        found = f"workload {reference!r}: there is no module {error.name!r}"
        raise WorkloadError(f"{found} in {places}") from error
    try:
        return attrgetter(attribute)(value)
    except AttributeError as error:
        raise WorkloadError(f"workload {reference!r}: {module!r} has no {attribute!r}") from error
