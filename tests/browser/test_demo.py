"""The demo while it runs: its dashboard grows, and each view of its flights can be looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.test_page import VIEWS
from tests.support.browsing import App, Viewer
from tests.support.processes import SOON_S, Started, until
from tests.support.soak import more

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """What ``make demo UI=1`` starts; the streams that its job sends to come later."""
    folder = tmp_path_factory.mktemp("demo")
    started = Started(folder, folder / "home")

    try:
        started.start("demo", "--ui", "--home", str(folder / "home"))
        until(lambda: "http://" in started.said(0), "the address of the dashboard")
        found = re.search(r"(http://[^/]+)/\S+", started.said(0))
        assert found is not None
        yield App(folder / "home" / "demo", found[1], found[0])
    finally:
        started.end()


@pytest.mark.parametrize("theme", more(["light"], ["light", "dark"]))
def test_the_dashboard_grows_and_each_view_shows_the_flights(
    demo: App, browser: Browser, theme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(color_scheme=theme, viewport={"width": 1280, "height": 860})
    viewer = Viewer(demo, context)
    page = viewer.settled()
    expect(page.get_by_role("heading", name="Flights from New York City")).to_be_visible()
    airlines = page.locator(".card").filter(has_text="Airlines").locator("tbody")
    expect(airlines.locator("tr").nth(5)).to_be_attached(timeout=1000 * SOON_S)
    if theme == "light":  # the first test: flights still come
        expect(airlines).not_to_have_text(airlines.inner_text(), use_inner_text=True)
    assert viewer.faults() == []
    viewer.see(
        "/explore?stream=flights&from=2013-01-01&to=2014-01-01&by=origin&show=count&view=table"
    )
    pictures = {page.screenshot()}
    for title in VIEWS:
        page.get_by_role("tab", name=title).click()
        expect(page.get_by_role("tab", name=title)).to_have_attribute("aria-selected", "true")
        viewer.settled()
        drawn = page.locator(".result canvas, .result tbody tr, table.rows tbody tr")
        drawn.first.wait_for(state="attached")
        if theme == "dark":  # in light those of test_page, with the same columns, have none
            assert viewer.faults() == []
        pictures.add(page.screenshot())
    assert len(pictures) >= len(VIEWS)  # live numbers may change the first one
    assert viewer.wrong == []
    context.close()
