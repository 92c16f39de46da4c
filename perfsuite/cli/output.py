"""What the verbs have in common when they speak: lines, and `--json FILE`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.errors import SettingError
from perfsuite.system.files import check_writable, real_path, write_atomically
from perfsuite.system.untrusted import printable_lines

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result there.", callback=check_writable),
]


def say(text: str) -> None:
    """Show lines of progress, beside what the verb prints as its result."""
    typer.echo(printable_lines(text), err=True)


def require_apart(inputs: Iterable[str | Path], outputs: Iterable[Path | None]) -> None:
    """Raise a SettingError for an output that is an input, or another output."""
    taken = set(map(real_path, inputs))
    for path in filter(None, outputs):
        if real_path(path) in taken:
            raise SettingError(f"{path} is given twice, to read or to write; name another file")
        taken.add(real_path(path))


def pick(value: object, keys: str, **fields: str) -> dict[str, Any]:
    """Return attributes of a value by their keys in JSON; `fields` are those of other names."""
    return {key: getattr(value, fields.get(key, key)) for key in keys.split()}


def write_json(path: Path | None, **result: Any) -> None:
    """Write a verb's JSON where `--json` names a file; what is infinite is null."""
    if path is not None:
        document = msgspec.json.encode({"schema": 1, **result})
        write_atomically(path, msgspec.json.format(document, indent=2))
