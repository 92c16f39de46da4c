"""The page: one whole file that fetches nothing, hostile names are text, a missing value a dash."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from made_up_runs import HOSTILE, cell, report_on, verdict

from perfsuite.report.formats.html import _num_digits, html_page, svg_file
from perfsuite.report.rows import HistoryPoint, Row
from perfsuite.system.untrusted import printable

FETCHING = {"src", "srcset", "action", "data", "poster", "background", "xlink:href", "style"}


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "link", "input", "path"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)

    def of(self, tag: str, name: str) -> list[str]:
        return [value for t, n, value in self.attributes if (t, n) == (tag, name)]


def judged() -> list[Row]:
    return [
        cell("slow", given=verdict("FAIL", ratio=1.1, interval=(1.05, 1.15))),
        cell("fine", given=verdict(), parallel="ddp:2", num_workers=2),
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text(name: str) -> None:
    shown = printable(name)
    row = cell(shown, workload=name, given=verdict(by=name))
    twin = cell("twin", workload=name, num_workers=2)

    page = Page(html_page(report_on(row, twin, sources=[name], remarks=[name])))

    assert shown in page.texts.get("th", [""])
    assert page.tags.count("script") == 1
    assert page.tags.count("title") == 1
    assert not {"img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_the_verdict_is_not_pushed_off_the_screen_by_what_it_rests_on() -> None:
    def sources_of(number: int) -> str:
        sources = [f"run {index}" for index in range(number)]
        return html_page(report_on(*judged(), sources=sources)).partition("<nav")[0]

    few, many = sources_of(6), sources_of(30)

    assert "<details" not in few
    shown, _, folded = many.partition("<details")
    assert [shown.count("<li>"), folded.count("<li>")] == [6, 24]
    assert "<summary>and 24 more</summary>" in folded


def test_nothing_on_the_page_leads_elsewhere() -> None:
    text = html_page(report_on(*judged()))

    page = Page(text)
    assert not [a for a in page.attributes if a[1] in FETCHING]
    assert page.of("link", "href") == ["data:,"]
    assert all(target.startswith("#") for target in page.of("a", "href"))
    assert "url(" not in text
    assert "@import" not in text


def test_the_policy_names_the_only_styles_and_script_by_their_hashes() -> None:
    text = html_page(report_on(*judged()))

    policy = Page(text).of("meta", "content")[0]
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")


def test_the_most_severe_verdict_comes_first() -> None:
    page = Page(html_page(report_on(*reversed(judged()))))

    assert page.texts["strong"] == ["FAIL"]
    assert [name for name in page.texts["th"] if name in ("slow", "fine")] == ["slow", "fine"]


def test_what_moved_stands_first_by_how_much_and_why() -> None:
    slow = dataclasses.replace(judged()[0], note="moved most: load")
    moved = html_page(report_on(slow, judged()[1])).split('<h2 id="cells">')[0]

    assert '<span class="w-FAIL">FAIL</span> slow' in moved
    assert "change <b>+10.0 %</b>, between <b>+5.0 % and +15.0 %</b>" in moved
    assert "moved most: load" in moved
    assert "fine" not in moved.split("<main>")[1]


def test_where_nothing_moved_the_largest_change_is_told() -> None:
    rows = [cell(name, given=verdict(ratio=r)) for name, r in (("a", 1.004), ("b", 1.012))]

    assert "No judged cell did; the largest change is +1.2 %, b." in html_page(report_on(*rows))


def test_a_hundred_cells_that_moved_do_not_hide_the_table() -> None:
    rows = [cell(f"c{number}", given=verdict("FAIL", ratio=1.1)) for number in range(100)]

    text = html_page(report_on(*rows))

    assert text.count("<article") == 5
    assert "The table begins with all 100." in text


def test_every_part_is_one_click_from_the_top() -> None:
    page = Page(html_page(report_on(*judged())))

    targets = [target.removeprefix("#") for target in page.of("a", "href")]
    assert {"moved", "cells", "legend"} <= set(targets)
    assert set(targets) <= set(page.of("h2", "id"))


def test_what_is_not_available_is_a_dash_and_sorted_by_nothing() -> None:
    page = Page(html_page(report_on(cell("a", samples_per_s=None), cell("b"))))

    assert "-" in [text.strip() for text in page.texts["td"]]
    row_a = html_page(report_on(cell("a", samples_per_s=None), cell("b"))).split("</tr>")[1]
    assert '<td class="n">-</td>' in row_a


def test_a_column_that_no_cell_fills_is_left_out() -> None:
    plain = Page(html_page(report_on(Row(name="t", step_time_s=1.0, rounds_s=(1.0, 1.1)))))

    headings = [text for text in plain.texts["th"] if text.strip()]
    assert headings == ["cell", "step", "spread", "t"]


def test_every_picture_says_what_it_shows() -> None:
    history = (
        HistoryPoint(when="mon", commit=None, step_time_s=1.0, is_accepted=False),
        HistoryPoint(when="tue", commit="abc", step_time_s=2.0, is_accepted=True),
    )
    row = Row(name="t", step_time_s=2.0, rounds_s=(2.0, 2.0), history=history)

    page = Page(html_page(report_on(row, *judged())))

    labels = page.of("svg", "aria-label")
    assert len(labels) == page.tags.count("svg")
    assert "2 runs: mon no commit 1.00 s, tue abc 2.00 s (accepted change)" in labels
    assert set(page.of("svg", "role")) == {"img"}


def test_advice_comes_with_its_evidence_and_its_rule() -> None:
    text = html_page(
        report_on(cell("a", (0.01,) * 9), cell("b", (0.02,) * 9, precision="amp-bf16"))
    )

    assert "lenet, single: amp-bf16 is slower than fp32 here" in text
    assert "20.0 ms a step with amp-bf16, 10.0 ms a step with fp32 (+100.0 %)" in text
    assert "Where a lower precision is slower or faster than fp32, beyond the noise:" in text


@pytest.mark.parametrize("num_remarks", [1, 9])
def test_what_numbers_do_not_say_is_said_and_many_remarks_are_folded(num_remarks: int) -> None:
    row = Row(name="t", step_time_s=1.0, note="no <memory>")

    page = Page(html_page(report_on(row, remarks=[f"r{n}" for n in range(num_remarks)])))

    assert "t: no <memory>" in page.texts["li"]
    assert [text for text in page.texts["p"] if text.startswith("r")] == [
        f"r{n}" for n in range(num_remarks)
    ]
    assert page.tags.count("details") == (1 if num_remarks == 1 else 2)


@pytest.mark.parametrize("name", HOSTILE)
def test_each_chart_is_a_well_formed_file_of_its_own(name: str) -> None:
    rows = [cell("a", workload=name), cell("b", workload=name, num_workers=2)]

    ((chart,),) = (section.charts for section in report_on(*rows).sections)
    text = svg_file(chart)

    root = ElementTree.fromstring(text.encode())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    title = root.findtext("{http://www.w3.org/2000/svg}title") or ""
    assert title.startswith(f"Loader workers, {', '.join(filter(None, [printable(name)]))}")
    assert not root.findall(".//{http://www.w3.org/2000/svg}script")


def test_a_column_is_as_wide_as_its_letters_in_any_font() -> None:
    assert [_num_digits("12"), _num_digits("NEW")] == [2.0, pytest.approx(4.2)]
