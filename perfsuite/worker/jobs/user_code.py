"""A user's own training step, or whole loop, as an activity of a cell. Runs in a rank."""

import inspect
import math
import numbers
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from perfsuite.errors import NonFiniteError, PerfsuiteError, WorkloadError
from perfsuite.ranks.messages import COUNTED, RankStart, UserCode
from perfsuite.ranks.pickling import unpack
from perfsuite.records.cell import TensorDigest
from perfsuite.records.stages import Stage, Step, StopLoop, listening, untimed
from perfsuite.units import counted
from perfsuite.worker.jobs import activities
from perfsuite.worker.jobs.loader_workers import let_children_be_loader_workers
from perfsuite.worker.measure.iterations import Iterations
from perfsuite.worker.measure.weights_digest import WeightDigests
from perfsuite.worker.store import Largest, join_ranks
from perfsuite.worker.training.nonfinite import ADVICE
from perfsuite.worker.training.optimizers import is_within_another
from perfsuite.worker.training.trainer import seed_random_numbers

# A critic may step more often than a generator, whose steps are counted; a loop without an end
# would never say that its optimizer steps no more.
_MOST_OTHERS = 20
_MOST_ACCUMULATED = 256  # steps that an optimizer may wait for


def start_user_code(code: UserCode, start: RankStart) -> activities.Activity:
    """Return the step that a user's function builds, or the loop that it is."""
    function = load_function(code, start)
    is_gated = start.request.policy.turns is not None
    if code.kind == "step":
        return UserStep(code, function, digests_weights=is_gated)
    largest = None if code.world_size == 1 else join_ranks(start)
    return UserLoop(code, function, largest, digests_weights=is_gated)


def load_function(code: UserCode, start: RankStart) -> Callable[[], Any]:
    """Return the user's function, which may draw random numbers from the cell's seed on."""
    let_children_be_loader_workers(start.folder, start.cores)
    function: Callable[[], Any] = unpack(code.function)
    seed_random_numbers(start.seed)
    return function


class _UserCode(activities.Activity):
    """What a step and a loop have in common: stages that they mark, losses, weights."""

    def __init__(self, code: UserCode, num_digested: int) -> None:
        super().__init__()
        self._name, self.global_batch_size = code.name, code.samples_per_step
        self._stage: Stage = untimed
        self._span: AbstractContextManager[None] | None = None
        self._span_name = ""
        self._thread = threading.get_ident()
        self._told: Any = None
        self._unchecked: list[Any] = []
        self._last_loss, self._changed_at = math.nan, 0  # and the step that first had it
        self._weights = WeightDigests(num_digested)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time a part of the step; another thread's would be timed twice."""
        return _MarkedStage(self, name) if threading.get_ident() == self._thread else nullcontext()

    def _leave(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)

    def log_loss(self, loss: Any) -> None:
        """Keep the step's loss, without its graph; it is read later."""
        is_tensor = isinstance(loss, Tensor)
        if not (loss.numel() == 1 if is_tensor else isinstance(loss, numbers.Real)):
            what = f"of shape {tuple(loss.shape)}" if is_tensor else repr(loss)
            advice = "give a single number, returned alone or told by perfsuite.log_loss"
            raise WorkloadError(f"{self._name}: a step's loss is {what}; {advice}")
        self._told = activities.keep_loss(loss) if is_tensor else loss

    def step_done(self) -> None:
        """Do nothing: a step ends where its function returns."""

    def _end_step(self) -> None:
        self._unchecked.append(self._told)
        self._told = None

    def check(self) -> None:
        for number, told in enumerate(self._unchecked, self.losses.num_steps + 1):
            if told is not None and (loss := float(told)) != self._last_loss:
                if not math.isfinite(loss):
                    raise NonFiniteError(f"the loss is {loss} at step {number}; {ADVICE}")
                self._last_loss, self._changed_at = loss, number
        self.losses.add(self._unchecked)
        self._unchecked.clear()

    def digests(self) -> dict[int, tuple[TensorDigest, ...]]:
        """Return those of the optimizers that had stepped by then."""
        return self._weights.by_step


class _MarkedStage:
    """A stage that is marked now. It is no generator, which would take longer, within the step."""

    __slots__ = ("_code", "_name")

    def __init__(self, code: _UserCode, name: str) -> None:
        self._code, self._name = code, name

    def __enter__(self) -> None:
        code, name = self._code, self._name
        span = code._stage(name)
        span.__enter__()
        code._span, code._span_name = span, name

    def __exit__(self, *exception: object) -> None:
        self._code._leave()


class UserStep(_UserCode, activities.Repeatable):
    """A function that takes one training step each time."""

    def __init__(
        self, code: UserCode, build_step: Callable[[], Any], *, digests_weights: bool = False
    ) -> None:
        super().__init__(code, self.num_warmup if digests_weights else 0)
        self._updated_at = 0  # the last step in which an optimizer stepped
        with activities.staying(code.name):
            built = build_step()
        self._step = step = built if isinstance(built, Step) else Step(built)
        self.model = model = step.model
        if not callable(step.run):
            found = f"{code.name} returned {built!r}; return the function that takes one step"
            raise WorkloadError(f"{found}, or perfsuite.Step(run, model, optimizer)")
        if not isinstance(model, nn.Module | None):
            given = f"{code.name}: Step.model is of the type {type(model).__name__}"
            raise WorkloadError(f"{given}; give an nn.Module, or None")
        if step.optimizer is not None and not hasattr(step.optimizer, "param_groups"):
            given = f"{code.name}: Step.optimizer is of the type {type(step.optimizer).__name__}"
            raise WorkloadError(f"{given}; give one optimizer, or None: others are seen to step")
        if isinstance(step.optimizer, Optimizer):  # which may step once in many steps
            self._weights.note_update(step.optimizer)

    def run(self, asked: Iterations[None], begin_step: Callable[[], None]) -> None:
        """Take steps, and hear what they tell."""
        with register_optimizer_step_post_hook(self._note_update), listening(self):
            super().run(asked, begin_step)

    def _note_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._updated_at = self.losses.num_steps + len(self._unchecked) + 1
        if not is_within_another(optimizer):
            self._weights.note_update(optimizer)

    def check(self) -> None:
        """Check the losses, and digest the weights: in the warm-up after each step."""
        if self._unchecked:
            self._weights.end_step()
        super().check()

    def end(self, num_rounds: int) -> dict[str, str]:
        """Return that nothing is missing; raises a WorkloadError where it trains no more."""
        self._weights.end_loop(self.losses.num_steps)
        last, num_steps = max(self._updated_at, self._changed_at), self.losses.num_steps
        if self._updated_at and num_steps - last > last:
            told = "" if math.isnan(self._last_loss) else f", the loss stayed {self._last_loss:g}"
            raise WorkloadError(
                f"{self._name}: after step {last} of {num_steps} no optimizer stepped{told}, so "
                "what is timed trains nothing; does its data end? begin it again"
            )
        is_still = isinstance(self._step.optimizer, Optimizer) and not self._updated_at
        if is_still and num_steps > _MOST_ACCUMULATED:
            nothing = f"in {num_steps} steps Step.optimizer has not stepped"
            raise WorkloadError(f"{self._name}: {nothing}, so what is timed trains nothing")
        return {}

    def iterate(self, stage: Stage) -> None:
        """Take one step."""
        self._stage = stage
        self._take()
        self._end_step()

    def take(self) -> float | None:
        """Take a step that nothing measures, and return the loss that it tells."""
        with listening(self):
            self._take()
        told, self._told = self._told, None
        return None if told is None else float(told)

    def _take(self) -> None:
        with activities.staying(f"the step of {self._name}"):
            loss = self._step.run()
        if loss is not None:
            self.log_loss(loss)

    def held_tensors(self) -> Iterator[Tensor]:
        """Return those of the model and the optimizer that the user has named."""
        return activities.held_by(self.model, self._step.optimizer)


class UserLoop(_UserCode):
    """A training loop that drives itself: torch's optimizer hook, or the loop, ends its steps.

    Its first step, which may hold all that comes before the training, is not measured. That of a
    command runs already when this is made, and is not called.
    """

    def __init__(
        self,
        code: UserCode,
        train: Callable[[], object],
        largest: Largest | None,
        *,
        digests_weights: bool = False,
    ) -> None:
        super().__init__(code, code.num_warmup if digests_weights else 0)  # steps that are untimed
        assert code.num_steps is not None
        self._what, self.num_steps = code.kind, code.num_steps
        self.num_warmup = code.num_warmup - 1
        why = f"a {code.kind} takes only two steps more than the timed ones"
        self.missing = dict.fromkeys(("kernel_launches", "collected_objects", "operators"), why)
        self._train, self._largest = train, largest
        self._class_name = code.optimizer
        self._stepped: dict[str, None] = {}
        # What ends a step: the first optimizer that does, or this object where the loop says so.
        self._ends: object = None
        self._num_ends = 0
        self._groups: set[int] = set()  # that DeepSpeed has stepped since, by their first parameter
        # Steps of each optimizer that ends none, since the last end.
        self._others: Counter[int] = Counter()
        self._num_others = 0  # of them all
        self._most_others = _MOST_OTHERS * (self.num_warmup + code.num_steps)
        self._is_over = False
        self._last_thread: threading.Thread | None = None  # that ended a step
        self._error: Exception | None = None
        self._ended_by = "itself"

    def run(self, asked: Iterations[None], begin_step: Callable[[], None]) -> None:
        """Run the loop until the measurement asks for nothing more, or it ends by itself."""
        self.begin(asked, begin_step)
        hook = register_optimizer_step_post_hook(self.after_optimizer)
        try:
            with listening(self):
                ran: Any = self._train()
                if inspect.isgenerator(ran) or inspect.iscoroutine(ran):
                    ran.close()
                    kind = "a generator" if inspect.isgenerator(ran) else "an async"
                    found = f"{self._name} is {kind} function, so nothing has run"
                    raise WorkloadError(f"{found}; give a function that runs the whole loop")
        except StopLoop:
            pass
        except SystemExit as ended:
            self._ended_by = activities.describe_exit(ended)
            if ended.code and not self._is_over:
                raise WorkloadError(f"{self._name}: the loop ended by {self._ended_by}") from ended
        except Exception:
            if not self._is_over:  # else all is measured, or its error is raised below
                raise
        finally:
            hook.remove()
            asked.close()
        self.finish()

    def begin(self, asked: Iterations[None], begin_step: Callable[[], None]) -> None:
        """Have the measurement hear of the ends of steps."""
        self._asked, self._begin_step = asked, begin_step

    def finish(self) -> None:
        """Return when all ranks have ended, or raise what the measurement has raised."""
        self._asked.close()
        if self._error is not None:
            raise self._error
        try:
            self.start_together()
        except RuntimeError as error:
            if self._is_over or self._what == "command":  # of which the controller says more
                raise
            raise PerfsuiteError(
                f"{self._name}: after {self._num_ends} steps rank {os.environ['RANK']} ended by "
                f"{self._ended_by}, and another went on; give all ranks equally many steps"
            ) from error

    def after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        """End the step, if it is this optimizer that ends steps; raises StopLoop after the last."""
        if is_within_another(optimizer):
            return
        name = type(optimizer).__name__
        self._stepped[name] = None
        self._weights.note_update(optimizer)
        if self._ends is None and self._class_name in (None, name):
            self._ends = optimizer
        if optimizer is self._ends:
            if "deepspeed" not in sys.modules or not self._is_another_group(optimizer):
                self._end_step()
        elif self._others[id(optimizer)] > self._most_others:
            self._is_over, self._error = True, WorkloadError(f"{self._name}: {self._why_no_step()}")
            raise StopLoop
        if self._ends not in (optimizer, self):  # else the user says where steps end
            self._num_others += 1
        self._others[id(optimizer)] += 1

    def _is_another_group(self, optimizer: Optimizer) -> bool:
        """Whether it is one more of a step: DeepSpeed's ZeRO steps one after another."""
        group = id(next((one for it in optimizer.param_groups for one in it["params"]), None))
        is_another = bool(self._groups) and group not in self._groups
        self._groups = {*self._groups, group} if is_another else {group}
        return is_another

    def step_done(self) -> None:
        """End the step, unless an optimizer ends the steps of this loop."""
        if self._ends is None and self._class_name is None:
            self._ends = self
        if self._ends is self:
            self._end_step()

    def _end_step(self) -> None:
        """Have the measurement go on to the next step; raises StopLoop after the last."""
        if self._is_over:
            raise StopLoop
        super()._end_step()
        self._others.clear()
        # A mode that counts operators ends with its thread, or its node of a backward pass.
        last, self._last_thread = self._last_thread, threading.current_thread()
        self.is_counted = last is self._last_thread and torch._C._current_graph_task_id() == -1
        self._num_ends += 1
        self.others_per_step = self._num_others / self._num_ends
        self._weights.end_step()
        was_in_stage = self._span is not None  # as in `with stage("optimizer"): optimizer.step()`
        self._leave()
        try:
            self._stage = next(self._asked)
        except Exception as error:  # noqa: BLE001  # raised where the loop cannot handle it
            self._is_over, self._stage = True, untimed
            self._error = None if isinstance(error, StopIteration) else error
            if self._error is None:
                self._weights.end_loop(self._num_ends)
            raise StopLoop from None
        self._begin_step()
        if was_in_stage:
            _MarkedStage(self, self._span_name).__enter__()

    def start_together(self) -> None:
        """Return when all ranks have called this, after equally many steps."""
        self.largest_over_ranks([], torch.device("cpu"))

    def largest_over_ranks(self, values: Sequence[float], device: torch.device) -> list[float]:
        """Return the largest of each value over all ranks; raises where their steps differ."""
        if self._largest is None:
            return list(values)
        # By themselves: one rank may have ended where another comes with values.
        most, least = self._largest([self._num_ends, -self._num_ends])
        if most != -least:
            found = f"when one rank had taken {most:.0f} steps, another had taken only {-least:.0f}"
            advice = "give all ranks equally many steps"
            raise PerfsuiteError(f"{self._name}: {found} and waited or ended; {advice}")
        return self._largest(values) if values else []

    def held_tensors(self) -> Iterator[Tensor]:
        """Return those of the optimizer that ends a step."""
        return activities.held_by(None, None if self._ends is self else self._ends)

    def end(self, num_rounds: int) -> dict[str, str]:
        """Return what a loop that ended by itself lacks; raises a WorkloadError for too few."""
        if self._num_ends == 0:
            raise WorkloadError(f"{self._name}: {self._why_no_step()}")
        taken = f"the {self._what} ended by {self._ended_by} after {self._num_ends} steps"
        if num_rounds < 2:
            few = f"{taken}, too few for two rounds after {self.num_warmup + 1} to warm up"
            advice = "let it take more, also when resumed, or ask for fewer (warmup=, steps=)"
            raise WorkloadError(f"{self._name}: {few}; {advice}")
        why_missing = f"{taken}, before the two that are counted"
        if self._is_over:
            where = "within the backward pass, or each step has a thread of its own"
            why_missing = f"its optimizer steps {where}, where operators cannot be watched"
        return {} if self._is_over and self.is_counted else dict.fromkeys(COUNTED, why_missing)

    def _why_no_step(self) -> str:
        if self._num_ends > 0:
            return (
                f"the optimizer that ends its steps stepped {counted(self._num_ends, 'time')} and "
                "no more, while others went on; keep one for the whole loop, or name the class of "
                "one that steps throughout (optimizer=)"
            )
        what, others = self._what, " and ".join(self._stepped)
        if self._class_name and others:
            return f"no {self._class_name} stepped in the {what} (optimizer=), but {others} did"
        advice = "call perfsuite.step_done() at the end of each step"
        return f"no torch optimizer stepped in the {what}; {advice}"
