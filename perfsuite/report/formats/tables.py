"""A report's cells, and the stages of a profile, as CSV in base units and as tables for a paper."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

from perfsuite.records.cell import StageTimes
from perfsuite.records.profile import Profile
from perfsuite.report.model import Report
from perfsuite.report.rows import COLUMNS, RECIPE_FIELDS, columns_of, filled
from perfsuite.report.terminal.profile import profile_title
from perfsuite.system.untrusted import printable
from perfsuite.units import counted

# What makes a spreadsheet calculate (OWASP, "CSV Injection").
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_STAGES: Final = StageTimes.__struct_fields__
_BOUNDS: Final = ("interval_low_ratio", "interval_high_ratio", "tolerance_ratio", "limit_ratio")
# Each bound gets a column of its own, and a recipe's fields come with the others of the recipe.
_ELSEWHERE: Final = ("interval", *RECIPE_FIELDS)
_IN_PAPER: Final = columns_of(
    *("cell", "workload", "parallel", "precision", "checkpointing", "num_workers"),
    *("step_time_s", "spread_ratio", "samples_per_s", "load_ratio", "peak_bytes"),
)
_SPECIAL: Final = {
    **{char: f"\\{char}" for char in "{}$&%#_"},
    # So that neither -- nor ?` becomes another character, and [ does not open an argument.
    **{char: f"{{{char}}}" for char in "-?!,[]*"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # By its number: the fonts of an unchanged LaTeX have no command for it.
    '"': r"\symbol{34}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "\n": " ",
    "\r": " ",
    "±": r"$\pm$",
    "µ": r"\textmu{}",
}


def to_csv(report: Report) -> str:
    """Return a line for each cell; an empty field is a number that is not available."""
    columns = [column for column in COLUMNS if column.key not in _ELSEWHERE]
    keys = (column.key for column in columns)
    lines: list[list[object]] = [
        [*keys, *_BOUNDS, "rounds", *(f"{stage}_s" for stage in _STAGES), *RECIPE_FIELDS]
    ]
    for row in report.rows:
        verdict = row.verdict
        low, high = (verdict and verdict.interval) or (None, None)
        lines.append(
            [
                *(column.value(row) for column in columns),
                *(low, high, getattr(verdict, "tolerance", None), getattr(verdict, "limit", None)),
                len(row.rounds_s) or None,
                *(row.stages_s.get(stage) for stage in _STAGES),
                *(getattr(row.recipe, name, None) for name in RECIPE_FIELDS),
            ]
        )
    return _csv_text(lines)


def profile_csv(profile: Profile) -> str:
    """Return the stages as CSV with a header, in seconds and as ratios of the wall time."""
    lines = [*profile.stages_s.as_rows(), ("total", profile.wall_s)]
    shares = ((name, f"{s:.6f}", f"{s / profile.wall_s:.6f}") for name, s in lines)
    return _csv_text([("stage", "seconds", "share"), *shares])


def _csv_text(lines: Iterable[Sequence[object]]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(map(escape_formula, line) for line in lines)
    return output.getvalue()


def escape_formula(value: object) -> object:
    """Return a value that no spreadsheet calculates, and no terminal obeys.

    >>> escape_formula("=1+1"), escape_formula(-1.5)
    ("'=1+1", -1.5)
    """
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA_STARTS) else value)


def to_latex(report: Report) -> str:
    """Return a booktabs tabular with a row for each cell, which the workload names."""
    has_plain = any(row.record is None for row in report.rows)
    columns = filled([one for one in _IN_PAPER if has_plain or one.key != "cell"], report.rows)
    alignment = "".join("r" if column.is_number else "l" for column in columns)
    lines = [
        "% needs \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        _latex_line([column.title for column in columns]),
        "\\midrule",
        *(_latex_line([column.text(row) for column in columns]) for row in report.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def profile_latex(profile: Profile) -> str:
    """Return the table of stages as a LaTeX `table` that needs no package."""
    rows = "\n".join(
        rf"{escape_latex(name)} & {seconds:.6f} & {100 * seconds / profile.wall_s:.1f} \\"
        for name, seconds in profile.stages_s.as_rows()
    )
    epochs, ranks = counted(len(profile.epochs), "epoch"), counted(profile.world_size, "rank")
    caption = (
        f"Where the time of {profile_title(profile)} went: {epochs} on {profile.device}, {ranks}."
    )
    return rf"""\begin{{table}}
\centering
\begin{{tabular}}{{lrr}}
\hline
Stage & Time (s) & Share (\%) \\
\hline
{rows}
\hline
total & {profile.wall_s:.6f} & 100.0 \\
\hline
\end{{tabular}}
\caption{{{escape_latex(caption)}}}
\end{{table}}
"""


def _latex_line(texts: list[str]) -> str:
    return " & ".join(map(escape_latex, texts)) + " \\\\"


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX sets literally; a letter that it lacks becomes its code point.

    >>> print(escape_latex("50 % of a_b"), escape_latex("→"))
    50 \% of a\_b U+2192
    """
    # At any character beyond Latin-1 pdfLaTeX stops, unless a package declares it.
    return "".join(
        _SPECIAL.get(char)
        or (char if char.isprintable() and char <= "\xff" else f"U+{ord(char):04X}")
        for char in text
    )
