"""The arm's end of the gate: a pytest plugin that takes turns with the other arm and sends times.

It is copied into the launches of both arms, whose interpreters and perfsuite may differ. The other
end of its socket is `perfsuite.gate.arms.channel`, which documents the messages.
"""

import faulthandler
import gc
import json
import os
import shlex
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

_PLUGIN_NAME = "pytest-benchmark"
# The clock of a cell whose ranks take turns and time themselves has this name.
_RANK_CLOCK = "rank_clock"
_NUM_FUNCTIONS = 40
# Seconds of rounds in the first launch of a cell without ranks: many short launches say more than
# few long ones, because launches are what differs (Kalibera and Jones 2013).
_FIRST_S = 0.3
# The version of the messages that ranks send; a perfsuite with another version cannot take part.
_PROTOCOL = 2
# A launch stores and compares nothing, runs each cell once, and alone in its process.
_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("benchmark_disable", "benchmark_skip", "benchmark_autosave"), False),
    **dict.fromkeys(("lf", "failedfirst", "newfirst", "stepwise"), False),
    **dict.fromkeys(("collectonly", "usepdb", "trace"), False),
    **dict.fromkeys(("benchmark_compare", "benchmark_compare_fail", "benchmark_save"), None),
    **dict.fromkeys(("benchmark_json", "benchmark_histogram", "benchmark_cprofile_dump"), None),
    **dict.fromkeys(("xmlpath", "basetemp"), None),
    **dict.fromkeys(("benchmark_enable", "continue_on_collection_errors"), True),
    **dict.fromkeys(("perf_gate", "perf_numerics"), "off"),
    "maxfail": 0,
    "log_file": os.devnull,
    "numprocesses": 0,
    "dist": "no",
    "tx": [],
}


class Channel:
    """The arm's connection to the gate; a gate that is gone ends this process."""

    def __init__(self, background: Any) -> None:
        self._background = background
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.environ["PERFSUITE_ARM_CHANNEL"])
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self.send(kind="hello", arm=os.environ["PERFSUITE_ARM_NAME"])

    def send(self, **message: Any) -> None:
        """Send a message."""
        try:
            self._socket.sendall(json.dumps(message, default=str).encode() + b"\n")
        except OSError:
            os._exit(1)

    def request(self, **message: Any) -> Any:
        """Send a message and wait for the answer, while nothing else of the launch runs."""
        self._background.stop(looks=True)
        try:
            return self.wait(**message)
        finally:
            self._background.resume()

    def wait(self, **message: Any) -> Any:
        """As `request`, within a turn, where the clock already stops the other processes."""
        self.send(**message)
        if not (line := self._lines.readline()):
            os._exit(1)
        return json.loads(line)


class ArmPlugin:
    """Runs the cells that the gate names, in its order, and sends the outcome of each."""

    def __init__(self, channel: Channel, background: Any, parser: pytest.Parser) -> None:
        # Imported here, because only an arm has the copies.
        import perfsuite_background  # type: ignore[import-not-found]
        import perfsuite_collected  # type: ignore[import-not-found]
        import perfsuite_turn_clock  # type: ignore[import-not-found]

        self._new_waits = perfsuite_background.Waits
        self._collected = perfsuite_collected
        self._turn_clock, self._channel = perfsuite_turn_clock, channel
        self._parser = parser
        self._variables = dict(os.environ)
        self._background = background
        self._core = int(os.environ["PERFSUITE_ARM_CORE"])
        self._unpinned: list[str] = []
        self._phases: list[pytest.TestReport] = []
        self._subtests: list[pytest.TestReport] = []
        self._broken: dict[str, str] = {}
        # The running cell, its clock where this process times it, and its fixture once it has run.
        self._item: pytest.Item | None = None
        self._clock: Any = None
        self._fixture: Any = None
        self._is_in_call = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Any:
        """Override options that a suite may have set, before any plugin reads them."""
        files = tempfile.mkdtemp(prefix="results-")
        options = {**_OPTIONS, "benchmark_storage": f"file://{files}", "perf_report": files}
        if "PERFSUITE_ARM_PROFILES" in os.environ:
            options |= {"benchmark_cprofile": "tottime", "benchmark_cprofile_loops": None}
        known = vars(config.option)
        if known.get("randomly_seed") in ("default", "last"):
            # pytest-randomly would draw another seed in each arm.
            options["randomly_seed"] = int(os.environ["PYTHONHASHSEED"])
        known.update({name: value for name, value in options.items() if name in known})
        if listed := Path(os.environ["PERFSUITE_ARM_CHANNEL"]).with_name("files").read_bytes():
            names = os.fsdecode(listed).split("\n")
            # pytest takes a "[" in a path for that of a parameter; above the folder it may stand.
            above = os.path.relpath(config.rootpath, config.invocation_params.dir)
            config.args[:] = [str(Path(above, name)) for name in names]
        elif "PERFSUITE_ARM_LACKS" in os.environ:
            # The user names head's paths; the base runs those of its own files that exist.
            folder = config.invocation_params.dir
            named = dict.fromkeys(argument.partition("::")[0] for argument in config.args)
            config.args[:] = [file for file in named if (folder / file).exists()]
        return (yield)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a file cannot be collected."""
        if report.failed:
            self._broken[report.nodeid] = _reason(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> Any:
        """Send the cells that no other plugin deselected, and keep those that the gate chooses."""
        result = yield
        plugin = config.pluginmanager.get_plugin("perfsuite")
        typed = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *config.invocation_params.args]
        named = self._parser.parse_known_args(typed).file_or_dir  # without those of an ini file
        cells = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
        others = [item for item in items if item not in cells]
        cells = self._collected.of_own_matrix(config, cells)
        answer = self._channel.request(
            kind="collected",
            cells={_name_of(item): self._collected.policy_of(item) for item in cells},
            broken=self._broken,
            hidden=[_name_of(item) for item in self._collected.find_hidden(config, others)],
            paths=self._collected.from_root(config, config.args),
            named=self._collected.from_root(config, named),
            variables=self._changed_variables(),
            takes_turns=plugin is None or getattr(plugin, "TAKES_TURNS", None) == _PROTOCOL,
            root=str(config.rootpath),
            inifile=None if config.inipath is None else str(config.inipath),
            pythonpath=[str(path) for path in config.getini("pythonpath")],
            python_files=list(config.getini("python_files")),
            shared=list(config.getini("perf_share")),
            settings=self._collected.settings_of(config),
        )
        self._unpinned = answer["unpinned"]
        by_name = {_name_of(item): item for item in cells}
        kept = [by_name[name] for name in answer["run"] if name in by_name]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        return result

    def _changed_variables(self) -> dict[str, str | None]:
        now = dict(os.environ)
        changed = {name for name, _ in self._variables.items() ^ now.items()}
        return {one: now.get(one) for one in sorted(changed) if not one.startswith("PYTEST_")}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a cell a clock that waits for its turn, unless its ranks do that themselves.

        Where a plugin runs a cell again after a failure, its last run is the one that counts.
        """
        self._phases, self._subtests = [], []
        faulthandler.cancel_dump_traceback_later()  # pytest's timer, which may end the launch
        if self._item is not None:
            return
        self._item, self._clock = item, None
        before = self._background.thread_seconds()
        is_alone = self._channel.request(kind="enter", cell=_name_of(item))["is_alone"]
        # The other arm may have had the whole cell meanwhile.
        worked_s = self._turn_clock.growth(before, self._background.thread_seconds())
        marker = item.get_closest_marker("benchmark")  # as pytest-benchmark, which merges none
        options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
        plugin: Any = item.config.pluginmanager.get_plugin(_PLUGIN_NAME)
        given = options.get("timer") or plugin.options["timer"].target
        if getattr(given, "__name__", "") == _RANK_CLOCK:
            return
        number = None if _name_of(item) in self._unpinned else self._core
        self._clock = self._turn_clock.TurnClock(
            given,
            self._turn_clock.SharedCore(number, self._background),
            wait_for_turn=lambda: self._channel.wait(kind="turn"),
            end_turn=lambda: self._channel.send(kind="done"),
            end_round=lambda: self._channel.send(kind="round"),
            collects_garbage=options.get("disable_gc", plugin.options["disable_gc"]),
            waits=None if is_alone else self._new_waits(),
            background_s=worked_s,
        )
        _know_precision(self._clock, given)
        item.add_marker(pytest.mark.benchmark(**{**options, "timer": self._clock}), append=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Have both arms time a cell in rounds of one length."""
        fixture: Any = getattr(item, "funcargs", {}).get("benchmark")
        if self._clock is not None and hasattr(fixture, "_calibrate_timer"):
            marker = item.get_closest_marker("benchmark")
            given = set() if marker is None else {"min_rounds", "max_time"} & marker.kwargs.keys()
            _agree_on_rounds(fixture, self._channel, self._clock.core, bool(given))
        self._is_in_call = True
        try:
            return (yield)
        finally:
            self._is_in_call = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        """Keep each report; one that comes during the call is a subtest's."""
        report = yield
        (self._subtests if self._is_in_call else self._phases).append(report)
        if report.when == "teardown":
            self._item = item
            # pytest forgets the fixture before the cell is over.
            self._fixture = getattr(item, "funcargs", {}).get("benchmark")
            if self._clock is not None:
                self._clock.end()
        return report

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self) -> bool:
        """Set no timer, since pytest-timeout would count how long a cell waits for its turns."""
        return True

    pytest_timeout_cancel_timer = pytest_timeout_set_timer

    def pytest_runtest_logfinish(self) -> None:
        """Send the outcome of a cell, and wait until the other arm has left it too."""
        item, clock, fixture = self._item, self._clock, self._fixture
        if item is None or not self._phases:
            return
        self._item = self._clock = self._fixture = None
        reports = [*(subtest for subtest in self._subtests if subtest.failed), *self._phases]
        report = next((one for one in reports if not one.passed), reports[-1])
        self._phases, self._subtests = [], []
        used: dict[str, Any] = {}
        if clock is not None:
            clock.end()
            clock.core.unpin()
            used = {"turns_s": clock.core.turns_s, "background_s": clock.background_s}
            used["outgrew_core"] = clock.core.is_late
            used["hides_waits"] = clock.waits is not None and clock.waits.are_hidden
        stats = getattr(fixture, "stats", None)
        record = getattr(fixture, "extra_info", {}).get("perfsuite")
        self._turn_clock.free_device_memory()
        answer = self._channel.request(
            kind="left",
            cell=_name_of(item),
            outcome=report.outcome,
            reason=None if report.passed else _reason(report),
            rounds_s=[] if stats is None else list(map(float, stats.stats.data)),
            record=record if isinstance(record, dict) else None,
            profile=_profile(stats),
            **used,
        )
        if answer["is_over"]:
            item.session.shouldstop = "the gate has seen enough"

    def pytest_sessionfinish(self) -> None:
        """Say that there is no more to come."""
        self._channel.send(kind="finished")
        gc.freeze()  # pytest collects garbage five times at its end, which nobody would see here


def _name_of(item: Any) -> str:
    """A cell's name, in which a path of this tree is head's on both sides."""
    name: str = item.nodeid
    root = os.environ.get("PERFSUITE_ARM_ROOT")
    return name if root is None else name.replace(str(item.config.rootpath), root)


def _profile(stats: Any) -> list[tuple[str, float, float]]:
    """The costliest functions of one call: place and name, calls, and their own seconds."""
    if (profiled := getattr(stats, "cprofile_stats", None)) is None:
        return []
    num = stats.iterations
    functions = [
        (f"{Path(file).name}:{name}".removeprefix("~:"), calls / num, own_s / num)
        for (file, _, name), (_, calls, own_s, _, _) in profiled.stats.items()
    ]
    return sorted(functions, key=lambda function: -function[2])[:_NUM_FUNCTIONS]


def _agree_on_rounds(fixture: Any, channel: Channel, core: Any, sets_rounds: bool) -> None:
    """Take iterations from the gate, and rounds too unless the test sets them.

    pytest-benchmark finds the iterations of a round by timing, and has no public way to set them.
    """
    calibrate = fixture._calibrate_timer

    def calibrate_together(runner: Any) -> tuple[float, int, range]:
        core.is_calibrating = True
        duration_s, iterations, _ = calibrate(runner)
        core.is_calibrating = False
        core.settle()
        shape = {"iterations": iterations, "iteration_s": duration_s / iterations}
        agreed = channel.request(kind="shape", **shape, first_s=_FIRST_S)
        if not sets_rounds:
            fixture._min_rounds, fixture._max_time = agreed["rounds"], 0.0
        iterations = agreed["iterations"]
        return shape["iteration_s"] * iterations, iterations, range(iterations)

    fixture._calibrate_timer = calibrate_together


def _know_precision(clock: Any, given: Any) -> None:
    """Give pytest-benchmark, which has no setter, the precision of the clock that ours wraps."""
    from pytest_benchmark.fixture import BenchmarkFixture
    from pytest_benchmark.timers import compute_timer_precision

    known: dict[Any, float] = BenchmarkFixture._precisions
    if given not in known:
        known[given] = compute_timer_precision(given)  # type: ignore[no-untyped-call]
    known[clock] = known[given]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}" if report.wasxfail else "xfail"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
        return str(crash.message).partition("\n")[0]
    lines = str(report.longrepr).strip().splitlines() or [report.outcome]
    if isinstance(report.longrepr, str):  # of perfsuite, or of pytest.fail
        return lines[0]
    is_told = any(map(str.isalpha, lines[-1]))  # a traceback may end in the mark below its line
    return lines[-1 if is_told else 0].removeprefix("E").strip()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Connect to the gate, and register the hooks, which need the connection."""
    # Every launch sets cache_dir, which --strict-config would refuse where the cache is off.
    parser.addini("cache_dir", "Cache directory path", default=".pytest_cache")
    # For a suite whose arms have no perfsuite.
    parser.addini("perf_share", "files that both arms may use", type="args", default=[])
    from perfsuite_background import Background

    background = Background()  # before there are threads: it forks
    plugin = ArmPlugin(Channel(background), background, parser)
    pluginmanager.register(plugin, "perfsuite-arm-hooks")
