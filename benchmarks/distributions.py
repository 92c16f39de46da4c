"""What is published: the wheel and the source distribution, each alone in an empty environment.

python benchmarks/distributions.py [--torch]

Builds and checks both, has each gate a plain suite, and tries each extra: what it is for names it
where it is missing, and works once it is installed. With --torch also the README's ten lines and
the extras that are of use with torch alone, on top of one torch, which stays (6 GB). Prints the MB
that pip brings, and the seconds. Ends in 1 at the first thing that does not hold.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST_BYTES = 280 * 10**6
HEAVY = ("torch", "torchvision", "scikit-learn", "matplotlib")
SHOP = {
    "pytest.ini": "[pytest]\npythonpath = .\nperf_gate = on\n",
    "shop.py": "def price():\n    return sum(range(20_000))\n",
    "benchmarks/test_price.py": (
        "import shop\n\n\ndef test_price(benchmark):\n    benchmark(shop.price)\n"
    ),
}
CELL = """\
from perfsuite import Recipe


def test_toy(train_benchmark):
    assert train_benchmark("toy-mlp", Recipe(), rounds=3).losses_are_finite
"""
# What the README's example takes for granted.
MY_PACKAGE = (ROOT / "tests" / "support" / "readers_package.py").read_text()
# Which extra, a verb that needs it, and what that ends in with it: nothing answers on port 9.
WITHOUT_TORCH = (
    ("tensorboard", "report run.json --tensorboard events", 0),
    ("wandb", "report run.json --wandb", 0),
    ("mlflow", "report run.json --mlflow", 0),
    ("s3", "baseline list --storage s3://bucket/runs", 12),
    ("gcs", "baseline list --storage gs://bucket/runs", 12),
)
# In this order, as the examples read the digits of scikit-learn.
WITH_TORCH = (
    ("plots", "perfsuite profile toy-mlp --epochs 1", 2),
    ("workloads", "perfsuite profile lenet-digits-affine --epochs 1", 2),
    ("fp8", "perfsuite verify transformer-tiny --precision fp8-rowwise", 22),
    ("hf", "python -m pytest hf_trainer/benchmarks", 1),
)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file:mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_MAX_ATTEMPTS": "1",
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
    **{
        f"GIT_{who}_{what}": "a@b.c"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
}


def run(folder: Path, command: Sequence[str], *codes: int) -> str:
    """Return what a command says; ends this script where it ends in another code."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if ended.returncode not in (codes or (0,)):
        sys.exit(f"{ended.stdout}\n{' '.join(command)} ended in {ended.returncode}, not in {codes}")
    return ended.stdout


def size_of(folder: Path) -> int:
    """Return the bytes of the disk that the files in a folder take."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(512 * path.stat().st_blocks for path in files)


class Environment:
    """A new virtual environment with one thing installed, where commands run."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self._bin = folder / "bin"
        run(ROOT, [sys.executable, "-m", "venv", "--clear", str(folder)])
        empty_bytes, began_s = size_of(folder), time.monotonic()
        self.install(requirement)
        took_s = time.monotonic() - began_s
        self.brought_bytes = size_of(folder) - empty_bytes
        name = Path(requirement).name
        print(f"{name}: {self.brought_bytes / 1e6:.0f} MB in {took_s:.0f} s", flush=True)

    def install(self, requirement: str) -> None:
        """Have pip install it."""
        self.call(ROOT, f"python -m pip install --quiet {requirement}")

    def call(self, folder: Path, line: str, *codes: int) -> str:
        """Return what a program of this environment says."""
        program, *arguments = line.split()
        return run(folder, [str(self._bin / program), *arguments], *codes)

    def version_of(self, package: str) -> str:
        """Return the version that is installed, nothing where none is."""
        listed = self.call(ROOT, "python -m pip list --format=freeze")
        return "".join(re.findall(rf"^{package}==(.*)$", listed, re.MULTILINE))


def build(folder: Path) -> list[Path]:
    """Return the wheel and the source distribution that it was built from, both accepted."""
    run(ROOT, [sys.executable, "-m", "build", "--outdir", str(folder)])
    built = [next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))]
    print(run(ROOT, [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]))
    print(run(ROOT, [sys.executable, "-m", "check_wheel_contents", str(built[0])]))
    return built


def make_shop(folder: Path) -> Path:
    """Return a repository with a plain suite, and a change that makes it three times slower."""
    for name, text in SHOP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for command in ("init --quiet", "add .", "commit --quiet --message=shop"):
        run(folder, ["git", *command.split()])
    (folder / "shop.py").write_text(SHOP["shop.py"].replace("20_000", "60_000"))
    return folder


def try_core(environment: Environment, shop: Path) -> None:
    """Gate a plain suite, and see a cell that trains fail in one line."""
    if environment.brought_bytes > LARGEST_BYTES:
        sys.exit(f"more than {LARGEST_BYTES / 1e6:.0f} MB")
    brought = [package for package in HEAVY if environment.version_of(package)]
    assert not brought, brought
    print(environment.call(shop, "perfsuite gate benchmarks", 10))
    (shop / "test_cell.py").write_text(CELL)
    failed = environment.call(shop, "python -m pytest test_cell.py", 1)
    print("\n".join(re.findall(r"^.* is not installed: .*$", failed, re.MULTILINE)))
    (shop / "test_cell.py").unlink()
    print(environment.call(shop, "perfsuite doctor", 0, 1))
    environment.call(shop, "python -m pytest benchmarks --benchmark-json=run.json")
    environment.call(shop, "perfsuite report run.json")


def try_readme(environment: Environment, folder: Path) -> None:
    """Measure the README's own model in ten lines."""
    found = re.search(
        r"```python\n(# benchmarks/test_my_model\.py\n.*?)```",
        (ROOT / "README.md").read_text(),
        re.S,
    )
    assert found is not None, "README.md has no example that begins as benchmarks/test_my_model.py"
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "my_package.py").write_text(MY_PACKAGE)
    (folder / "benchmarks" / "test_my_model.py").write_text(found[1])
    (folder / "benchmarks" / "test_toy.py").write_text(CELL)
    environment.call(folder, "python -m pytest benchmarks")
    print(environment.call(folder, "perfsuite report results/run.json"))


def try_extra(
    environment: Environment,
    wheel: Path,
    extra: str,
    folder: Path,
    line: str,
    before: int,
    after: int,
) -> None:
    """See that a command names the extra, and what it ends in once that is installed."""
    said = environment.call(folder, line, before)
    named = re.findall(r"^.* is not installed: .*$|^.*No module named .*$", said, re.MULTILINE)
    torch = environment.version_of("torch")
    environment.install(f"{wheel}[{extra}]")
    environment.call(folder, line, after)
    assert environment.version_of("torch") == torch
    print(f"{extra}: {line}: {before}, then {after}: {named[0].strip()}", flush=True)


def main() -> None:
    """Try everything, in a folder that is removed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", action="store_true", help="with the extras that need it, 6 GB")
    with_torch = parser.parse_args().torch
    with tempfile.TemporaryDirectory(prefix="perfsuite-distributions-") as name:
        folder = Path(name)
        built = build(folder / "dist")
        wheel, shop = built[0], make_shop(folder / "shop")
        for distribution in reversed(built):
            try_core(Environment(folder / "empty", str(distribution)), shop)
        for extra, line, code in WITHOUT_TORCH:
            environment = Environment(folder / "empty", str(wheel))
            try_extra(environment, wheel, extra, shop, f"perfsuite {line}", 2, code)
        if with_torch:
            environment = Environment(folder / "empty", f"{wheel}[torch]")
            try_readme(environment, folder / "user")
            shutil.copytree(ROOT / "examples" / "hf_trainer", shop / "hf_trainer")
            for extra, line, code in WITH_TORCH:
                try_extra(environment, wheel, extra, shop, line, code, 0)
            environment.install(f"{wheel}[all]")
            environment.call(folder, "python -m pip check")


if __name__ == "__main__":
    main()
