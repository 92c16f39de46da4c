"""The site in a real browser, opened as files: search, navigation, schemes, accessibility."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import find_chromium, open_browser
from documentation import DOCS, ROOT
from playwright.sync_api import Browser, Page

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
# As axe-core calls what makes a page unusable for some people.
GRAVE = ("serious", "critical")
NAMES = ["index", "tutorial/first-gate", "how-to/red-verdict", "reference/api", "reference/faults"]
NAMES += ["explanation/error-rates", "decisions/index"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly from this repository, which stays as it is."""
    folder = tmp_path_factory.mktemp("project")
    # Zensical takes a link for where it leads.
    shutil.copytree(DOCS, folder / "docs")
    for name in ("mkdocs.yml", "SECURITY.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "perfsuite").symlink_to(ROOT / "perfsuite")

    ended = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        pytest.skip("no Chromium is installed")
    with open_browser() as opened:
        yield opened


@pytest.fixture
def show(browser: Browser, site: Path) -> Iterator[Any]:
    """(name, **of the context) -> that page; fails on any complaint, and on what is fetched."""
    complaints: list[str] = []
    contexts = []

    def open_page(name: str, **fields: Any) -> Page:
        context = browser.new_context(**({"viewport": WIDE} | fields))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda one: one.type == "error" and complaints.append(one.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                complaints.append(request.url)
                if not request.url.startswith((site.as_uri(), "data:", "blob:"))
                else None
            ),
        )
        page.goto((site / f"{name}.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def test_each_page_is_built_and_names_nothing_that_a_browser_would_fetch(site: Path) -> None:
    sources = {path.relative_to(DOCS) for path in DOCS.rglob("*.md")}

    for source in sources:
        built = site / source.with_suffix(".html")
        if source.name == "README.md":
            built = built.with_name("index.html")
        text = built.read_text()
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(https?:[^\">]*)", text
        )
        assert fetched == [], source
        assert "<h1" in text, source


def test_a_word_is_found_and_leads_to_its_page(show: Any) -> None:
    page = show("index")

    page.keyboard.press("/")
    page.keyboard.type("INCONCLUSIVE")
    page.get_by_text(re.compile(r"\d+ results")).wait_for()
    page.keyboard.press("Enter")

    page.wait_for_url("**/red-verdict.html*")
    assert page.locator("h1").inner_text().startswith("Read a red verdict")


def test_the_navigation_leads_to_every_section(show: Any) -> None:
    page = show("index")
    navigation = page.locator("nav[aria-label=Navigation]")

    for section, name in (
        ("Tutorial", "Your own model"),
        ("How to", "Gate on a noisy machine"),
        ("Reference", "Recipes"),
        ("Explanation", "Why pairs"),
    ):
        assert navigation.get_by_text(section, exact=True).first.is_visible()
        navigation.get_by_role("link", name=name).first.click()
        assert page.locator("h1").inner_text().startswith(name)


def test_the_scheme_is_the_readers_and_can_be_switched(show: Any) -> None:
    dark = show("index", color_scheme="dark").locator("body")
    page = show("index", color_scheme="light")
    light = page.locator("body")

    assert dark.get_attribute("data-md-color-scheme") == "slate"
    assert light.get_attribute("data-md-color-scheme") == "default"
    page.get_by_title("Switch to dark mode").first.click()
    assert light.get_attribute("data-md-color-scheme") == "slate"


@pytest.mark.parametrize("name", NAMES)
def test_on_a_phone_nothing_lies_beside_the_screen(show: Any, name: str) -> None:
    page = show(name, viewport=PHONE)

    widths = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")

    assert widths[0] <= widths[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("name", NAMES)
def test_no_fault_makes_a_page_inaccessible(
    show: Any, name: str, viewport: dict[str, int], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    page = show(name, color_scheme=scheme, viewport=viewport)

    violations = axe.run(page, options={"preload": False}).response["violations"]
    grave = [
        (found["id"], [node["html"] for node in found["nodes"][:3]])
        for found in violations
        if found["impact"] in GRAVE
    ]
    assert grave == []
