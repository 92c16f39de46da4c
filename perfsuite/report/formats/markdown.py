"""The report as Markdown, for a step summary or a comment: verdict, table, and the rest folded."""

import re
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.report.model import Report
from perfsuite.report.rows import Column, Row, columns_of, filled

_COLUMNS = columns_of(
    *("cell", "verdict", "policy", "change_ratio", "interval", "step_time_s"),
    *("spread_ratio", "samples_per_s", "tokens_per_s", "tflops", "mfu", "hfu", "load_ratio"),
    *("peak_bytes", "numerics"),
)
# GitHub refuses a comment of over 65,536 characters; the rest is in the other formats.
_MOST_CHARACTERS = 60_000
# What would end a code span or a table's cell; any other character is literal in a code span.
_ENDS_CODE = re.compile(r"[`|\\]")
# Hosts look for mentions and references in what is rendered, where only code protects them.
_REFERENCES = re.compile(r"[@#]")
# The ASCII characters that may be markup inside a line; a host links www. and makes :words: emoji.
_MARKUP = re.compile(r"[!\"#$&*:<>?@\[\\\]^_`{|}~]|(?<=www)\.|^[-+]")


def to_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    columns = filled(_COLUMNS, report.rows)
    word = "" if report.summary.word is None else f"**{report.summary.word}**: "
    head = [f"{word}{escape(report.summary.text)}\n"]
    if report.rows:
        head += _table_head([(column.title, column.is_number) for column in columns])
    tail = list(_tail(report))
    room = _MOST_CHARACTERS - sum(len(line) + 1 for line in (*head, *tail))
    lines = [_table_line(_value(column, row) for column in columns) for row in report.rows]
    body = _fitting(lines, room, "\n{} more cells are in the other formats.")
    return "\n".join([*head, *body, *tail]) + "\n"


def _value(column: Column[Row], row: Row) -> str:
    text = column.text(row)
    if column.key == "cell":
        return as_code(text)
    # A formatted number has no markup in it.
    return text if column.is_number or column.key == "interval" else escape(text)


def _tail(report: Report) -> Iterator[str]:
    """The folded parts, cut where they would be too long for a comment."""
    notes = (f"- {as_code(row.name)}: {escape(row.note)}" for row in report.rows if row.note)
    advice = (f"- {escape(one.text)} ({escape(one.evidence)})" for one in report.advice)
    sources = (f"- {escape(text)}" for text in (*report.sources, *report.remarks))
    yield ""
    yield from _folded("Explanation", notes)
    yield from _folded("What the numbers advise", advice)
    yield from _folded("What was compared", sources)
    for section in report.sections:
        yield from _folded(section.title, (f"- {escape(note)}" for note in section.notes))
        for grid in section.grids:
            rows = [_table_line(map(escape, row)) for row in grid.rows]
            rest = "\n{} more rows are in the other formats."
            yield f"<details><summary>{escape(grid.title)}</summary>\n"
            yield from _table_head([(escape(name), is_number) for name, is_number in grid.columns])
            yield from _fitting(rows, _MOST_CHARACTERS // 15, rest)
            yield "\n</details>\n"


def _folded(title: str, items: Iterable[str]) -> Iterator[str]:
    if lines := list(items):
        yield f"<details><summary>{title}</summary>\n"
        yield from _fitting(lines, _MOST_CHARACTERS // 5, "- {} more are in the other formats")
        yield "\n</details>\n"


def _fitting(lines: Sequence[str], room: int, rest: str) -> Iterator[str]:
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            yield rest.format(len(lines) - number)
            return
        yield line


def _table_head(columns: Sequence[tuple[str, bool]]) -> Iterator[str]:
    yield _table_line(title for title, _ in columns)
    yield _table_line("--:" if is_number else ":--" for _, is_number in columns)


def _table_line(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"


def as_code(text: str) -> str:
    """Return one line of text as code, so that none of it is markup."""
    if text != text.strip() or not text or _ENDS_CODE.search(text):
        return f"<code>{_escaped(text)}</code>"
    return f"`{text}`"


def escape(text: str) -> str:
    """Return one line of text without markup; as code where a host would link it."""
    return as_code(text) if _REFERENCES.search(text) else _escaped(text)


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", text)
