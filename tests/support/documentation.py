"""The documentation as its tests read it: pages, and the fenced blocks and commands in them.

A comment right above a block says what becomes of it: `<!-- run -->` or `<!-- not run: why -->`. A
block with a title, or with a name as its first line, is that file.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
# Decisions are kept as they were made.
PAGES = (
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    ROOT / "benchmarks" / "peers" / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "decisions"),
)

_BLOCK = re.compile(
    r"(?:^[ \t]*<!-- (?P<comment>(?:(?!-->).)*) -->\n\s*)?"
    r"^(?P<indent>[ \t]*)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_NAME = re.compile(r"# ([\w./-]+\.py)\n")
_CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_SETUP = re.compile(r"^<!-- setup: (\w+) -->$", re.MULTILINE)
# What a program stands behind, where it is not the first word.
_BEFORE_PROGRAM = re.compile(r"[|&;()]+|-m|[A-Za-z_]\w*=.*")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: Of the page, the first of its text.
        title: The file that it is, from the folder of the page's reader.
        comment: What stands right above it, "" if nothing does.
    """

    page: Path
    line: int
    language: str
    title: str | None
    comment: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether its reader runs it."""
        return self.comment == "run"

    @property
    def why_not_run(self) -> str | None:
        """The reason, None where there is none."""
        return self.comment.partition("not run: ")[2] or None

    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command of a console, and the lines that it is said to print."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> "):
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", found[-1][1])
            elif line.strip():
                found[-1][1].append(line)
        return found

    def script(self) -> str:
        """What a shell is given, without what it answers."""
        if self.language == "console":
            return "\n".join(command for command, _ in self.commands())
        return self.text


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            title=found["title"] or (name[1] if (name := _NAME.match(found["text"])) else None),
            comment=found["comment"] or "",
            text=textwrap.dedent(found["text"]),
        )
        for found in _BLOCK.finditer(text)
    ]


def setup_of(page: Path) -> str | None:
    """Return the name of what a page's reader has before the first block."""
    found = _SETUP.search(page.read_text())
    return None if found is None else found[1]


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text())


def inline_code(page: Path) -> list[str]:
    """Return what stands between backticks in a page's text, on one line each."""
    return [" ".join(code.split()) for code in _CODE.findall(prose_of(page))]


def calls_in(script: str, *programs: str) -> Iterator[list[str]]:
    """Yield the words of each call of one of these programs, `python -m` of them included."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
        words.whitespace_split = True
        call: list[str] | None = None
        before = ";"
        for word in [*words, ";"]:
            if re.fullmatch(r"[|&;()<>]+", word):
                if call is not None:
                    yield call
                call = None
            elif call is not None:
                call.append(word)
            elif before == "-c":
                yield from calls_in(word, *programs)
            elif Path(word).name in programs and _BEFORE_PROGRAM.fullmatch(before):
                call = [Path(word).name]
            before = word
