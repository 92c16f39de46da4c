"""The folder of a report: the page, and the same in every other format beside it."""

from __future__ import annotations

from pathlib import Path

from perfsuite.report.formats.csv_file import to_csv
from perfsuite.report.formats.html import html_page, svg_files
from perfsuite.report.formats.latex import to_latex
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.formats.scaling_files import scaling_csv, scaling_json
from perfsuite.report.model import Report
from perfsuite.system.files import remove_file, write_atomically

PAGE = "index.html"


def write_folder(report: Report, folder: Path) -> None:
    """Write index.html, report.md, table.tex, cells.csv, and each chart as chart-N.svg.

    Where cells say anything of scaling, scaling.json and scaling.csv too. What an earlier report
    left there, and this one has not, is removed.

    Raises:
        WriteError: A file cannot be written; names the path and the reason.
    """
    write_atomically(folder / PAGE, html_page(report).encode())
    write_atomically(folder / "report.md", to_markdown(report).encode())
    write_atomically(folder / "table.tex", to_latex(report).encode())
    write_atomically(folder / "cells.csv", to_csv(report).encode())
    has_scaling = bool(report.scaling.series or report.scaling.links)
    for name, write in (("scaling.json", scaling_json), ("scaling.csv", scaling_csv)):
        if has_scaling:
            write_atomically(folder / name, write(report.scaling).encode())
        else:
            remove_file(folder / name)
    charts = {f"chart-{number}.svg": text for number, text in enumerate(svg_files(report), 1)}
    for name, text in charts.items():
        write_atomically(folder / name, text.encode())
    for path in folder.glob("chart-*.svg"):
        if path.name not in charts:
            remove_file(path)
