"""The folder of a report: the page, and the same in every other format beside it."""

import hashlib
import re
from pathlib import Path

from perfsuite.report.formats.csv_file import to_csv
from perfsuite.report.formats.html import html_page, svg_file
from perfsuite.report.formats.latex import to_latex
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.model import Report
from perfsuite.report.scaling.section import scaling_json
from perfsuite.system.files import remove_file, write_atomically

PAGE = "index.html"
# A name may have 255 bytes, and the trackers add to it.
_MOST_NAME_CHARACTERS = 120


def write_folder(report: Report, folder: Path) -> None:
    """Write index.html, report.md, table.tex, cells.csv, scaling.json if any, and chart-N.svg.

    The charts and scaling.json of an earlier report there are removed if this one has none.
    """
    files = {
        PAGE: html_page(report),
        "report.md": to_markdown(report),
        "table.tex": to_latex(report),
        "cells.csv": to_csv(report),
    }
    if report.scaling.series or report.scaling.links:
        files["scaling.json"] = scaling_json(report.scaling)
    charts = (chart for section in report.sections for chart in section.charts)
    files |= {f"chart-{number}.svg": svg_file(chart) for number, chart in enumerate(charts, 1)}
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    for path in (folder / "scaling.json", *folder.glob("chart-*.svg")):
        if path.name not in files:
            remove_file(path)


def file_name(text: str) -> str:
    """Return a name for a file or a folder: unique to the text, and without path separators."""
    readable = re.sub(r"[^A-Za-z0-9=+-]+", "-", text).strip("-")[-_MOST_NAME_CHARACTERS:]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
