"""The tables for a paper, set by a real LaTeX: it accepts them, and they print the very figures."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from made_up_runs import HOSTILE, cell, report_on
from profile_example import PROFILE
from pypdf import PdfReader

from perfsuite.records.profile import Profile
from perfsuite.report.formats.latex import profile_latex, to_latex
from perfsuite.system.untrusted import printable

COMMAND = ("pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error")
PACKAGES = r"\usepackage[T1]{fontenc}\usepackage{textcomp}\usepackage{booktabs}"
# Wide enough for any row, so that none is cut off at the border of the page.
PAGE = r"\setlength\paperwidth{150cm}\setlength\textwidth{140cm}\setlength\topmargin{-1in}"

Typeset = Callable[..., list[str]]


@pytest.fixture
def typeset(tmp_path: Path) -> Typeset:
    """(table, packages) -> the lines that are printed."""
    if shutil.which(COMMAND[0]) is None:
        pytest.skip("pdflatex is not installed")

    def run(table: str, packages: str = "") -> list[str]:
        source = (
            rf"\documentclass{{article}}{packages}{PAGE}\begin{{document}}{table}\end{{document}}"
        )
        (tmp_path / "page.tex").write_text(source, encoding="utf-8")
        ended = subprocess.run(
            [*COMMAND, "page.tex"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        pages = PdfReader(tmp_path / "page.pdf").pages
        return "\n".join(page.extract_text() for page in pages).splitlines()

    return run


def test_the_printed_stages_are_those_of_the_json(typeset: Typeset) -> None:
    stages = msgspec.structs.replace(PROFILE.stages_s, load=3.999999, other=0.500001)
    encoded = msgspec.json.encode(msgspec.structs.replace(PROFILE, stages_s=stages))
    decoded = msgspec.json.decode(encoded, type=Profile)

    printed = typeset(profile_latex(decoded))

    start = printed.index("Stage Time (s) Share (%)") + 1
    rows = [line.rsplit(" ", 2) for line in printed[start : start + 6]]
    assert [(name, float(seconds)) for name, seconds, _ in rows] == [
        *decoded.stages_s.as_rows(),
        ("total", decoded.wall_s),
    ]
    shares = [float(share) for *_, share in rows]
    assert shares == [40.0, 10.0, 20.0, 25.0, 5.0, 100.0]


def test_a_name_in_the_caption_is_printed_as_it_stands(typeset: Typeset) -> None:
    hostile = msgspec.structs.replace(PROFILE, workload=r'a_b:\input{/etc/passwd}%&$#^~<">')

    printed = "".join(typeset(profile_latex(hostile), PACKAGES)).replace(" ", "")

    assert r'a_b:\input{/etc/passwd}%&$#^~<">(ddp:2,fp32,2loaderworkers)' in printed


def test_the_table_of_cells_prints_each_name_as_it_stands(typeset: Typeset) -> None:
    names = [*map(printable, HOSTILE), "déjà"]
    rows = [cell("t", (0.0021,) * 3, workload=name, peak_bytes=2**20) for name in names]

    printed = typeset(to_latex(report_on(*rows)), PACKAGES)

    for name in names:
        wanted = f"{name} single fp32 none 0 2.10 ms ± 0.0 % 1.00 k 25.0 % 1.00 MiB"
        assert wanted.replace(" ", "") in [line.replace(" ", "") for line in printed]


def test_what_no_font_has_is_printed_by_its_code_point(typeset: Typeset) -> None:
    printed = typeset(to_latex(report_on(cell("t", workload="a→名"))), PACKAGES)

    assert any(line.startswith("aU+2192U+540D single") for line in printed)
