"""The random numbers that a model draws, operator by operator, and whether it communicates itself.

A dropout mask, noise, a permutation: whatever moves a generator of torch. The operators run as they
would without being seen, and leave the generators where they would have left them.
"""

import functools
import itertools
import pickle
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from perfsuite.units import listed
from perfsuite.worker.measure import dispatch

# Operators of torch that compute with what they draw and do not return it.
_KEEP_TO_THEMSELVES = ("attention", "dropout", "rnn", "rrelu")
# The arguments that their integers, which may be indices of samples, are below.
_BOUNDS = frozenset({"n", "high", "to"})


class Draw(NamedTuple):
    """What one call of an operator drew."""

    operator: str  # such as "aten.bernoulli_"
    arguments: tuple[float, ...]  # its floating ones: a probability, a mean
    bound: int | None  # integers that it draws are below this
    values: Tensor | None  # on the CPU, masks as booleans; None if the operator hides them
    stage: int = 0  # of the pipeline, 0 where the model is whole


class Call(NamedTuple):
    """A call of an operator that drew random numbers."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def describe(self, values: Tensor | None, stage: int = 0) -> Draw:
        """The call with the values that it drew."""
        declared = self.func._schema.arguments  # some are left out, at their defaults
        given = {one.name: one.default_value for one in declared if one.has_default_value()}
        given |= {one.name: value for one, value in zip(declared, self.args, strict=False)}
        given |= self.kwargs
        bounds = (value for name, value in given.items() if name in _BOUNDS)
        if self.func.overloadpacket.__name__ == "multinomial":
            bounds = iter(self.args[0].shape[-1:])
        return Draw(
            operator=str(self.func.overloadpacket),
            arguments=tuple(value for value in given.values() if isinstance(value, float)),
            bound=next(bounds, None),
            values=values,
            stage=stage,
        )

    def copy_drawn(self) -> Tensor | None:
        """The drawn values on the CPU, masks as booleans; None where the operator has no tensor."""
        drawn, name = self.drawn(), self.func.overloadpacket.__name__
        if drawn is None or not name.startswith("bernoulli"):
            return None if drawn is None else drawn.detach().to("cpu", copy=True)
        return drawn.detach().cpu().bool()

    def drawn(self) -> Tensor | None:
        """The tensor that holds the drawn values; None where none does."""
        if (name := self.func.overloadpacket.__name__) == "native_dropout":
            return self.result[1]  # type: ignore[no-any-return]
        keeps = self.func.namespace != "aten" or any(part in name for part in _KEEP_TO_THEMSELVES)
        return None if keeps or not isinstance(self.result, Tensor) else self.result

    def put(self, values: Tensor) -> None:
        """Let the call have drawn these values."""
        drawn = self.drawn()
        assert drawn is not None
        values = values.to(drawn.device, drawn.dtype)
        if torch.equal(drawn, values):
            return
        drawn.copy_(values)
        if drawn is not self.result:  # native_dropout, which has multiplied by its mask
            inputs, probability = self.args[:2]
            self.result[0].copy_(inputs * (values.to(inputs.dtype) * (1 / (1 - probability))))


class DrawMode(dispatch.StepMode):  # type: ignore[no-untyped-call]
    """Sees each operator that moves a generator of torch while it runs on a device; counts all."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.num_calls: Counter[str] = Counter()
        self.communicating: set[str] = set()  # modules of users, in forward passes
        self._device = device

    @abstractmethod
    def handle(self, call: Call, state: bytes) -> None:
        """Take a call that drew, and change its result if need be.

        `state` is that of the generators before it: where a forward pass is computed again, its
        draws meet the states that they met the first time.
        """

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operator's result, after `handle` was called if it drew anything."""
        self.num_calls[func.name()] += 1
        if not _may_draw(func):
            result = func(*args, **kwargs)
            caller = dispatch.find_caller() if dispatch.is_communication(func) else None
            if caller is None:
                dispatch.await_collective(func, result)
            elif not in_backward():  # whether its own collectives are waited for is the user's
                self.communicating.add(caller)
            return result
        before = self._read_generators(args, kwargs)
        result = func(*args, **kwargs)
        # Attention draws only with dropout. Of no samples, as an expert may see, nothing is drawn.
        is_empty = isinstance(result, Tensor) and result.numel() == 0
        has_own_state = "_cudnn_rnn" in func.name()  # seeded by a call that need not be this one
        moved = self._read_generators(args, kwargs) != before
        if is_empty or moved or (has_own_state and _has_dropout(func, args)):
            self.handle(Call(func, args, kwargs, result), before)
        return result

    def _read_generators(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        generators = [torch.default_generator]
        if self._device.type == "cuda":
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        given = (*args, *kwargs.values())
        generators += [value for value in given if isinstance(value, torch.Generator)]
        return b"".join(generator.get_state().numpy().tobytes() for generator in generators)


class DrawRecorder(DrawMode):  # type: ignore[no-untyped-call]
    """Keeps what each micro-batch of a training run draws in its forward pass and its loss.

    `entries` are the modules that the step calls, with the stage of each; a further call of one is
    another chunk of the micro-batch.
    """

    def __init__(
        self, entries: Sequence[nn.Module], stages: Sequence[int], device: torch.device
    ) -> None:
        super().__init__(device)
        self._stages = stages
        for index, entry in enumerate(entries):
            entry.register_forward_pre_hook(functools.partial(self._enter, index))

    @contextmanager
    def micro_batch(self) -> Iterator[list[list[Draw]]]:
        """Give the draws of each chunk."""
        self._chunks: list[list[Draw]] = [[]]
        self._num_calls = [0] * len(self._stages)
        self._stage, self._current, self._is_probe = 0, self._chunks[0], False
        with self:
            yield self._chunks

    def handle(self, call: Call, state: bytes) -> None:
        """Keep what was drawn; a recomputation is to draw the same, or its gradients are wrong."""
        if not (self._is_probe or in_backward()):
            self._current.append(call.describe(call.copy_drawn(), self._stage))

    def _enter(self, index: int, module: nn.Module, args: Any) -> None:
        # A pipeline learns the shapes of activations from a pass without gradients.
        self._is_probe = not torch.is_grad_enabled()
        if self._is_probe or in_backward():
            return
        chunk = self._num_calls[index]
        self._num_calls[index] += 1
        self._chunks += [[] for _ in range(len(self._chunks), chunk + 1)]
        self._stage, self._current = self._stages[index], self._chunks[chunk]


def in_backward() -> bool:
    """Whether autograd is running, so that a forward pass seen now is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def join_ranks(ranks: Sequence[list[list[Draw]]]) -> tuple[list[list[Draw]], dict[int, str]]:
    """The draws of a batch that several ranks computed, chunk by chunk in the order of the stages.

    And by rank the first operator that drew other numbers in a stage that an earlier rank has too.
    """
    chunks: list[list[Draw]] = []
    differing: dict[int, str] = {}
    for parts in itertools.zip_longest(*ranks, fillvalue=()):
        joined: dict[int, list[Draw]] = {}
        for rank, part in enumerate(parts):
            for stage, group in itertools.groupby(part, key=lambda draw: draw.stage):
                draws = list(group)
                earlier = joined.setdefault(stage, draws)
                for mine, its in itertools.zip_longest(draws, earlier):
                    if not (mine and its and same_numbers(mine.values, its.values)):
                        differing.setdefault(rank, (mine or its).operator)
        chunks.append([draw for stage in sorted(joined) for draw in joined[stage]])
    return chunks, differing


def same_numbers(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are the same numbers, or unknown."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(one, other)


def _has_dropout(func: Any, args: tuple[Any, ...]) -> bool:
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
    return bool(given.get("train") and given.get("dropout"))


@functools.cache
def _may_draw(func: Any) -> bool:
    is_overload = isinstance(func, torch._ops.OpOverload)
    return is_overload and torch.Tag.nondeterministic_seeded in func.tags


# The states of the global generators at one moment, pickled, by the module that draws.
RandomState = dict[str, bytes]


def read_random_state(device: torch.device) -> RandomState:
    """Return the present state of all generators."""
    states = {
        "random": random.getstate(),
        "numpy.random": numpy.random.get_state(),
        "torch": torch.get_rng_state().numpy(),
    }
    if device.type == "cuda":
        states["torch.cuda"] = torch.cuda.get_rng_state(device).numpy()
    return {module: pickle.dumps(state) for module, state in states.items()}


def restore_random_state(state: RandomState, device: torch.device) -> None:
    """Set all generators to a state that was read before."""
    states = {module: pickle.loads(pickled) for module, pickled in state.items()}
    random.setstate(states["random"])
    numpy.random.set_state(states["numpy.random"])
    torch.set_rng_state(torch.tensor(states["torch"]))
    if "torch.cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(torch.tensor(states["torch.cuda"]), device)


def draw_one(device: torch.device) -> None:
    """Move all generators on, so that what is drawn next are other numbers."""
    random.random()
    numpy.random.random()
    torch.rand((), device=device)


def modules_that_drew(before: RandomState, after: RandomState) -> list[str]:
    """Return the modules that drew random numbers between two states."""
    return [module for module, state in before.items() if after.get(module, state) != state]


def describe_dropout(model: nn.Module) -> str | None:
    """Return which modules drop elements at random, and what to do; None without any."""
    active = []
    for name, one in model.named_modules():
        # An nn.MultiheadAttention or nn.LSTM has the number itself.
        name_of_p = "p" if isinstance(one, nn.modules.dropout._DropoutNd) else "dropout"
        share = getattr(one, name_of_p, 0.0)
        if one.training and isinstance(share, float) and share > 0:
            active.append(name)
    if not active:
        return None
    draw = f"the model has dropout ({listed(active)}), and ranks and reference draw different masks"
    return f"{draw}; build both with p=0"
