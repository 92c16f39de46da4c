"""Tables for a paper: a report's cells, and the stages of a profile. Every name stays text."""

from perfsuite.records.profile import Profile
from perfsuite.report.formats.templating import render
from perfsuite.report.model import Report
from perfsuite.report.rows import columns_of, filled
from perfsuite.report.terminal.profile import profile_title
from perfsuite.units import counted

_COLUMNS = columns_of(
    *("cell", "workload", "parallel", "precision", "checkpointing", "num_workers"),
    *("step_time_s", "spread_ratio", "samples_per_s", "load_ratio", "peak_bytes"),
)
# After "text", the names of commands.
_NAMES = dict(zip("<>|'µ", ("less", "greater", "bar", "quotesingle", "mu"), strict=True))
_NAMES |= {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "`": "asciigrave"}
_SPECIAL = {
    **{char: f"\\{char}" for char in "{}$&%#_"},
    # So that neither -- nor ?` becomes another character, and [ does not open an argument.
    **{char: f"{{{char}}}" for char in "-?!,[]*"},
    **{char: rf"\text{name}{{}}" for char, name in _NAMES.items()},
    # By its number: the fonts of an unchanged LaTeX have no command for it.
    '"': r"\symbol{34}",
    "\n": " ",
    "\r": " ",
    "±": r"$\pm$",
}


def to_latex(report: Report) -> str:
    """Return a booktabs tabular with a row for each cell, which the workload names."""
    has_plain = any(row.record is None for row in report.rows)
    columns = filled([one for one in _COLUMNS if has_plain or one.key != "cell"], report.rows)
    table = render(
        "table.tex.j2",
        alignment="".join("r" if column.is_number else "l" for column in columns),
        titles=[escape(column.title) for column in columns],
        rows=[[escape(column.text(row)) for column in columns] for row in report.rows],
    )
    return table + "\n"


def profile_latex(profile: Profile) -> str:
    """Return the table of stages as a LaTeX `table` that needs no package."""
    stages = [(escape(name), seconds) for name, seconds in profile.stages_s.as_rows()]
    title, epochs = profile_title(profile), counted(len(profile.epochs), "epoch")
    ranks = counted(profile.world_size, "rank")
    caption = f"Where the time of {title} went: {epochs} on {profile.device}, {ranks}."
    values = {"stages": stages, "wall_s": profile.wall_s, "caption": escape(caption)}
    return render("profile.tex.j2", **values) + "\n"


def escape(text: str) -> str:
    r"""Return text that LaTeX sets literally; a letter that it lacks becomes its code point."""
    # At any character beyond Latin-1 pdfLaTeX stops, unless a package declares it.
    return "".join(
        _SPECIAL.get(char)
        or (char if char.isprintable() and char <= "\xff" else f"U+{ord(char):04X}")
        for char in text
    )
