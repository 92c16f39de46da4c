"""How a file can come to be broken: a value of another kind, a key too few or too many, torn bytes.

What stands in `HOSTILE` is markup, a command or a formula to some format that shows it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

HOSTILE = (
    "<img src=x onerror=boom()>",
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines\r\nand\x00\x9b31m\u202e",
    "=HYPERLINK(1)",
    r"\input{/etc/passwd}",
    "a|b`c``|@team #1",
    "../../../../etc/passwd",
    "--upload-pack=touch owned",
    "\ud800",
    "",
    "x" * 5_000,
)
# Numbers that overflow, vanish, or are none.
_NUMBERS = (
    *(0, -1, -0.0, 1e-320, 1e308, 2**63, 10**400, 1.5, True),
    *(float("nan"), float("inf"), float("-inf")),
)
# Copied, because a later change may be one of what is inside.
STRANGE = st.one_of(
    st.sampled_from([*HOSTILE, *_NUMBERS, None, [], {}, [[]], {"a": {"b": []}}]),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
).map(copy.deepcopy)

Change = Callable[[Any], Any]


@st.composite
def mutated(draw: st.DrawFn, document: dict[str, Any]) -> Any:
    """The document after one to three changes, which may meet the same value."""
    changed: Any = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        containers = [at for at in _paths(changed) if isinstance(_at(changed, at), dict | list)]
        if not containers:
            return draw(STRANGE)
        inside = _at(changed, draw(st.sampled_from(containers)))
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        kind = draw(st.sampled_from(("replace", "remove", "add", "repeat")))
        if kind == "add" or not keys:
            _add(inside, draw(st.sampled_from(HOSTILE)), draw(STRANGE))
            continue
        key = draw(st.sampled_from(keys))
        if kind == "replace":
            inside[key] = draw(STRANGE)
        elif kind == "remove":
            del inside[key]
        else:
            _add(inside, f"{key}2", copy.deepcopy(inside[key]))
    return changed


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes cut off, overwritten, or with others between them."""
    start = draw(st.integers(0, len(data)))
    junk = draw(
        st.one_of(st.binary(max_size=12), st.sampled_from([b"[" * 5_000, b'{"a":' * 5_000]))
    )
    kind = draw(st.sampled_from(("cut", "overwrite", "insert")))
    end = {"cut": len(data), "overwrite": start + len(junk), "insert": start}[kind]
    return data[:start] + junk + data[end:]


def as_json(document: Any) -> bytes:
    """As Python writes it: NaN and lone surrogates included."""
    return json.dumps(document).encode()


def _add(inside: Any, key: str, value: Any) -> None:
    if isinstance(inside, dict):
        inside[key] = value
    else:
        inside.append(value)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
