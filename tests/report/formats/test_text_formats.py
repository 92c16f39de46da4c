"""Markdown, LaTeX and CSV: the same rows, and hostile names as data in each."""

from __future__ import annotations

import csv
import io
import re

import pytest
from made_up_runs import HOSTILE, cell, report_on, verdict
from markdown_it import MarkdownIt

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.formats.csv_file import escape_formula, to_csv
from perfsuite.report.formats.latex import escape as escape_latex
from perfsuite.report.formats.latex import to_latex
from perfsuite.report.formats.markdown import as_code, escape, to_markdown
from perfsuite.report.model import report_on_verdicts
from perfsuite.report.rows import Row
from perfsuite.system.untrusted import printable


def rendered(markdown: str) -> list[list[str]]:
    """The texts of a table's cells, as a renderer of GitHub's dialect finds them."""
    rows: list[list[str]] = []
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for token in tokens.parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        if token.type == "inline" and rows and token.level == 4:
            parts = [child.content for child in token.children or [] if child.type != "html_inline"]
            rows[-1].append("".join(parts))
    return rows


def tags(markdown: str) -> set[str]:
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return set(re.findall(r"<(\w+)", html.render(markdown)))


# --- Markdown ---


def test_the_verdict_comes_first_then_the_table_then_what_is_folded() -> None:
    report = report_on(
        cell("fine", given=verdict()),
        cell("slow", given=verdict("FAIL", ratio=1.1, interval=(1.05, 1.15)), num_workers=2),
        sources=["run.json"],
    )

    lines = to_markdown(report).splitlines()

    assert lines == [
        "**FAIL**: 2 cells&#58; 1 FAIL, 1 PASS",
        "",
        "| cell | verdict | change | between | step | spread | samples/s | load | numerics |",
        "| :-- | :-- | --: | :-- | --: | --: | --: | --: | :-- |",
        "| `slow` | FAIL | +10.0 % | +5.0 % and +15.0 % | 4.00 ms | ± 0.0 % | 1.00 k | 25.0 % "
        "| equivalent |",
        "| `fine` | PASS | +1.0 % | -1.0 % and +3.0 % | 4.00 ms | ± 0.0 % | 1.00 k | 25.0 % "
        "| equivalent |",
        "",
        "<details><summary>What was compared</summary>",
        "",
        "- run.json",
        "",
        "</details>",
        "",
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_in_its_cell_of_the_markdown(name: str) -> None:
    row = cell(printable(name), given=verdict(by=name), workload=name)
    report = report_on(row, sources=[name], remarks=[name])

    markdown = to_markdown(report)

    header, (shown, word, *numbers) = rendered(markdown)
    assert (shown, word.strip()) == (printable(name), "PASS")
    assert len(numbers) == len(header) - 2
    assert tags(markdown) <= {
        *("p", "strong", "code", "table", "thead", "tbody", "tr", "th", "td"),
        *("details", "summary", "ul", "li"),
    }


@pytest.mark.parametrize("text", ["@team", "see #12", "ask @team `now`|"])
def test_what_a_host_would_link_is_code(text: str) -> None:
    shown = escape(text)

    assert shown.startswith(("`", "<code>"))
    assert "|" not in shown


def test_an_empty_text_is_no_open_fence() -> None:
    assert as_code("") == "<code></code>"


def test_a_comment_never_outgrows_its_host_and_says_what_it_leaves_out() -> None:
    rows = [cell(f"{'x' * 200}[{number}]", given=verdict()) for number in range(1000)]

    text = to_markdown(report_on(*rows, sources=["y" * 100] * 1000))

    assert len(text) < 65_536
    (left_out,) = re.findall(r"\n(\d+) more cells are in the other formats\.", text)
    assert text.count("| `xxx") == 1000 - int(left_out)
    assert re.search(r"- \d+ more are in the other formats\n\n</details>", text)


def test_a_gate_that_refused_says_why_and_has_no_table() -> None:
    report = report_on_verdicts([], refusal="there is | no base", differs={"head": "main"})

    assert to_markdown(report) == (
        "**NO VERDICT**: not compared&#58; there is &#124; no base\n\n\n"
        "<details><summary>What was compared</summary>\n\n- head&#58; main\n\n</details>\n\n"
    )


def test_a_gates_verdict_has_heads_time_and_its_reason_folded() -> None:
    cells = [
        CellVerdict(
            name="slow",
            word="FAIL",
            by="pairs",
            ratio=1.1,
            interval=(1.05, 1.15),
            num_pairs=3,
            raw=((0.010, 0.011), (0.010, 0.012), (0.010, 0.011)),
        ),
        CellVerdict(name="new|", word="NEW", by="collection", reason="the base has <none>"),
    ]

    markdown = to_markdown(report_on_verdicts(cells, refusal=None, differs={}))

    assert rendered(markdown) == [
        ["cell", "verdict", "change", "between", "step"],
        ["slow", "FAIL", "+10.0 %", "+5.0 % and +15.0 %", "11.0 ms"],
        ["new|", "NEW", "-", "-", "-"],
    ]
    assert "- <code>new&#124;</code>: the base has &#60;none&#62;" in markdown


# --- LaTeX ---


def test_the_latex_table_has_the_figures_of_the_record() -> None:
    row = cell("t", (0.002, 0.002), peak_bytes=2**20, parallel="ddp:2", num_workers=2)

    assert to_latex(report_on(row)).splitlines()[1:] == [
        r"\begin{tabular}{llllrrrrrr}",
        r"\toprule",
        r"workload & parallel & precision & checkpointing & workers & step & spread & samples/s "
        r"& load & peak memory \\",
        r"\midrule",
        r"lenet & ddp:2 & fp32 & none & 2 & 2.00 ms & $\pm$ 0.0 \% & 1.00 k & 25.0 \% "
        r"& 1.00 MiB \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_plain_benchmark_is_named_and_its_empty_columns_are_left_out() -> None:
    text = to_latex(report_on(Row(name="a_b", step_time_s=0.001, rounds_s=(0.001, 0.001))))

    assert r"cell & step & spread \\" in text
    assert r"a\_b & 1.00 ms & $\pm$ 0.0 \% \\" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_in_latex(name: str) -> None:
    text = to_latex(report_on(cell("t", workload=name)))

    row = text.splitlines()[5]
    header = text.splitlines()[3]
    # What is left of a row without its escapes has no command, comment, group or separator.
    bare = re.sub(r"\\text\w+\{\}|\\symbol\{34\}|\{[-?!,\[\]*]\}|\\[{}$&%#_]|\$\\pm\$", "", row)
    assert bare.count("&") == header.count("&")
    assert bare.endswith(r" \\")
    assert not set(bare.removesuffix(r"\\")) & set("\\{}$%#_~^<>|\"'`")


def test_every_special_character_of_latex_is_escaped() -> None:
    assert escape_latex(r"\&%$#_{}~^") == (
        r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}"
    )


# --- CSV ---


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_csv_has_every_number_in_full() -> None:
    time_s = 0.1 + 0.2
    row = cell(
        "t",
        (time_s, time_s),
        peak_bytes=1234567,
        given=verdict(ratio=1 / 3, tolerance=0.1, limit=0.3),
        clip_grad_norm=0.5,
    )

    (found,) = read(to_csv(report_on(row)))

    assert float(found["step_time_s"]) == time_s
    assert float(found["change_ratio"]) == 1 / 3
    assert (found["interval_low_ratio"], found["interval_high_ratio"]) == ("0.99", "1.03")
    assert (found["tolerance_ratio"], found["limit_ratio"]) == ("0.1", "0.3")
    assert (found["peak_bytes"], found["rounds"], found["load_s"]) == ("1234567", "2", "0.001")
    assert (found["clip_grad_norm"], found["parallel"]) == ("0.5", "single")


def test_what_is_not_available_is_an_empty_field() -> None:
    (found,) = read(to_csv(report_on(Row(name="t", step_time_s=1.0))))

    assert {name for name, value in found.items() if value} == {"cell", "step_time_s"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_field_and_no_formula(name: str) -> None:
    (found,) = read(to_csv(report_on(cell(printable(name), workload=name))))

    shown = found["cell"]
    assert shown.removeprefix("'") == printable(name).removeprefix("'")
    assert not shown.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert found["workload"].removeprefix("'") == printable(name).removeprefix("'")
    assert len(found) == to_csv(report_on()).count(",") + 1


def test_what_a_verdict_says_of_the_mathematics_is_printable() -> None:
    given = verdict(numerics_change="\x1b[2J")

    (found,) = read(to_csv(report_on(cell("t", given=given))))

    assert found["numerics_change"] == r"\x1b[2J"


def test_no_spreadsheet_calculates_a_text() -> None:
    assert (escape_formula("=1+1"), escape_formula(-1.5)) == ("'=1+1", -1.5)
