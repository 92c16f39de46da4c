"""The gate on training loops of a user's own: two arms that take turns at step borders.

One session has all cells, each with a part of the change. Times may differ by any factor
that a machine makes, up to ten: what decides is 100 times the work.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_repository import make_shop
from json_schemas import assert_results_valid

pytestmark = pytest.mark.slow

# Of each module what the base has, and head in its place.
CHANGES = {
    "work": ("30_000", "3_000_000"),
    "length": ("40", "26"),
    "twin": ("same", "the same"),
    "names": ("outputs", "scores"),
    "sums": ("(first + second) + third", "first + (second + third)"),
    "rate": ("RATE = 0.1", "RATE = 0.11"),
    "breaks": ("# whole", "torch._dynamo.graph_break()"),
    "heap": ("gc.disable()", "pass"),
    "tidy": ("pass", "gc.collect()"),
    "batches": ("8", "8 if num_steps < 40 else 4"),
    "frozen": ("99", "9"),
    "norms": ("0.1", "0.001"),
    "means": ("0.1", "0.0"),
    "tracking": ("True", "False"),
    "history": ("-1:", ":0"),
    "masks": ("False", "True"),
    "held": ("False", "True"),
}
MODULES = {
    "work": "def think():\n    sum(range(30_000))\n",
    "length": "NUM_STEPS = 40\n",
    "twin": "# same\n",
    "names": "def score(network, inputs):\n    outputs = network(inputs)\n    return outputs\n",
    "sums": "def add(first, second, third):\n    return (first + second) + third\n",
    "rate": "RATE = 0.1\n",
    "breaks": (
        "import torch\n\n@torch.compile(backend='eager')\ndef score(network, inputs):\n"
        "    outputs = network(inputs)\n    # whole\n    return outputs.tanh()\n"
    ),
    # Many objects live on, and each step makes more, which Python's collector would look at.
    "heap": (
        "import gc\n\ndef set_up():\n    gc.disable()\n"
        "    return [[number] for number in range(300_000)]\n\n"
        "def think(kept):\n    kept.append([[number] for number in range(40_000)])\n"
        "    del kept[300_000:-5]\n"
    ),
    "tidy": "import gc\n\ndef tidy():\n    pass\n",
    "frozen": "FROM_STEP = 99\n",
    # What only an evaluation would show, and a constant that becomes a buffer.
    "norms": "MOMENTUM = 0.1\n",
    "means": "MOMENTUM = 0.1\n",
    "tracking": "IS_ON = True\n",
    "history": (
        "import torch\n\nKEPT = []\n\ndef keep():\n"
        "    KEPT.append(torch.zeros(4096))\n    del KEPT[-1:]\n"
    ),
    "masks": "IS_BUFFER = False\n",
    "batches": "def size_after(num_steps):\n    return 8\n",
    # A layer without a gradient: in a warm-up of the learning rate no loss shows it.
    "held": "IS_HELD = False\n",
}
CELLS = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    import perfsuite

    pytestmark = pytest.mark.perf(tolerance="99%", limit="1000%")

    def train(
        think=lambda: None, num_steps=40, rate=0.1, score=None, add=sum, tells=1, frozen=99, norm=()
    ):
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        network = torch.nn.Linear(4, 4)
        if norm:
            network = torch.nn.Sequential(network, *norm)
        if dist.is_initialized():
            network = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=rate)
        for number in range(num_steps):
            if number == frozen:
                network.weight.requires_grad_(False)
            inputs = torch.randn(8, 4)
            with perfsuite.stage("forward"):
                think()
                outputs = network(inputs) if score is None else score(network, inputs)
                loss = add(*outputs.square().mean(dim=0)[:3]) if add is not sum else outputs.std()
            optimizer.zero_grad()
            loss.backward()
            if tells:
                perfsuite.log_loss(loss)
            optimizer.step()

    def slower():
        import work
        train(think=work.think)

    def ending():
        import length
        train(num_steps=length.NUM_STEPS)

    def twin():
        import twin
        train()

    def renamed():
        import names
        train(score=names.score)

    def reordered():
        import sums
        train(add=sums.add)

    def faster_rate():
        import rate
        train(rate=rate.RATE, tells=False)

    def freezing():
        import frozen
        train(tells=False, frozen=frozen.FROM_STEP)

    def norming():
        import norms
        train(norm=[torch.nn.BatchNorm1d(4, momentum=norms.MOMENTUM)])

    def uncollected():
        import heap
        kept = heap.set_up()
        train(think=lambda: heap.think(kept), num_steps=60)

    def keeping():
        import history
        train(think=history.keep)

    def tidied():
        import tidy
        train(think=tidy.tidy)

    def broken_graph():
        import breaks
        train(score=breaks.score)

    def shrinking():
        import batches
        network, taken = torch.nn.Linear(4, 4), []
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        def step():
            inputs = torch.randn(8, 4)[: batches.size_after(len(taken))]
            taken.append(None)
            loss = network(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step

    def held_in_a_warm_up():
        import held
        first, last = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4)
        parameters = [*first.parameters(), *last.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=1e-12)

        def step():
            hidden = first(torch.randn(8, 4, requires_grad=True))
            loss = last(hidden.detach() if held.IS_HELD else hidden).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step

    def silent_step():
        import rate
        network = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(network.parameters(), lr=rate.RATE)

        def step():
            optimizer.zero_grad()
            network(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

        return step

    def step_of(momentum=0.1, has_mask=False, is_on=True):
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 4),
            torch.nn.BatchNorm1d(4, momentum=momentum, track_running_stats=is_on),
        )
        if has_mask:
            model.register_buffer("mask", torch.ones(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return perfsuite.Step(step, model, optimizer)

    def normed():
        import norms
        return step_of(momentum=norms.MOMENTUM)

    def fixed():
        import means
        return step_of(momentum=means.MOMENTUM)

    def untracked():
        import tracking
        return step_of(is_on=tracking.IS_ON)

    def masked():
        import masks
        return step_of(has_mask=masks.IS_BUFFER)

    @pytest.mark.parametrize("build_step", [normed, fixed, untracked, masked])
    def test_buffers(step_benchmark, build_step):
        step_benchmark(build_step)

    @pytest.mark.parametrize("build_step", [held_in_a_warm_up, shrinking, silent_step])
    def test_steps(step_benchmark, build_step):
        step_benchmark(build_step)

    def test_compiled(loop_benchmark):
        loop_benchmark(broken_graph, steps=20, warmup=3)

    def test_keeps(loop_benchmark):
        loop_benchmark(keeping, steps=20, warmup=3)

    def test_ends(loop_benchmark):
        loop_benchmark(ending, steps=36, warmup=3)

    @pytest.mark.parametrize("loop", [renamed, reordered, faster_rate, freezing, norming])
    def test_mathematics(loop_benchmark, loop):
        loop_benchmark(loop, steps=20, warmup=3)

    @pytest.mark.perf(tolerance="5%", limit="10%")
    def test_collector(loop_benchmark):
        loop_benchmark(uncollected, steps=40, warmup=3)

    # Four pairs decide of it beside other work, where the base's short steps differ by a factor.
    costly = pytest.param(slower, 1, marks=pytest.mark.perf(tolerance="50%", limit="100%"))

    @pytest.mark.parametrize(("loop", "ranks"), [costly, (tidied, 1), (twin, 2)])
    def test_times(loop_benchmark, loop, ranks):
        loop_benchmark(loop, ranks=ranks, steps=10, warmup=3)
"""


def test_loops_are_told_apart_by_their_times_and_by_what_they_compute(tmp_path: Path) -> None:
    repository = make_shop(tmp_path, max_pairs=4)
    repository.write(**MODULES, benchmarks__test_steps=CELLS)
    repository.commit()
    repository.write(**{name: text.replace(*CHANGES[name]) for name, text in MODULES.items()})
    repository.commit()

    gated = repository.gate(
        *("--perf-base=HEAD~1", "--perf-numerics-change=fail", "--perf-identical=judge")
    )

    gated.expect(
        10,
        "*::test_buffers[fixed] FAIL *",
        "*::test_buffers[masked] PASS *",
        "*::test_buffers[normed] FAIL *",
        "*::test_buffers[untracked] FAIL *",
        "*::test_compiled FAIL *",
        "*::test_ends INVALID*",
        "*::test_keeps FAIL *",
        "*::test_mathematics[faster_rate] FAIL *",
        "*::test_mathematics[freezing] FAIL *",
        "*::test_mathematics[norming] FAIL *",
        "*::test_mathematics[renamed] PASS *",
        "*::test_mathematics[reordered] PASS *",
        "*::test_steps[held_in_a_warm_up] FAIL *",
        "*::test_steps[shrinking] FAIL *",
        "*::test_steps[silent_step] FAIL *",
        "*::test_times[slower-1] FAIL +*",
        "*::test_times[tidied-1] FAIL +*",
        "*::test_times[twin-2] PASS *",
        "*::test_buffers[fixed]*: *mathematics: changed: number of moved buffers at step 3 3 -> 1*",
        "*::test_buffers[normed]*: *mathematics: changed: sum * of buffer * at step 3 *",
        "*::test_buffers[untracked]*: *changed: number of moved buffers at step 3 3 -> 0*",
        "*::test_collector: *the arms set Python's collector differently, so it ran in timed "
        "rounds*",
        "*::test_compiled: graph_breaks 0 -> 1 (+1), allowed 0 %*",
        "*::test_ends: the loop, or its log, ended by itself, after * rounds in the base and * in "
        "head, so that neither times nor counts compare; let both take the steps that the test "
        "asks for*",
        "*::test_keeps: kept_bytes 0 B -> 16.0 KiB (+16,384), allowed 4.00 KiB*",
        "*::test_mathematics[faster_rate]: mathematics: changed: * of parameter 1 at step 1 *",
        "*::test_mathematics[freezing]: mathematics: changed: size of parameter 1 at step 25 16*",
        "*::test_steps[held_in_a_warm_up]: mathematics: changed: number of gradients of parameter "
        "1 at step 1 1 -> 0; *counts: flops *",
        "*::test_steps[shrinking]: mathematics: changed: loss at step 64 * -> *; counts: flops "
        "512 -> 256*",
        "*::test_steps[silent_step]: mathematics: changed: * of parameter 1 at step 1 *",
        "*::test_times[slower-1]: *moved most: forward *",
    )
    assert_results_valid(tmp_path / "results")
    run = json.loads((tmp_path / "results" / "run.json").read_text())
    records = {one["name"]: one["extra_info"]["perfsuite"] for one in run["benchmarks"]}
    found = {
        name: (one["verdict"], one["recipe"], one["weights"], one["buffers"])
        for name, one in records.items()
    }
    assert {
        name: (verdict["word"], verdict["by"], verdict["numerics_change"].partition(":")[0])
        for name, (verdict, *_) in found.items()
        if name not in ("test_ends", "test_compiled", "test_collector", "test_keeps")
    } == {
        "test_buffers[fixed]": ("FAIL", "numerics", "changed"),
        "test_buffers[masked]": ("PASS", "pairs", "same bits"),
        "test_buffers[normed]": ("FAIL", "numerics", "changed"),
        "test_buffers[untracked]": ("FAIL", "numerics", "changed"),
        "test_mathematics[renamed]": ("PASS", "pairs", "same bits"),
        "test_mathematics[reordered]": ("PASS", "pairs", "rounding"),
        "test_mathematics[faster_rate]": ("FAIL", "numerics", "changed"),
        "test_mathematics[freezing]": ("FAIL", "numerics", "changed"),
        "test_mathematics[norming]": ("FAIL", "numerics", "changed"),
        "test_steps[held_in_a_warm_up]": ("FAIL", "numerics", "changed"),
        "test_steps[shrinking]": ("FAIL", "numerics", "changed"),
        "test_steps[silent_step]": ("FAIL", "numerics", "changed"),
        "test_times[slower-1]": ("FAIL", "pairs", "same bits"),
        "test_times[tidied-1]": ("FAIL", "pairs", "same bits"),
        "test_times[twin-2]": ("PASS", "pairs", "same bits"),
    }
    # Its pairs differ by more than four of them decide beside eighteen other cells.
    collector = found["test_collector"][0]
    assert collector["word"] in ("FAIL", "INCONCLUSIVE")
    assert collector["ratio"] > 1.2
    # Digests travel within the gate alone, and no stored run grows by them.
    assert {tuple(kept) for _, *kept in found.values()} == {(None, None, None)}


SORTED = """
    import torch

    def work():
        torch.arange({size}).flip(0).sort()

    def count():
        for number in range({size} // 4):
            number % 7
"""
UNMARKED = """
    import pytest
    import torch

    pytestmark = pytest.mark.perf(tolerance="50%", limit="100%")

    def train(num_steps):
        from sorted import count, work
        network = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(num_steps):
            count() if num_steps > 30 else work()
            loss = network(torch.ones(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @pytest.mark.parametrize("num_steps", [29, 30, 31])  # 24 are whole rounds of 1 to 4
    def test_loop(loop_benchmark, num_steps):
        loop_benchmark(lambda: train(num_steps), steps=24, warmup=3)
"""


def test_what_moved_in_a_loop_without_stages_is_named_if_it_has_steps_more(
    tmp_path: Path,
) -> None:
    repository = make_shop(tmp_path, max_pairs=4)
    repository.write(sorted=SORTED.format(size=20_000), benchmarks__test_steps=UNMARKED)
    repository.commit()
    repository.write(sorted=SORTED.format(size=1_000_000))
    repository.commit()

    gated = repository.gate("--perf-base=HEAD~1")

    gated.expect(
        10,
        "*::test_loop[29] FAIL +*",
        "*::test_loop[30] FAIL +*",
        "*::test_loop[31] FAIL +*",
        "*::test_loop[29]: *moved most: other *",
        "*::test_loop[30]: *moved most: aten::sort *, profiled once*",
        "*::test_loop[31]: *moved most: sorted.py:count *, profiled once*",
    )


ADVERSARIAL = """
    import torch

    def train():
        from critics import NUM_CRITICS
        models = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)]
        generate, criticise = (torch.optim.Adam(model.parameters(), lr=0.1) for model in models)
        while True:
            for optimizer in (*[criticise] * NUM_CRITICS, generate):
                loss = models[1](models[0](torch.ones(8, 4))).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def test_loop(loop_benchmark):
        loop_benchmark(train, steps=40, warmup=10)
"""


def test_a_loop_whose_other_optimizer_steps_more_rarely_has_another_kind_of_step(
    tmp_path: Path,
) -> None:
    repository = make_shop(tmp_path, max_pairs=3)
    repository.write(critics="NUM_CRITICS = 1\n", benchmarks__test_steps=ADVERSARIAL)
    repository.commit()
    repository.write(critics="NUM_CRITICS = 5\n")
    repository.commit()

    gated = repository.gate("--perf-base=HEAD~1")

    gated.expect(
        12,
        "*::test_loop INVALID*",
        "*::test_loop: for each step, further optimizers step 0.18 times with head and 0.98 times "
        "with the base, so that a step is another part of the loop; end it by the optimizer *",
    )
