"""Counts that do not depend on how fast the machine is. Nothing is timed here."""

import gc
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from perfsuite.ranks.messages import Watched
from perfsuite.records.stages import untimed
from perfsuite.worker.measure import dispatch
from perfsuite.worker.measure.clock import collector_off
from perfsuite.worker.measure.iterations import Iterations
from perfsuite.worker.measure.memory import Storages, storages_in
from perfsuite.worker.measure.operators import read_trace

# Markers of the profiler, and queries about a tensor (prim::device), which run no kernel.
_BOOKKEEPING_NAMESPACES = frozenset({"profiler", "prim"})

_NUM_LOOKS = 3
# They multiply inside, and torch has no formula for them.
_WITHOUT_FORMULA = (
    *("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_trilinear", "_addmm_activation"),
    *("_grouped_mm", "_scaled_grouped_mm", "_native_multi_head_attention"),
    *("_transformer_encoder_layer_fwd", "_fft_c2c", "_fft_c2r", "_fft_r2c"),
    *("_linalg_solve_ex", "linalg_inv_ex", "linalg_cholesky_ex", "linalg_qr", "_linalg_svd"),
)
# What torch calls the pass outside of any.
_NO_BACKWARD = -1

# The CUDA runtime's and driver's calls that launch one kernel, as CUPTI names them (CUDA Runtime
# API, "Execution Control"; CUDA Driver API, "Execution Control").
_KERNEL_LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel"),
    *("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"),
)
# Those in which the host waits for the device (likewise, "Device", "Stream" and "Event Management";
# `cudaMemcpy` waits for its copy).
_HOST_SYNCS = (
    *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
    *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"),
)
_COPIES = ("Memcpy HtoD", "Memcpy DtoH")
# Categories of what CUPTI saw: calls of CUDA, and what they started.
_OF_CUDA = ("cuda_", "kernel", "gpu_")
_ITERATION = "perfsuite: iteration", "user_annotation"


@dataclass(kw_only=True, unsafe_hash=True)
class IterationCounts:
    """Counts of one iteration on one rank, as in `records.cell.Counts`, and its `watched_s`."""

    ops: int = 0
    flops: int = 0
    model_flops: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    watched_s: Watched = field(compare=False)
    without_formula: str | None = None  # an operator whose FLOPs are in none of these
    frees_late: bool = False  # another stream may use memory that the training has given back
    in_threads: bool = False  # a module with parameters ran in another thread


def count_iteration(made: Storages | None = None) -> Iterations[IterationCounts]:
    """Return the counts of one iteration on this rank; every rank must run it.

    The storages that its operators make are put into `made`, which keeps none alive.

    Which operators and FLOPs count: decision 0004; what is not seen: `StepMode`. Two iterations run
    before it: after the first DDP rebuilds its buckets, and in it DTensor learns shapes.
    """
    counter, own = _Counter(made), threading.get_ident()

    def look(module: Any, _: object) -> None:
        # DataParallel's replicas have them elsewhere; autograd's threads, which recompute, count.
        parameters = getattr(module, "_former_parameters", module._parameters)
        is_other = threading.get_ident() != own and torch._C._current_graph_task_id() == -1
        counter.found.in_threads |= bool(parameters) and is_other

    stance = torch.compiler.set_stance("force_eager")
    with register_module_forward_pre_hook(look), stance, counter, counter.stage("other"):
        yield counter.stage
    whole, *stages = counter.watched_s.pop("other"), *counter.watched_s.values()
    own_s, inside_s, num = (one - sum(parts) for one, *parts in zip(whole, *stages, strict=True))
    counter.watched_s["other"] = own_s, inside_s, int(num)
    counter.found.model_flops = counter.found.flops - counter.recomputed_flops()
    return counter.found


def count_garbage() -> Iterations[int]:
    """Return how many objects of one iteration only Python's collector can free."""
    found = []  # of several, the fewest: the start of an epoch makes some of its own
    with collector_off():
        for _ in range(_NUM_LOOKS):
            yield untimed
            found.append(gc.collect())
    return min(found)


def count_device_calls(device: torch.device) -> Iterations[dict[str, int]]:
    """Return what `count_events` finds in one iteration on a GPU; nothing of another device."""
    if device.type != "cuda":
        return {}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=activities) as profiler:
        with torch.profiler.record_function(_ITERATION[0]):
            yield untimed
        torch.cuda.synchronize(device)
    # The events in memory have the sizes of copies in another place in each version of torch.
    return count_events(json.loads(read_trace(profiler))["traceEvents"])


def count_events(events: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the launches of kernels, waits and copies in a trace; nothing where CUPTI saw none.

    `events` are in Chrome's trace format. Kernels of replayed CUDA graphs are no launches.
    """
    timed = [event for event in events if "dur" in event]
    # What comes after is the profiler's own wait. A GPU has a range of the same name.
    (iteration,) = (one for one in timed if (one["name"], one["cat"]) == _ITERATION)
    within = [event["name"] for event in timed if event["ts"] < iteration["ts"] + iteration["dur"]]
    copies = [event for event in timed if event["name"].startswith(_COPIES)]
    if not any(event.get("cat", "").startswith(_OF_CUDA) for event in timed):
        return {}
    return {
        "kernel_launches": sum(name in _KERNEL_LAUNCHES for name in within),
        "host_syncs": sum(name in _HOST_SYNCS for name in within),
        "device_copies": len(copies),
        "device_copy_bytes": sum(event["args"]["bytes"] for event in copies),
    }


def read_compilation() -> tuple[dict[str, int], float] | None:
    """Return the counts of torch.compile in this process so far, and the seconds that it took.

    Backward passes are included; None where it did nothing.
    """
    # Only what compiles has loaded it, which takes a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters["frames"]:
        return None
    times_compiled = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER.values()
    counts = {
        "graph_breaks": sum(dynamo.counters["graph_break"].values()),
        "recompiles": sum(times - 1 for times in times_compiled),
    }
    return counts, dynamo.calculate_time_spent()["total_wall_time"]


def compiles_itself(model: Any) -> bool:
    """Return whether a module of it is compiled: by `Module.compile`, or by torch.compile."""
    modules = model.modules()
    return any(one._compiled_call_impl is not None or hasattr(one, "_orig_mod") for one in modules)


class _Counter(dispatch.StepMode):  # type: ignore[no-untyped-call]
    def __init__(self, made: Storages | None) -> None:
        super().__init__()
        self._made = made
        # It imports triton, and a gate's later launches count nothing.
        from torch.utils.flop_counter import flop_registry

        # torch 2.15 is the first to count what fused attention computes on a CPU (issue 195460).
        name, aten = "_scaled_dot_product_flash_attention", torch.ops.aten
        self._formulas = {
            getattr(aten, f"{name}_for_cpu{end}"): flop_registry[getattr(aten, f"{name}{end}")]
            for end in ("", "_backward")
        } | flop_registry
        # Of a matrix or a vector by a vector, which torch has no formula for.
        self._formulas |= dict.fromkeys((aten.mv, aten.dot), lambda one, _, **__: 2 * one.numel())
        self._formulas[aten.addmv] = lambda _, matrix, *__, **___: 2 * matrix.numel()
        self.found, self._scores_flops = IterationCounts(watched_s=self.watched_s), 0
        # By backward pass, of operators that autograd records; and the passes with others.
        self._recorded_flops: Counter[int] = Counter()
        self._plain_passes: set[int] = set()

    def recomputed_flops(self) -> int:
        # A backward pass records only those, unless it is differentiated itself: then all it does.
        recorded = self._recorded_flops.items()
        return self._scores_flops + sum(flops for it, flops in recorded if it in self._plain_passes)

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        formula = func  # a higher-order operator (flex_attention) has no overloads
        if isinstance(func, torch._ops.OpOverload):
            if func.namespace in _BOOKKEEPING_NAMESPACES:
                return func(*args, **kwargs)
            formula = func.overloadpacket
            if formula not in self._formulas:
                # Under inference_mode composite operators arrive whole, otherwise in parts.
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        result = self.run(func, args, kwargs)
        self.found.ops += 1
        self.found.frees_late |= formula is torch.ops.aten.record_stream
        if self._made is not None:
            given = {id(it) for it in storages_in((args, kwargs))}
            made = {id(it): it for it in storages_in(result)}
            self._made.update((number, it) for number, it in made.items() if number not in given)
        if dispatch.is_communication(func):
            self.found.collectives += 1
            self.found.collective_bytes += dispatch.communicated_bytes(args, kwargs, result)
        backward = torch._C._current_graph_task_id()
        if not torch.is_grad_enabled():
            self._plain_passes.add(backward)
        if formula in self._formulas:
            flops = self._formulas[formula](*args, **kwargs, out_val=result)
            self.found.flops += flops
            self._scores_flops += _scores_flops(formula, args, flops)
            if backward != _NO_BACKWARD and torch.is_grad_enabled():
                self._recorded_flops[backward] += flops
        elif str(formula).removeprefix("aten.") in _WITHOUT_FORMULA:
            self.found.without_formula = str(formula)
        return result


def _scores_flops(formula: Any, args: tuple[Any, ...], flops: int) -> int:
    """The part of a fused attention's backward pass that computes the scores again, else 0."""
    name = str(formula)
    if not re.search("att(n|ention).*backward", name):
        return 0
    first = 0 if "flex" in name else 1  # the others begin with the gradient
    query_width, value_width = (int(args[first + place].shape[-1]) for place in (0, 2))
    # Of five products, q k^T and those of the gradients of q and k are as wide as q, the other two
    # as v (torch.utils.flop_counter.sdpa_backward_flop_count).
    return flops * query_width // (3 * query_width + 2 * value_width)
