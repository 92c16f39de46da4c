"""A real headless browser, for tests of pages and for pictures of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Nobody's page: what a browser asks for by itself at every start.
_QUIETLY = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the installed Chromium; it has ended afterwards."""
    with sync_playwright() as playwright:
        # Its sandbox does not start as root, as which containers run.
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=list(_QUIETLY), chromium_sandbox=False
        )
        yield browser
        browser.close()
