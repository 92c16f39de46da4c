"""The hook in processes of its own: what it hides runs too, and nothing is loaded before torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from perfsuite.gate.arms.launched import load_log
from perfsuite.ranks.command.hooked import sitecustomize as hook


def run_python(folder: Path, script: str, *paths: str | Path, **variables: str) -> str:
    """Return what a script prints, with the hook first on its path."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    path = os.pathsep.join(map(str, (hook.FOLDER, *paths)))
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "PYTHONPATH": path, hook.CHANNEL: str(folder / "ranks"), **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_sitecustomize_that_it_hides_runs_and_that_of_an_arm_runs_its_own(
    tmp_path: Path,
) -> None:
    for name in ("arm", "users"):
        (tmp_path / name).mkdir()
    arm = tmp_path / "arm" / "sitecustomize.py"
    arm.write_text(Path(load_log.__file__).read_text())
    (tmp_path / "users" / "sitecustomize.py").write_text("print('the user\\'s')\n")

    said = run_python(tmp_path, "print('main')", tmp_path / "arm", tmp_path / "users")

    assert said == "the user's\nmain\n"


def test_a_process_without_torch_loads_nothing_of_perfsuite(tmp_path: Path) -> None:
    script = (
        "import sys, json, perfsuite\n"
        "print(perfsuite.__file__)\n"
        "new = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print(sorted(new & {'torch', 'msgspec', 'psutil'}), type(sys.meta_path[0]).__name__)"
    )

    said = run_python(tmp_path, script)

    assert said == f"{Path(hook.__file__).parents[3] / '__init__.py'}\n[] Finder\n"
    assert not (tmp_path / hook.LOADED).exists()


def test_an_interpreter_without_what_perfsuite_needs_says_so(tmp_path: Path) -> None:
    script = (
        "import sys, perfsuite\n"
        "sys.modules['perfsuite.worker.command'] = None\n"
        "sys.modules['perfsuite.worker'] = type(sys)('perfsuite.worker')\n"
        "try: perfsuite.step_done()\n"
        "except ImportError as error: print(error)"
    )

    said = run_python(tmp_path, script)

    assert said == (
        "perfsuite cannot measure this command, because perfsuite.worker.command is missing for "
        f"{sys.executable}, which runs it; install perfsuite there\n"
    )


def test_a_rank_of_a_command_loads_nothing_heavy_beside_torch(tmp_path: Path) -> None:
    script = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import perfsuite.worker.command\n"
        "heavy = {'sympy', 'triton', 'torch._dynamo', 'torch.distributed.tensor'}\n"
        "print(*sorted(heavy & set(sys.modules) - before))"
    )

    assert run_python(tmp_path, script).split() == []
