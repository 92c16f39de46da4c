"""The report's table for a paper. Needs the package booktabs; whatever a name holds is text."""

from __future__ import annotations

from typing import Final

from perfsuite.report.model import Report
from perfsuite.report.rows import columns_of, filled

_COLUMNS: Final = columns_of(
    "cell",
    "workload",
    "parallel",
    "precision",
    "checkpointing",
    "num_workers",
    "step_time_s",
    "spread_ratio",
    "samples_per_s",
    "load_ratio",
    "peak_bytes",
)
_SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # By its number: the fonts of an unchanged LaTeX have no command for it.
    '"': r"\symbol{34}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    # So that neither -- nor ?` becomes another character, and [ does not open an argument.
    "-": r"{-}",
    "?": r"{?}",
    "!": r"{!}",
    ",": r"{,}",
    "[": r"{[}",
    "]": r"{]}",
    "*": r"{*}",
    "\n": " ",
    "\r": " ",
    "±": r"$\pm$",
    "µ": r"\textmu{}",
}


def to_latex(report: Report) -> str:
    """Return a tabular with a row for each cell; the workload stands for the cell's name."""
    has_plain = any(row.record is None for row in report.rows)
    columns = filled(
        [column for column in _COLUMNS if has_plain or column.key != "cell"], report.rows
    )
    alignment = "".join("r" if column.is_number else "l" for column in columns)
    lines = [
        "% needs \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        _line([column.title for column in columns]),
        "\\midrule",
        *(_line([column.text(row) for column in columns]) for row in report.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _line(texts: list[str]) -> str:
    return " & ".join(map(escape, texts)) + " \\\\"


def escape(text: str) -> str:
    r"""Return text that LaTeX sets as it stands, and by its code point what it has no letter for.

    >>> print(escape("50 % of a_b"), escape("→"))
    50 \% of a\_b U+2192
    """
    return "".join(_SPECIAL.get(char) or _settable(char) for char in text)


def _settable(char: str) -> str:
    # At any character beyond Latin-1 pdfLaTeX stops, unless a package declares it.
    return char if char.isprintable() and char <= "\xff" else f"U+{ord(char):04X}"
