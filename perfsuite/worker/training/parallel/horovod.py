"""Horovod's way: a hook starts averaging each gradient in backward, the step waits for it.

Sergeev and Del Balso 2018. Over torch.distributed ("horovod-like"), and the package ("horovod").
"""

import importlib
import os
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.errors import NotExercisedError, RecipeError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training.parallel.strategy import Strategy, refuse_sparse_gradients


class HorovodLike(Strategy):
    """The `Strategy` of "horovod-like": averages each gradient once backward accumulated it."""

    # Unlike in Horovod nothing is negotiated: all ranks need the same gradients in the same order.
    _is_last = True

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, with rank 0's weights and a hook on each of its parameters."""
        refuse_sparse_gradients(model, self.recipe)
        for tensor in (*model.parameters(), *model.buffers()):
            whole = tensor.detach().contiguous()  # NCCL refuses gaps, and another order
            dist.broadcast(whole, src=0)
            tensor.detach().copy_(whole)
        self._pending: list[dist.Work] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._start_averaging)  # type: ignore[no-untyped-call]
        return model

    def set_reduction(self, is_last: bool) -> None:
        """Average the gradients in the last micro-batch alone."""
        self._is_last = is_last

    def finish_gradients(self) -> None:
        """Wait for the averages, which unscaling and clipping need before the step."""
        for work in self._pending:
            work.wait()
        self._pending.clear()

    @torch.no_grad()
    def _start_averaging(self, parameter: Tensor) -> None:
        if not self._is_last:
            return
        assert parameter.grad is not None
        # Collectives refuse other memory formats, such as channels_last. The division comes before
        # the sum, which would otherwise overflow in float16.
        parameter.grad = parameter.grad.contiguous().div_(self.num_shards)
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None
        self._pending.append(work)


class Horovod(Strategy):
    """The `Strategy` of "horovod": the package's own DistributedOptimizer."""

    _model: nn.Module
    _optimizer: Any

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        super().__init__(workload, recipe, device)
        try:
            self._horovod = importlib.import_module("horovod.torch")
        except ImportError as error:  # it is there, and was not built for this torch
            found = f"parallel {recipe.parallel!r} needs the package horovod"
            raise NotExercisedError(f"{found}, which cannot be imported: {error}") from error
        _initialise(self._horovod, recipe)
        self._kept_open = ExitStack()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, with rank 0's weights."""
        self._horovod.broadcast_parameters(model.state_dict(), root_rank=0)
        self._model = model
        return model

    def build_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The workload's optimizer in Horovod's."""
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        if any(parameter not in names for parameter in parameters):
            raise RecipeError(
                f"precision {self.recipe.precision!r} cannot be combined with parallel "
                f"{self.recipe.parallel!r}: Horovod's hooks sit on the parameters that are "
                "stepped, and master weights are copies; use "
                f"parallel='horovod-like:{self.recipe.plan.size}'"
            )
        self._optimizer = self._horovod.DistributedOptimizer(
            super().build_optimizer(parameters),
            named_parameters=[(names[parameter], parameter) for parameter in parameters],
            backward_passes_per_step=self.recipe.grad_accumulation_steps,
        )
        # `finish_gradients` always synchronises before the step, so the step must not.
        self._kept_open.enter_context(self._optimizer.skip_synchronize())
        optimizer: Optimizer = self._optimizer
        return optimizer

    def finish_gradients(self) -> None:
        """Wait for the averages, which unscaling and clipping need before the step."""
        self._optimizer.synchronize()


def _initialise(horovod: ModuleType, recipe: Recipe) -> None:
    # Horovod reads its ranks and its rendezvous from the environment alone, where `horovodrun` sets
    # them (create_run_envs and create_slot_env_vars of horovod/runner/gloo_run.py).
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    port: list[Any] = [None]
    if rank == 0:
        hosts = importlib.import_module("horovod.runner.common.util.hosts")
        server = importlib.import_module("horovod.runner.http.http_server").RendezvousServer()
        port[0] = server.start()
        slots = hosts.parse_hosts(f"localhost:{num_ranks}")
        server.init(hosts.get_host_assignments(slots, num_ranks))
    dist.broadcast_object_list(port, src=0)
    # The options of Horovod's own launcher; all ranks are of this machine.
    own: dict[str, Any] = {"HOSTNAME": "localhost", "GLOO_IFACE": "lo", "CONTROLLER": "gloo"}
    own |= {"RANK": rank, "LOCAL_RANK": rank, "CROSS_RANK": 0, "CPU_OPERATIONS": "gloo"}
    own |= {"SIZE": num_ranks, "LOCAL_SIZE": num_ranks, "CROSS_SIZE": 1}
    own |= {"GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": port[0]}
    os.environ |= {f"HOROVOD_{name}": str(value) for name, value in own.items()}
    horovod.init()
    if horovod.size() != num_ranks:
        raise NotExercisedError(
            f"parallel {recipe.parallel!r}: horovod sees {horovod.size()} ranks instead of "
            f"{num_ranks}; is it built with gloo (`horovodrun --check-build`)?"
        )
