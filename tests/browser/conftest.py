"""One server and one browser for all tests of a module; each has a page of its own.

No longer than that: Playwright keeps a loop of asyncio running in the thread, beside which no other
test of the process could begin one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.support.browsing import App, Viewer, chromium, make_home, served
from tests.support.processes import REAL_CLOCK


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("ui")
    make_home(folder / "home", REAL_CLOCK.now_ms())
    with served(folder, folder / "home") as app:
        yield app


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def window(app: App, browser: Browser) -> Iterator[Viewer]:
    """The window that all tests share: a session signed in, and a cache that is warm."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 860},
        timezone_id="America/New_York",
        locale="en-US",
        reduced_motion="reduce",
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield Viewer(app, context)
    context.close()


@pytest.fixture
def viewer(window: Viewer) -> Iterator[Viewer]:
    """The window, in which nothing may go wrong: errors in the console, or against the policy."""
    window.wrong.clear()
    window.page.set_viewport_size({"width": 1280, "height": 860})
    window.page.emulate_media(color_scheme="light")
    yield window
    assert window.wrong == []
    assert window.page.evaluate("window.pwned") is None
    assert window.hosts == {window.app.url.removeprefix("http://")}
