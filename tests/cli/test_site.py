"""The site of `history --html`: what its pages show, that they hang together, and fetch nothing."""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import find_chromium, open_browser
from command_line import call_verb
from made_up_runs import HOSTILE, benchmark, record, stamp, verdict, write_run
from pytest_benchmark.utils import get_machine_id
from stored_histories import CELL, FIRST_DAY, HERE, MACHINE, make_commits

from perfsuite.cli import options

NUM_DAYS = 30
SLOWER_FROM = 15
PLAIN = "b.py::plain"
# To another page.
LINK = r'<a href="([^"#]+)"'

Call = Callable[..., int]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "environment_here", lambda: MACHINE)
    return partial(call_verb, "history")


def store(number: int, *benchmarks: dict[str, Any], commit: str = "", **changes: Any) -> None:
    """Store a run of a day, as pytest-benchmark and perfsuite do."""
    path = Path("baselines", get_machine_id(), f"{number:04}_run.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_run(
        path,
        *benchmarks,
        datetime=(FIRST_DAY + timedelta(days=number)).isoformat(),
        commit_info={"id": commit, "dirty": False},
        perfsuite=stamp(fingerprint=HERE, **changes),
    )


def store_days(commits: list[str]) -> None:
    """A cell of ours that becomes slower by 8 %, and a plain one that stays."""
    numbers = random.Random(4)
    for number, commit in enumerate(commits):
        times_s = [
            0.002 * 1.08 ** (number >= SLOWER_FROM) * math.exp(0.004 * numbers.gauss(0, 1))
            for _ in range(5)
        ]
        ours = record(
            parallel="ddp:2",
            peak_bytes=2**20 * (1 + number // 20),
            given=verdict("PASS", ratio=1.01),
        )
        store(
            number,
            benchmark(CELL, tuple(times_s), ours),
            benchmark(PLAIN, (0.001 + 1e-7 * number,)),
            commit=commit,
        )


def rows_of(page: str) -> list[list[str]]:
    """The texts of the table of runs."""
    table = page.partition("<h3>Runs, the newest first</h3>")[2].partition("</table>")[0]
    found = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [
        [html.unescape(text) for text in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in found
    ]


def test_each_cell_has_a_page_over_its_commits_and_the_index_leads_to_it(
    history: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commits = make_commits(tmp_path, NUM_DAYS)
    store_days(commits)

    assert history("--all", "--html", "site") == 0

    assert capsys.readouterr().out.splitlines()[-1] == "written to site/index.html"
    index = Path("site/index.html").read_text()
    links = [unquote(link) for link in re.findall(LINK, index)]
    assert sorted(["index.html", *links]) == sorted(path.name for path in Path("site").iterdir())
    assert len(links) == 2
    (name,) = (link for link in links if "test-step" in link)
    page = Path("site", name).read_text()
    assert '<a href="index.html">' in page

    # What became of it, as the verb says it.
    before, after = (commits[place][:7] for place in (SLOWER_FROM - 1, SLOWER_FROM))
    (change,) = re.findall(r'<p class="remark">(slower by .*?)</p>', page)
    assert f"between {before} (2026-01-15) and {after} (2026-01-16), 1 commit" in change

    # Times with their spread and both levels, and the memory.
    steps, memory = re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)
    assert "Over commits, " in steps
    assert f" ms at commit {before}, " in steps
    levels = [float(text) for text in re.findall(r">(2\.\d\d) ms</text>", steps)]
    assert any(first == pytest.approx(2.0, abs=0.02) for first in levels)
    assert any(second == pytest.approx(2.16, abs=0.02) for second in levels)
    assert steps.count('class="ideal"') == 4
    assert "peak memory: 1.00 MiB at commit" in memory

    # Every run, the newest first: verdict, memory, and what ran.
    titles, newest, *others = rows_of(page)
    found = dict(zip(titles, newest, strict=True))
    assert found["commit"] == f"{commits[-1][:7]} (2026-01-30)"
    assert (found["verdict"], found["change"]) == ("PASS", "+1.0 %")
    assert (found["peak memory"], found["workload"], found["parallel"]) == (
        *("2.00 MiB", "lenet"),
        "ddp:2",
    )
    assert found["spread"].startswith("± ")
    assert len(others) == NUM_DAYS - 1
    assert others[-1][0] == f"{commits[0][:7]} (2026-01-01)"


def test_a_plain_benchmark_has_its_times_alone_and_few_runs_no_level(
    history: Call, tmp_path: Path
) -> None:
    store(1, benchmark(PLAIN, (0.001,)))
    store(2, benchmark(PLAIN, (0.001,)))

    assert history(PLAIN, "--html", "site") == 0

    (page,) = (path for path in Path("site").iterdir() if path.name != "index.html")
    text = page.read_text()
    (steps,) = re.findall(r'<svg class="chart".*?</svg>', text, re.DOTALL)
    assert 'class="ideal"' not in steps
    assert "too few to tell: from 13 runs on a change can be seen" in text
    assert rows_of(text) == [
        ["commit", "step"],
        ["2026-01-03", "1.00 ms"],
        ["2026-01-02", "1.00 ms"],
    ]


def test_one_cell_alone_has_a_page_and_the_index_names_the_others(
    history: Call, tmp_path: Path
) -> None:
    store(1, benchmark(PLAIN), benchmark(CELL))

    assert history(PLAIN, "--html", "site") == 0

    index = Path("site/index.html").read_text()
    assert len(list(Path("site").iterdir())) == 2
    assert len(re.findall(LINK, index)) == 1
    assert "test_step[ddp:2]" in index


def test_the_runs_of_a_cells_former_name_are_on_the_page_of_its_new_one(history: Call) -> None:
    store(1, benchmark("b.py::old", (0.1,)))
    store(2, benchmark(CELL, (0.2,)))
    Path("baselines", "accepted.toml").write_text(
        f'[[accepted]]\ncell = "b.py::old"\nkind = "renamed"\nto = "{CELL}"\nreason = "r"\n'
        "expires = 2020-01-01\n"
    )

    assert history(CELL, "--html", "site") == 0

    (page,) = (path for path in Path("site").iterdir() if path.name != "index.html")
    assert [row[1] for row in rows_of(page.read_text())[1:]] == ["200 ms", "100 ms"]


def test_nothing_is_fetched_and_every_link_leads_to_a_file_beside(
    history: Call, tmp_path: Path
) -> None:
    store_days(make_commits(tmp_path, NUM_DAYS))

    history("--all", "--html", "site")

    for path in Path("site").iterdir():
        text = path.read_text()
        assert "default-src 'none'" in text
        assert not re.search(r"(src|action|poster)=|url\(|@import|https?:", text)
        for link in re.findall(LINK, text):
            assert path.with_name(unquote(link)).is_file()


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")
def test_a_browser_goes_from_the_index_to_a_cell_and_back_without_a_network(
    history: Call, tmp_path: Path
) -> None:
    store_days(make_commits(tmp_path, NUM_DAYS))
    history("--all", "--html", "site")
    index = (tmp_path / "site" / "index.html").as_uri()
    requests: list[str] = []
    complaints: list[str] = []

    with open_browser() as browser:
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(index)
        page.locator("tbody th a", has_text="test_step[ddp:2]").click()
        there = page.url
        charts = page.locator("figure svg").count()
        page.get_by_role("link", name="All cells").click()

        assert (page.url, charts) == (index, 2)

    assert "test-step" in there
    assert requests == [index, there, index]
    assert complaints == []


@pytest.mark.parametrize("name", [*HOSTILE, "../../../etc/passwd", "x" * 5000])
def test_a_hostile_name_is_text_on_pages_whose_names_are_plain(
    history: Call, tmp_path: Path, name: str
) -> None:
    store(1, benchmark(name, (0.1,), record(workload=name, given=verdict(by="pairs"))))

    assert history("--all", "--html", "in/site") == 0

    pages = [path for path in tmp_path.rglob("*.html") if path.is_file()]
    assert {path.parent for path in pages} == {tmp_path / "in" / "site"}
    for path in pages:
        assert re.fullmatch(r"[\w=+.-]{1,140}", path.name)
        text = path.read_text()
        assert (text.count("<script>"), text.count("</title>")) == (1, 1)
        assert "<img" not in text
        assert "onload=alert(1)>" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("folder", "message"),
    [("file", "cannot write file/"), ("file/in", "cannot write file/in/")],
)
def test_a_folder_that_cannot_be_written_ends_in_12_and_one_line(
    history: Call, capsys: pytest.CaptureFixture[str], folder: str, message: str
) -> None:
    store(1, benchmark(PLAIN))
    Path("file").touch()

    assert history("--all", "--html", folder) == 12

    assert capsys.readouterr().err.splitlines()[-1].startswith(f"perfsuite: {message}")


def test_a_run_that_the_report_cannot_read_is_named(
    history: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"schema": 1, "recipe": {"parallel": "quantum:3"}}
    store(1, benchmark(PLAIN, info=broken))

    assert history("--all", "--html", "site") == 2

    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"perfsuite: baselines/{get_machine_id()}/0001_run.json: ")
