"""Each page is followed by a reader: its files are written and its commands run, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import PAGES, ROOT, Block, read_blocks, setup_of
from gated_repository import Repository

from perfsuite.system.timing_lock import LOCK_DIR

FOLLOWED = [page for page in PAGES if any(block.is_run for block in read_blocks(page))]
COLLECTED = [
    page
    for page in PAGES
    if page not in FOLLOWED
    and any(
        (block.title or "").startswith(("benchmarks/", "tests/")) for block in read_blocks(page)
    )
]
PATIENCE_S = 300
SHOP = {
    "shop.py": """\
def price():
    return sum(i * i for i in range(20_000))
""",
    "benchmarks/test_shop.py": """\
import shop


def test_price(benchmark):
    benchmark(shop.price)
""",
    "pytest.ini": "[pytest]\npythonpath = .\nperf_gate = on\n",
    ".gitignore": "results/\n__pycache__/\n",
}
SLOW_PRICE = """\
def price():
    check()
    return sum(i * i for i in range(20_000))


def check():
    return sum(i * i for i in range(20_000))
"""
# A mark between the answers of two commands, with the exit code of the first.
MARK = "<<answered %s>>"
ANSWERED = re.compile(r"<<answered (\d+)>>\n")


def shop(folder: Path) -> None:
    """A repository whose branch makes a function twice as slow."""
    repository = Repository(folder)
    for name, text in SHOP.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit("a shop")
    repository.git("tag", "v1")
    repository.git("switch", "--quiet", "--create", "checked")
    (folder / "shop.py").write_text(SLOW_PRICE)
    repository.commit("prices are checked")


def my_package(folder: Path) -> None:
    """A package with a model, its data and its training, as the README takes for granted."""
    text = (ROOT / "tests" / "support" / "readers_package.py").read_text()
    for name in ("my_package.py", "train.py"):
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")


SETUPS = {"shop": shop, "my_package": my_package}


@pytest.fixture
def environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a reader's shell has: perfsuite on its path, and nothing of this session."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = reader\nemail = reader@example.org\n")
    # Workers follow one page each, and time one after the other.
    lock = tmp_path_factory.getbasetemp().parent / "lock-of-pages"
    lock.mkdir(exist_ok=True, mode=0o700)
    ours = ("PYTEST_", "PERFSUITE_", "GIT_", "PYTHONPATH", "GITHUB_", "CI")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
        # A reader has none of these, which each launch would import.
        "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio -p no:xdist",
        LOCK_DIR: str(lock),
    }


def script_of(blocks: list[Block]) -> str:
    """What the reader types: files are written, and each command is followed by a mark."""
    parts = []
    for block in blocks:
        if block.title is not None:
            folder = Path(block.title).parent
            parts.append(
                f"mkdir -p {folder} && cat > {block.title} <<'END-OF-FILE'\n{block.text}END-OF-FILE"
            )
        if not block.is_run:
            continue
        if block.language == "python":
            parts.append(f"python - <<'END-OF-FILE'\n{block.text}END-OF-FILE\n{marked()}")
        elif block.language == "sh":
            parts.append(f"{block.text}{marked()}")
        else:
            parts += [f"{command}\n{marked()}" for command, _ in block.commands()]
    return "\n".join(parts)


def marked() -> str:
    """The mark, which leaves the exit code as it was for an `echo $?` that comes next."""
    return f'code=$?; printf "\\n{MARK}\\n" $code; (exit $code)'


def in_general(line: str) -> str:
    """A line without what differs from run to run: numbers, units, hashes, widths, rules."""
    line = re.sub(r"\x1b\[[0-9;]*m|[─│┃━]+|={3,}", "", line)
    line = re.sub(r"\b(?=\w*\d)[0-9a-f]{7,40}\b", "#", line)
    line = re.sub(r"[+-]?\d+(\.\d+)?(e[+-]\d+)?( ?(%|us|ms|s|k|M|B|[KMG]iB)(?!\w))?", "#", line)
    return " ".join(line.split())


def compare(block: Block, command: str, promised: list[str], answer: str) -> None:
    """Fail unless the promised lines stand in the answer, in order; `…` is anything."""
    said = iter([in_general(line) for line in answer.splitlines()])
    for line in promised:
        if line.strip() == "…":
            continue
        parts = [re.escape(in_general(part)).replace(r"\ ", " ") for part in line.split("…")]
        pattern = re.compile(r"\s*.*?\s*".join(parts))
        assert any(pattern.fullmatch(found) for found in said), (
            f"{block}: after $ {command}\nit does not say {line!r}, but\n{answer}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_promises_happens(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    blocks = read_blocks(page)
    folder = tmp_path / "reader"
    folder.mkdir()
    if (setup := setup_of(page)) is not None:
        SETUPS[setup](folder)

    ended = subprocess.run(
        ["bash", "-c", script_of(blocks)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    answers = ANSWERED.split(ended.stdout)
    given = list(zip(answers[::2], answers[1::2], strict=False))
    for block in (block for block in blocks if block.is_run):
        asked = block.commands() if block.language == "console" else [(block.text, [])]
        is_told = any(command == "echo $?" for command, _ in asked)
        for command, promised in asked:
            answer, code = given.pop(0)
            compare(block, command, promised, answer)
            assert is_told or code == "0", f"{block}: {command} ended in {code}\n{answer}"
    assert given == []


@pytest.mark.slow
@pytest.mark.parametrize("page", COLLECTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_benchmarks_of_a_page_are_collected(
    page: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    script = script_of([block for block in read_blocks(page) if not block.is_run])

    ended = subprocess.run(
        ["bash", "-c", f"{script}\npytest --collect-only --quiet"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
