"""The page in a real browser: it fetches nothing, filters, sorts, and is accessible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import find_chromium, open_browser
from made_up_runs import HOSTILE, cell, report_on, verdict
from playwright.sync_api import Browser, Page
from scaled_runs import all_reduces, trained

from perfsuite.report.formats.html import html_page
from perfsuite.report.model import Report
from perfsuite.report.rows import HistoryPoint, Row
from perfsuite.system.untrusted import printable

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
# The impacts that make the page unusable for some people, as axe-core calls them.
GRAVE = ("serious", "critical")

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def full_report(*more: Row) -> Report:
    """Verdicts, pictures, history, charts and hostile names, and the rows given."""
    history = tuple(
        HistoryPoint(
            when=f"day {day}", commit=None, step_time_s=0.004 + day / 1e4, is_accepted=day == 2
        )
        for day in range(4)
    )
    rows = [
        cell(
            f"benchmarks/test_step.py::test_step[{workers}-{parallel}-{precision}]",
            tuple(0.004 + (workers + round_ % 3) / 1e4 for round_ in range(10)),
            num_workers=workers,
            parallel=parallel,
            precision=precision,
            peak_bytes=2**20 * (1 + workers),
            losses=(2.3, 2.0, 1.5),
            counts={"flops": 10**7, "collectives": 1},
            given=verdict(word, ratio=ratio, interval=(ratio - 0.02, ratio + 0.03)),
        )
        for workers in (0, 2, 4)
        for parallel, word, ratio in (("single", "PASS", 1.0), ("ddp:2", "FAIL", 1.1))
        for precision in ("fp32", "amp-bf16")
    ]
    hostile = [
        Row(name=printable(name), step_time_s=0.001, note=printable(name)) for name in HOSTILE
    ]
    old = Row(name="old", step_time_s=0.0044, rounds_s=(0.004, 0.005), history=history)
    return report_on(*rows, old, *hostile, *more, sources=["run.json"], remarks=["skipped: no GPU"])


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """(report, **of the context) -> its page; fails on any message or request of the page."""
    complaints: list[str] = []
    contexts = []

    def open_page(report: Report, **fields: Any) -> Page:
        path = tmp_path / "index.html"
        path.write_text(html_page(report), encoding="utf-8")
        context = browser.new_context(**({"viewport": WIDE} | fields))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url))
        page.goto(path.as_uri())
        assert complaints.pop(0) == path.as_uri()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def shown(page: Page) -> list[str]:
    """The names of the rows that can be seen, in order."""
    names = page.locator(".cells tbody tr:visible > th").all_text_contents()
    return [name.rpartition("::")[2] for name in names]


def test_the_page_fetches_nothing_and_no_name_runs(show: Any) -> None:
    page = show(full_report())

    assert len(shown(page)) == 13 + len(HOSTILE)
    assert page.locator("main script, main img, main iframe").count() == 0


def test_the_filter_keeps_the_rows_that_have_every_word(show: Any) -> None:
    page = show(full_report())

    page.get_by_label("Filter").fill("DDP:2 amp-bf16")

    assert shown(page) == [f"test_step[{workers}-ddp:2-amp-bf16]" for workers in (0, 2, 4)]
    assert page.locator("#shown").text_content() == f"3 of {13 + len(HOSTILE)} cells"

    page.get_by_label("Verdict").select_option("PASS")
    assert shown(page) == []

    page.get_by_label("Filter").fill("")
    assert len(shown(page)) == 6


def test_a_heading_sorts_by_size_both_ways_and_what_is_missing_stays_last(show: Any) -> None:
    page = show(full_report())
    heading = page.get_by_role("button", name="peak memory")

    heading.click()
    ascending = shown(page)
    heading.click()
    descending = shown(page)

    workers = [name[len("test_step[")] for name in ascending[:12]]
    assert workers == ["0"] * 4 + ["2"] * 4 + ["4"] * 4
    assert [name[len("test_step[")] for name in descending[:12]] == workers[::-1]
    assert ascending[12:] == descending[12:]
    assert page.get_by_role("columnheader", name="peak memory").get_attribute("aria-sort") == (
        "descending"
    )


def test_columns_stand_under_their_headings_and_nothing_overflows(show: Any) -> None:
    page = show(full_report())

    lefts = page.evaluate(
        """() => [...document.querySelectorAll(".cells tr")].map(row =>
            [...row.cells].map(cell => Math.round(cell.getBoundingClientRect().left)))"""
    )
    overflowing = page.evaluate(
        """() => [...document.querySelectorAll("th, td")]
            .filter(cell => cell.scrollWidth > cell.clientWidth + 1)
            .map(cell => cell.textContent)"""
    )

    assert all(row == lefts[0] for row in lefts)
    assert overflowing == []


def test_the_columns_that_people_look_for_lie_within_a_common_screen(show: Any) -> None:
    page = show(full_report())

    for title in ("verdict", "change", "between", "step", "spread", "numerics", "peak memory"):
        box = page.get_by_role("columnheader", name=title, exact=True).bounding_box()
        assert box["x"] + box["width"] <= WIDE["width"], title


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_first_screen_says_the_verdict_and_what_moved(
    show: Any, viewport: dict[str, int]
) -> None:
    page = show(full_report(), viewport=viewport)

    first = page.locator("article").first
    box = first.bounding_box()
    assert box["y"] + box["height"] <= viewport["height"]
    for text in ("FAIL", "test_step[0-ddp:2-fp32]", "+10.0 %"):
        assert text in first.inner_text()


def test_where_nothing_was_judged_the_first_screen_has_a_chart(show: Any) -> None:
    rows = [
        cell(f"test_it[{n}-{p}]", (0.01 + n / 1e3,) * 9, num_workers=n, precision=p)
        for n in range(10)
        for p in ("fp32", "amp-bf16", "bf16")
    ]
    page = show(report_on(*rows))

    box = page.locator("figure").first.bounding_box()
    assert box["y"] + box["height"] <= WIDE["height"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_no_fault_makes_the_page_inaccessible(
    show: Any, scheme: str, viewport: dict[str, int]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    scaled = [*all_reduces(2, 4), trained(), trained("ddp:2")]
    page = show(full_report(*scaled), color_scheme=scheme, viewport=viewport)

    violations = axe.run(page).response["violations"]
    grave = [
        (found["id"], [node["html"] for node in found["nodes"][:3]])
        for found in violations
        if found["impact"] in GRAVE
    ]
    assert grave == []


def test_on_a_phone_nothing_lies_beside_the_screen(show: Any) -> None:
    page = show(full_report(*all_reduces(2, 4), trained(), trained("ddp:2")), viewport=PHONE)

    widths = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")

    assert widths[0] <= widths[1]


def test_on_a_phone_a_name_stands_apart_from_its_value(show: Any) -> None:
    page = show(full_report(), viewport=PHONE)

    gaps = page.evaluate(
        """() => Array.from(document.querySelectorAll(".cells tbody tr:first-child td"))
            .filter(cell => cell.textContent.trim())
            .map(cell => parseFloat(getComputedStyle(cell, "::before").marginRight)
                + parseFloat(getComputedStyle(cell).columnGap || 0))"""
    )

    assert len(gaps) > 5
    assert min(gaps) >= 8  # pixels


def test_on_paper_every_row_is_there_and_no_control(show: Any) -> None:
    page = show(full_report())

    page.emulate_media(media="print")

    assert len(shown(page)) == 13 + len(HOSTILE)
    assert not page.locator("form").is_visible()
