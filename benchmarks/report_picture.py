"""A picture of a report's page, small enough for a README.

perfsuite run benchmarks --perf-matrix=smoke --benchmark-compare
python benchmarks/report_picture.py results/report/index.html docs/report.png

Needs Chromium, as the tests of the page do.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from PIL import Image
from PIL.Image import Dither

# One browser for the tests and for this picture.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from browser import open_browser

# Text on paper has few colours; a palette of them is a third of the file.
NUM_COLORS = 128


def main(
    page: Annotated[Path, typer.Argument(help="The report's index.html.")],
    picture: Annotated[Path, typer.Argument(help="Where the PNG goes.")],
    width: Annotated[int, typer.Option(help="Of the window, in CSS pixels.")] = 1280,
    height: Annotated[int, typer.Option(help="Of the window; 0 is the whole page.")] = 1500,
    scheme: Annotated[str, typer.Option(help="light or dark.")] = "light",
) -> None:
    """Open the page and take its picture."""
    chosen: Literal["light", "dark"] = "dark" if scheme == "dark" else "light"
    with open_browser() as browser:
        context = browser.new_context(
            viewport={"width": width, "height": height or 900}, color_scheme=chosen
        )
        tab = context.new_page()
        tab.goto(page.resolve().as_uri())
        taken = tab.screenshot(full_page=height == 0)
        context.close()
    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(NUM_COLORS, dither=Dither.NONE)
    picture.parent.mkdir(parents=True, exist_ok=True)
    image.save(picture, optimize=True)
    typer.echo(f"{picture}: {image.width}x{image.height}, {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
