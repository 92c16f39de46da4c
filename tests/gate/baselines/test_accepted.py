"""Reviewed exceptions: what they allow, until when, and that no file of a user is spoilt."""

from __future__ import annotations

import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsuite.errors import SettingError
from perfsuite.gate.baselines.accepted import (
    Accepted,
    Entry,
    Increase,
    Loosening,
    Quarantine,
    Removal,
    Rename,
    Slowdown,
    append_entry,
    prune,
    read_accepted,
    read_brought,
)

TODAY = date(2026, 11, 21)
LATER = date(2027, 1, 31)
CELL = "benchmarks/test_x.py::test_y[a]"
ALLOWED = (
    'use [[accepted]] with cell, kind = "slowdown" (and ratio), "removed", "quarantined", '
    '"renamed" (and to), "count" (and, to accept less than any increase, count and ratio) or '
    '"limit" (and the looser limit, tolerance, floor, policy or gate), reason, and expires = '
    "YYYY-MM-DD"
)
FILE = """\
# Reviewed like code.

# The scheduler needs it.
[[accepted]]
cell = "benchmarks/test_x.py::test_y[a]"
kind = "slowdown"
ratio = 1.08
reason = "slower, and right"
expires = 2027-01-31

[[accepted]]
cell = "gone"
kind = "removed"
reason = "nobody used it"
expires = 2026-11-20
# the end
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "accepted.toml"
    path.write_bytes(text.encode())
    return path


def slowdown(cell: str = CELL, ratio: float = 1.08, expires: date = LATER) -> Slowdown:
    return Slowdown(cell=cell, ratio=ratio, reason="slower, and right", expires=expires)


def test_entries_hold_until_they_expire(tmp_path: Path) -> None:
    accepted = read_accepted(written(tmp_path, FILE), TODAY)

    assert accepted.entries == (slowdown(),)
    assert accepted.expired == (
        Removal(cell="gone", reason="nobody used it", expires=date(2026, 11, 20)),
    )
    assert accepted.removal("gone") is None


def test_an_entry_holds_on_the_day_that_it_expires(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)

    assert read_accepted(path, date(2026, 11, 20)).removal("gone") is not None
    assert read_accepted(path, date(2026, 11, 21)).removal("gone") is None


def test_without_a_file_nothing_is_accepted(tmp_path: Path) -> None:
    assert read_accepted(tmp_path / "accepted.toml", TODAY) == Accepted()


def test_an_exception_is_for_its_cell_alone() -> None:
    renamed = Rename(cell="old", to="new", reason="clearer", expires=LATER)
    flops = Increase(cell=CELL, count="flops", ratio=1.5, reason="another head", expires=LATER)
    every_count = Increase(cell="b", reason="rewritten", expires=LATER)
    accepted = Accepted(entries=(slowdown(), renamed, flops, every_count))

    assert (accepted.slowdown(CELL), accepted.slowdown("b")) == (slowdown(), None)
    assert (accepted.rename_of("old"), accepted.rename_of("new")) == (renamed, None)
    assert (accepted.name_in_base("new"), accepted.name_in_base("old")) == ("old", "old")
    assert (accepted.increase(CELL, "flops"), flops.most_ratio) == (flops, 1.5)
    assert accepted.increase(CELL, "memory") is None
    assert (accepted.increase("b", "memory"), every_count.most_ratio) == (every_count, math.inf)
    assert accepted.removal(CELL) is None


def test_an_exception_for_every_cell_is_for_each() -> None:
    accepted = Accepted(entries=(slowdown(cell="*", ratio=1.1), slowdown(ratio=1.08)))

    assert accepted.slowdown("any") == slowdown(cell="*", ratio=1.1)
    assert accepted.slowdown(CELL) == slowdown(cell="*", ratio=1.1)


def loosening(**values: Any) -> Loosening:
    return Loosening(**{"cell": CELL, "reason": "noisy", "expires": LATER, **values})


def test_what_a_change_brings_counts_once(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)

    assert read_brought(path, b"", TODAY) == read_accepted(path, TODAY)
    merged = read_brought(path, FILE.encode(), TODAY)
    assert (merged.entries, merged.expired) == ((), ())
    assert merged.spent[0] == slowdown()

    path.write_text(FILE + FILE)
    assert read_brought(path, FILE.encode(), TODAY).entries == (slowdown(),)


def test_a_change_of_an_entry_brings_it_anew(tmp_path: Path) -> None:
    path = written(tmp_path, FILE.replace("1.08", "1.10"))

    assert read_brought(path, FILE.encode(), TODAY).entries == (slowdown(ratio=1.10),)


def test_where_the_bases_list_cannot_be_read_nothing_is_accepted_or_spent(tmp_path: Path) -> None:
    brought = read_brought(written(tmp_path, FILE), b"[[accepted]]", TODAY)

    assert (brought.entries, brought.spent) == ((), ())


@pytest.mark.parametrize(
    ("kind", "is_of_cost", "is_of_end"),
    [
        (slowdown("*"), True, False),
        (Increase(cell="a", reason="why", expires=LATER), True, False),
        (Removal(cell="a", reason="why", expires=LATER), False, True),
        (Rename(cell="a", to="b", reason="why", expires=LATER), False, True),
        (Loosening(cell="*", limit="9%", reason="why", expires=LATER), False, False),
    ],
)
def test_what_is_spent_is_told_where_it_would_have_helped(
    kind: Entry, is_of_cost: bool, is_of_end: bool
) -> None:
    accepted = Accepted(spent=(kind,))

    assert accepted.is_spent("a", is_gone=False) == is_of_cost
    assert accepted.is_spent("a", is_gone=True) == is_of_end


QUARANTINE = """
[[accepted]]
cell = "noisy"
kind = "quarantined"
reason = "too noisy"
expires = 2027-01-31
"""
IN_WORDS = "noisy is quarantined until 2027-01-31: too noisy"


def test_a_quarantine_counts_where_the_base_lists_it_whatever_head_does(tmp_path: Path) -> None:
    path = written(tmp_path, FILE + QUARANTINE)
    both = read_brought(path, (FILE + QUARANTINE).encode(), TODAY)
    path.write_text("")
    gone = read_brought(path, QUARANTINE.encode(), TODAY)

    assert both.quarantine("noisy") == gone.quarantine("noisy") == IN_WORDS
    assert (both.quarantine(CELL), both.why_counted("noisy")) == (None, None)
    # It is none that a merge spends.
    assert [entry.cell for entry in both.spent] == [CELL, "gone"]


def test_a_quarantine_that_head_brings_or_that_has_expired_does_not_count(tmp_path: Path) -> None:
    path = written(tmp_path, QUARANTINE)
    brought = read_brought(path, b"", TODAY)
    past = read_brought(path, QUARANTINE.encode(), LATER + timedelta(days=1))
    everywhere = QUARANTINE.replace("noisy", "*", 1)
    of_all = read_brought(written(tmp_path, everywhere), b"[[accepted]]", TODAY)

    assert [one.quarantine("noisy") for one in (brought, past, of_all)] == [None] * 3
    assert brought.why_counted("noisy") == "its quarantine counts once the base lists it"
    assert past.why_counted("noisy") == "its quarantine expired on 2027-01-31"
    assert of_all.why_counted("any") == "its quarantine counts once the base lists it"
    assert brought.why_counted("other") is None


def test_a_changed_quarantine_holds_as_the_base_has_it(tmp_path: Path) -> None:
    later = QUARANTINE.replace("2027-01-31", "2999-01-31")
    path = written(tmp_path, later)

    merged = read_brought(path, QUARANTINE.encode(), TODAY)

    assert (merged.quarantine("noisy"), merged.why_counted("noisy")) == (IN_WORDS, None)
    assert read_brought(path, later.encode(), date(2030, 1, 1)).quarantine("noisy") is not None


def block(**changes: str | None) -> str:
    fields: dict[str, str | None] = {
        "cell": '"a"',
        "kind": '"slowdown"',
        "ratio": "1.08",
        "reason": '"why"',
        "expires": "2027-01-31",
        **changes,
    }
    lines = [f"{name} = {value}" for name, value in fields.items() if value is not None]
    return "\n".join(["[[accepted]]", *lines, ""])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (block(reason=None), "Object missing required field `reason`"),
        (block(expires=None), "Object missing required field `expires`"),
        (block(kind=None), "Object missing required field `kind`"),
        (block(cell="7"), "Expected `str`, got `int` - at `$.cell`"),
        (block(kind='"fine"'), "Invalid value 'fine' - at `$.kind`"),
        (block(reason='" "'), "reason is empty"),
        (block(ratio='"8%"'), "Expected `float`, got `str` - at `$.ratio`"),
        (
            block(ratio="0.08"),
            "ratio is 0.08; use a number above 1, such as 1.08 for 8 % more",
        ),
        (block(ratio="inf"), "ratio is inf; use a number above 1, such as 1.08 for 8 % more"),
        (block(ratio="nan"), "ratio is nan; use a number above 1, such as 1.08 for 8 % more"),
        (block(expires='"soon"'), "Invalid RFC3339 encoded date - at `$.expires`"),
        (block(because='"x"'), "Object contains unknown field `because`"),
        (block(kind='"removed"'), "Object contains unknown field `ratio`"),
        (
            block(kind='"renamed"', ratio=None, to='"a"'),
            "to is 'a'; use another name than the cell's",
        ),
        (
            block(kind='"renamed"', ratio=None, to='"b"', cell='"*"'),
            "cell is '*'; name the one cell that is renamed",
        ),
        (
            block(kind='"limit"', ratio=None),
            "nothing is loosened; name limit, tolerance, floor, policy or gate",
        ),
        (
            block(kind='"limit"', ratio=None, limit='"8%"', floor='"x"'),
            "floor: 'x' is not a duration; write a number and one of ns, us, ms, s, min",
        ),
        (
            block(kind='"limit"', ratio=None, gate='"on"'),
            "Invalid enum value 'on' - at `$.gate`",
        ),
        (
            block(kind='"limit"', ratio=None, policy='"advisory"'),
            "cell is 'a'; a policy is the session's, so use '*'",
        ),
        (
            block(kind='"count"', count='"time"'),
            "count is 'time'; use one of flops, ops, collectives, collective_bytes, "
            "saved_activation_bytes, kernel_launches, collected_objects, "
            "allocator_retries, host_syncs, device_copies, device_copy_bytes, graph_breaks, "
            "recompiles, kept_bytes, memory",
        ),
    ],
)
def test_a_wrong_entry_is_named_by_file_line_and_field(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = written(tmp_path, "# one comment\n" + block() + text)

    with pytest.raises(SettingError) as refused:
        read_accepted(path, TODAY)

    assert str(refused.value) == f"{path}: entry 2 (line 8): {problem}; {ALLOWED}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("accepted = 1\n", "has 'accepted' at its top"),
        ("[[acepted]]\ncell = 'a'\n", "has 'acepted' at its top"),
        ("[[accepted]\n", "is not TOML: Expected ']]' at the end of an array declaration (at line "
         "1, column 11)"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises(SettingError) as refused:
        read_accepted(path, TODAY)

    assert str(refused.value) == f"{path} {problem}; {ALLOWED}"


def test_an_entry_is_appended_and_the_rest_stays_byte_for_byte(tmp_path: Path) -> None:
    text = FILE.replace("\n", "\r\n")
    path = written(tmp_path, text)

    append_entry(path, Rename(cell="old", to="new", reason='he said "no"\n', expires=LATER))

    assert path.read_bytes() == text.encode() + (
        b'\n[[accepted]]\ncell = "old"\nkind = "renamed"\nto = "new"\n'
        b'reason = "he said \\"no\\"\\n"\nexpires = 2027-01-31\n'
    )


def test_the_first_entry_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "accepted.toml"

    append_entry(path, slowdown())

    assert path.read_text() == (
        '[[accepted]]\ncell = "benchmarks/test_x.py::test_y[a]"\nkind = "slowdown"\nratio = 1.08\n'
        'reason = "slower, and right"\nexpires = 2027-01-31\n'
    )


def test_a_file_without_a_last_newline_is_not_spoilt(tmp_path: Path) -> None:
    path = written(tmp_path, FILE.rstrip())

    append_entry(path, slowdown("b"))

    assert read_accepted(path, TODAY).entries == (slowdown(), slowdown("b"))


TEXT = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: bool(text.strip()))
ENTRIES = st.one_of(
    st.builds(Slowdown, cell=TEXT, reason=TEXT, expires=st.dates(), ratio=st.floats(1.001, 1e9)),
    st.builds(Removal, cell=TEXT, reason=TEXT, expires=st.dates()),
    st.builds(Quarantine, cell=TEXT, reason=TEXT, expires=st.dates()),
    st.builds(
        Increase,
        cell=TEXT,
        reason=TEXT,
        expires=st.dates(),
        count=st.sampled_from([None, "flops", "memory"]),
        ratio=st.one_of(st.none(), st.floats(1.001, 1e9)),
    ),
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(entries=st.lists(ENTRIES, max_size=4))
def test_what_is_appended_is_read_again(tmp_path: Path, entries: list[Entry]) -> None:
    path = tmp_path / "accepted.toml"
    path.unlink(missing_ok=True)

    for entry in entries:
        append_entry(path, entry)

    assert read_accepted(path, date.min).entries == tuple(entries)


def test_text_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"

    with pytest.raises(SettingError) as refused:
        append_entry(path, Removal(cell="a\udcff", reason="why", expires=LATER))

    assert str(refused.value) == (
        "'a\\udcff' cannot be accepted because of 'why': what is written to "
        f"{path} must be text, and there is '\\udcff' in it"
    )
    assert not path.exists()


def test_pruning_removes_the_expired_entries_and_nothing_else(tmp_path: Path) -> None:
    old = slowdown("old", expires=TODAY - timedelta(days=1))
    path = written(tmp_path, FILE)
    append_entry(path, slowdown("kept"))
    append_entry(path, old)

    removed, stays = prune(path, TODAY)

    assert [entry.cell for entry in removed] == ["gone", "old"]
    assert [entry.cell for entry in stays][-1] == "kept"
    assert not {*removed} & {*stays}
    assert path.read_text() == FILE[: FILE.index('[[accepted]]\ncell = "gone"')] + (
        '[[accepted]]\ncell = "kept"\nkind = "slowdown"\nratio = 1.08\n'
        'reason = "slower, and right"\nexpires = 2027-01-31\n\n'
    )


def test_pruning_takes_the_comment_above_an_entry_with_it(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)

    prune(path, date(2030, 1, 1))

    assert path.read_text() == "# Reviewed like code.\n\n"


def test_a_file_with_nothing_expired_is_not_touched(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    before = path.stat()

    assert prune(path, date(2026, 1, 1))[0] == ()
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino


def test_a_list_in_one_line_is_left_to_people(tmp_path: Path) -> None:
    text = 'accepted = [{cell = "a", kind = "removed", reason = "why", expires = 2020-01-01}]\n'
    path = written(tmp_path, text)

    for edit in (lambda: append_entry(path, slowdown()), lambda: prune(path, TODAY)):
        with pytest.raises(SettingError) as refused:
            edit()
        assert str(refused.value) == (
            f"{path} cannot be edited without a change of meaning; edit it by hand"
        )
    assert path.read_text() == text


def test_pruning_keeps_the_comments_of_the_entries_that_stay(tmp_path: Path) -> None:
    path = written(tmp_path, FILE.replace("# The scheduler", "# Once.\n\n# The scheduler"))
    append_entry(path, slowdown("kept"))
    path.write_text(path.read_text().replace("\n[[accepted]]\ncell = \"kept\"", (
        "\n# Because\n  # of this.\n[[accepted]]  # here\ncell = \"kept\"  # too"
    )))  # fmt: skip
    before = path.read_text()

    prune(path, TODAY)

    gone = before[before.index('[[accepted]]\ncell = "gone"') : before.index("# Because")]
    assert path.read_text() == before.replace(gone, "")
