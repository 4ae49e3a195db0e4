"""The page as it is used: by mouse and keyboard, on a telephone, live, by those who mean harm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from tests.support.browsing import (
    EVIL,
    EVIL_COLUMN,
    QUARTER_ROWS,
    App,
    StreamSpec,
    Viewer,
    append_clicks,
    click_schema,
    flights,
    open_bus,
    served,
)
from tests.support.processes import REAL_CLOCK

YEAR = "from=1357016400000&to=1364792400000"
FLIGHTS = f"/explore?stream=flights&{YEAR}"
VIEWS = {
    "Table": "by=carrier&show=count&show=p95(arr_delay)",
    "Time series": "by=origin&show=count&show=p95(dep_delay)",
    "Stacked area": "by=carrier&show=count&limit=5",
    "Bars": "by=dest&show=count&show=avg(arr_delay)&limit=12",
    "Distribution": "by=origin&show=avg(dep_delay)",
    "Heat map": "show=avg(dep_delay)",
    "Raw samples": "limit=20",
}
NAMES = {
    "Table": "table",
    "Time series": "series",
    "Stacked area": "area",
    "Bars": "bars",
    "Distribution": "distribution",
    "Heat map": "heatmap",
    "Raw samples": "samples",
}
FIRST_VIEW_BYTES, FIRST_VIEW_FILES = 120_000, 8
ALL_CHARTS_BYTES = 300_000


def chips(page: Page, label: str) -> Locator:
    line = page.locator(".builder .line").filter(has=page.get_by_text(label, exact=True))
    return line.locator(".chip")


def check_chips(page: Page, label: str, wanted: list[str]) -> None:
    """Wait until a line of the builder has these chips."""
    expect(chips(page, label)).to_have_text(wanted, use_inner_text=True)


def scanned(page: Page) -> str:
    return page.locator(".facts").inner_text()


def drag(page: Page, box: Locator, begin: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a rectangle over a chart, given shares of its width and height."""
    at = box.bounding_box()
    assert at is not None
    points = [(at["x"] + x * at["width"], at["y"] + y * at["height"]) for x, y in (begin, end)]
    page.mouse.move(*points[0])
    page.mouse.down()
    page.mouse.move(*points[1], steps=4)
    page.mouse.up()


def test_the_first_view_is_small_and_from_this_server_only(app: App, browser: Browser) -> None:
    context = browser.new_context()
    viewer = Viewer(app, context)
    viewer.settled()
    viewer.page.goto("about:blank")
    session = context.new_cdp_session(viewer.page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda one: sizes.append(one["encodedDataLength"]))
    asked: list[str] = []
    session.on("Network.requestWillBeSent", lambda one: asked.append(one["request"]["url"]))
    viewer.see("/")
    expect(viewer.page.locator(".plot canvas").first).to_be_visible()
    assert 20_000 < sum(sizes) < FIRST_VIEW_BYTES
    assert len(set(asked)) <= FIRST_VIEW_FILES, "\n".join(asked)
    assert viewer.hosts == {app.url.removeprefix("http://")}
    assert "stream=flights" in viewer.page.url, "the whole view is in the address"
    asked.clear()
    for _ in range(2):
        viewer.page.keyboard.press("4")
        expect(viewer.page.locator(".plot .drawing canvas")).to_be_visible()
        viewer.page.keyboard.press("2")
        expect(viewer.page.locator(".uplot")).to_be_visible()
    scripts = [one.rpartition("/")[2] for one in asked if one.endswith(".js")]
    assert scripts == ["echarts.js"], "asked for when it is needed, and once"
    assert sum(sizes) < ALL_CHARTS_BYTES
    assert viewer.wrong == []
    context.close()


def test_a_page_that_was_left_changes_no_address(app: App, browser: Browser) -> None:
    context = browser.new_context()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    context.route("**/api/streams", hold)
    page = Viewer(app, context).page
    page.get_by_role("link", name="Dashboards").click()
    page.wait_for_url("**/dashboards")
    with page.expect_response("**/api/streams"):
        held[0].continue_()
    page.evaluate("() => new Promise(resolve => setTimeout(resolve, 100))")
    assert page.url.endswith("/dashboards")
    context.close()


def test_a_chart_whose_library_does_not_come_says_so(app: App, browser: Browser) -> None:
    context = browser.new_context()
    context.route("**/vendor/echarts.js", lambda route: route.abort())
    viewer = Viewer(app, context)
    page = viewer.see(f"{FLIGHTS}&view=bars&by=origin&show=count")
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded")
    page.get_by_text("The same as a table").click()
    expect(page.get_by_role("gridcell", name="EWR")).to_be_visible()
    assert all("ERR_FAILED" in one for one in viewer.wrong), "the browser logs the file"
    context.close()


def test_somebody_signs_in_with_a_token(app: App, browser: Browser) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{app.url}/sql")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    token = page.get_by_label("Token")
    token.fill("wrong")
    token.press("Enter")
    expect(page.get_by_role("status")).to_have_text("That is not a token of this server.")
    token.fill(app.sign_in.partition("token=")[2])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/sql")
    expect(page.get_by_role("textbox", name="SQL")).to_be_visible()
    context.close()


ROW_RUNS = """([canvas, colour]) => {
    const {width, height} = canvas;
    const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    const runs = [];
    let held = 0;
    for (let y = 0; y < height; y++) {
        let count = 0;
        for (let x = 0; x < width; x++) {
            const at = 4 * (y * width + x);
            if (colour.every((part, channel) => data[at + channel] === part)) count++;
        }
        if (count > 20 && held <= 20) runs.push(0);
        if (count > 20) runs[runs.length - 1] = Math.max(count, runs[runs.length - 1]);
        held = count;
    }
    return runs;
}"""
COLUMN_RUNS = """([canvas, x]) => {
    const data = canvas.getContext("2d").getImageData(Math.round(x), 0, 1, canvas.height).data;
    const runs = [];
    for (let y = 0; y < canvas.height; y++) {
        const name = data.slice(4 * y, 4 * y + 4).join();
        if (!runs.length || runs[runs.length - 1][0] !== name) runs.push([name, 0]);
        runs[runs.length - 1][1]++;
    }
    return runs;
}"""
PIXEL = """([canvas, x, y]) => [...canvas.getContext("2d")
    .getImageData(Math.round(x), Math.round(y), 1, 1).data.slice(0, 3)]"""
BLUE = (0, 114, 178)
"""The colour of the first series."""


def counts_by_origin(begin_ms: int, end_ms: int) -> dict[str, int]:
    """Return how many flights of some time each airport has, most first."""
    table = flights()
    at = table.column("departed_at").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    chosen = pc.and_(pc.greater_equal(at, begin_ms), pc.less(at, end_ms))
    found = Counter(table.column("origin").filter(chosen).to_pylist())
    return dict(found.most_common())


def drawn_chart(page: Page) -> Locator:
    """Return the chart once its marks can be walked through."""
    chart = page.get_by_role("application")
    expect(chart).to_have_attribute("data-marks", re.compile("[1-9]"))
    return chart


def test_bars_are_as_long_as_their_numbers(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=bars&by=origin&show=count")
    expected = counts_by_origin(1357016400000, 1364792400000)
    chart = drawn_chart(page)
    chart.focus()
    said = []
    for _ in expected:
        page.keyboard.press("ArrowDown")
        said.append(chart.locator(".unseen").inner_text())
    assert said == [f"{name}: count {count:,}" for name, count in expected.items()]
    page.mouse.move(0, 0)
    lengths = page.evaluate(ROW_RUNS, [chart.locator("canvas").element_handle(), BLUE])
    assert len(lengths) == 3
    for length, count in zip(lengths, expected.values(), strict=True):
        assert abs(length / lengths[0] - count / max(expected.values())) < 0.01


def histogram(values: pa.ChunkedArray, step: int) -> dict[int, int]:
    """Return how many values each bucket has, by its place."""
    return dict(sorted(Counter(value // step for value in values.to_pylist()).items()))


def walk(page: Page, chart: Locator, look: Callable[[], None] = lambda: None) -> list[str]:
    """Go through all marks of a chart by keyboard; return what is said of each."""
    chart.focus()
    said = list[str]()
    for number in range(int(chart.get_attribute("data-marks") or 0)):
        page.keyboard.press("ArrowRight" if number else "Home")
        said.append(chart.locator(".unseen").inner_text())
        look()
    return said


def mark_box(chart: Locator) -> dict[str, float]:
    """Return where the mark is that has the focus, in pixels of the drawing."""
    inner = "one => ['left', 'top', 'width', 'height'].map(name => parseFloat(one.style[name]))"
    left, top, width, height = chart.locator(".ring").evaluate(inner)
    return {"left": left, "top": top, "width": width, "height": height}


def test_a_distribution_is_as_high_as_its_numbers(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=distribution&show=avg(distance)")
    expected = histogram(flights().column("distance"), 200)
    chart = drawn_chart(page)
    said = walk(page, chart)
    assert said == [
        f"distance from {200 * at:,} to {200 * at + 200:,}: {expected.get(at, 0):,} rows"
        for at in range(max(expected) + 1)
    ]
    canvas = chart.locator("canvas").element_handle()
    page.keyboard.press("Home")
    heights = []
    for _ in range(8):
        box = mark_box(chart)
        runs = page.evaluate(COLUMN_RUNS, [canvas, box["left"] + box["width"] / 2])
        heights.append(
            sum(size for name, size in runs if name == f"{','.join(map(str, BLUE))},255")
        )
        page.keyboard.press("ArrowRight")
    for at, height in enumerate(heights):
        assert abs(height / max(heights) - expected[at] / max(expected.values())) < 0.01
    page.keyboard.press("Home")
    drawn = chart.bounding_box()
    assert drawn is not None
    page.mouse.click(drawn["x"] + mark_box(chart)["left"] + 5, drawn["y"] + drawn["height"] / 2)
    page.get_by_role("menuitem", name="Only this range").click()
    viewer.settled()
    check_chips(page, "Where", ["distance >= 0", "distance < 200"])


def test_a_heat_map_is_darkest_where_most_rows_are(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=heatmap&show=avg(distance)&bucket=60d")
    chart = drawn_chart(page)
    page.mouse.move(0, 0)
    canvas = chart.locator("canvas").element_handle()
    colours = list[int]()

    def look() -> None:
        box = mark_box(chart)
        at = [box["left"] + box["width"] / 2, box["top"] + box["height"] / 2]
        colours.append(sum(page.evaluate(PIXEL, [canvas, *at])))

    said = walk(page, chart, look)
    counts = [int(one.rpartition(": ")[2].removesuffix(" rows").replace(",", "")) for one in said]
    assert sum(counts) == QUARTER_ROWS
    by_range: Counter[int] = Counter()
    for one, count in zip(said, counts, strict=True):
        low = re.search(r"distance ([\d,]+) to", one)
        assert low is not None
        by_range[int(low[1].replace(",", ""))] += count
    expected = histogram(flights().column("distance"), 200)
    assert by_range == Counter({200 * at: count for at, count in expected.items()})
    order = sorted(zip(counts, colours, strict=True))
    assert [one for _, one in order] == sorted(colours, reverse=True)


def test_areas_are_as_high_as_their_numbers_and_lie_on_each_other(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=area&by=origin&show=count&bucket=7d")
    chart = drawn_chart(page)
    chart.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    week = 7 * 86_400_000
    begin = (1357016400000 // week + 4) * week
    expected = counts_by_origin(begin, begin + week)
    lines = page.locator(".tip .line").all_inner_texts()
    assert [one.split() for one in lines] == [[n, f"{c:,}"] for n, c in expected.items()]
    where = "one => one.getBoundingClientRect().left"
    canvas = chart.locator("canvas")
    x = page.locator(".u-cursor-x").evaluate(where) - canvas.evaluate(where)
    runs = page.evaluate(COLUMN_RUNS, [canvas.element_handle(), x])
    drawn = [size for name, size in runs if name != "0,0,0,0" and size > 8]
    heights = sorted(drawn, reverse=True)
    assert len(heights) == 3
    for height, count in zip(heights, expected.values(), strict=True):
        assert abs(height / sum(heights) - count / sum(expected.values())) < 0.03


@pytest.mark.parametrize("title", VIEWS)
def test_each_view_draws_and_has_no_serious_fault(viewer: Viewer, title: str) -> None:
    page = viewer.see(f"{FLIGHTS}&view={NAMES[title]}&{VIEWS[title]}")
    expect(page.get_by_role("tab", name=title)).to_have_attribute("aria-selected", "true")
    if title in ("Table", "Raw samples"):
        expect(page.locator("table.rows tbody tr").nth(15)).to_be_attached()
    else:
        more_than_ten = re.compile(r"^(1[1-9]|[2-9]\d|\d{3,})$")
        expect(page.locator(".plot").first).to_have_attribute("data-marks", more_than_ten)
        alternative = page.locator("details.numbers").first
        if alternative.get_attribute("open") is None:
            alternative.locator("summary").first.click()
        expect(alternative.locator("tbody tr").nth(2)).to_be_attached()
    assert re.search(r"as of .* rows scanned.*took", scanned(page), re.DOTALL)
    assert viewer.faults() == []


def test_dark_is_as_readable_as_light(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=series&by=origin&show=count")
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert viewer.faults() == []
    page.reload()
    viewer.settled()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_a_query_is_built_with_the_keyboard_alone(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=table&show=count")
    page.keyboard.press("/")
    page.keyboard.type("origin = J")
    expect(page.get_by_role("option", name="JFK")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    viewer.settled()
    check_chips(page, "Where", ["origin = JFK"])
    page.keyboard.type("dep_delay > 60")
    page.keyboard.press("Enter")
    viewer.settled()
    check_chips(page, "Where", ["origin = JFK", "dep_delay > 60"])
    page.keyboard.press("Escape")
    page.locator("#page").focus()
    page.keyboard.press("b")
    page.keyboard.type("carrier")
    page.keyboard.press("Enter")
    viewer.settled()
    check_chips(page, "Group by", ["carrier"])
    page.locator("#page").focus()
    page.keyboard.press("m")
    page.keyboard.type("p95 arr_del")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    viewer.settled()
    check_chips(page, "Show", ["count", "p95(arr_delay)"])
    page.locator("#page").focus()
    page.keyboard.press("4")
    viewer.settled()
    chart = drawn_chart(page)
    chart.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Only these rows")).to_be_focused()
    page.keyboard.press("Enter")
    viewer.settled()
    expect(chips(page, "Where")).to_have_count(3)
    parts = {"where", "by", "show", "view"}
    page.wait_for_url(lambda url: parts <= set(re.findall(r"[?&](\w+)=", url)))


def test_a_value_is_clicked_into_a_filter_and_back_takes_it_out(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=table&by=origin&show=count")
    before = page.url
    page.get_by_role("gridcell", name="LGA").click()
    page.get_by_role("menuitem", name="Without these rows").click()
    viewer.settled()
    check_chips(page, "Where", ["origin != LGA"])
    expect(page.get_by_role("gridcell", name="LGA")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("gridcell", name="LGA")).to_have_count(1)
    assert page.url == before
    page.go_forward()
    expect(page.get_by_role("gridcell", name="LGA")).to_have_count(0)
    page.get_by_role("button", name="Remove the filter origin != LGA").click()
    expect(page.get_by_role("gridcell", name="LGA")).to_have_count(1)


def test_a_link_shows_the_whole_view_again(viewer: Viewer) -> None:
    where = (
        "&where=" + quote('["dep_delay",">=",30]') + "&where=" + quote('["tailnum","is not null"]')
    )
    address = f"{FLIGHTS}&compare=7d{where}&by=origin&show=p95%28dep_delay%29&view=bars&limit=20"
    page = viewer.see(address)
    check_chips(page, "Where", ["dep_delay >= 30", "tailnum is not null"])
    check_chips(page, "Show", ["p95(dep_delay)"])
    expect(page.locator("[data-key=time]")).to_contain_text("and the week before")
    rows = page.locator("details.numbers")
    rows.locator("summary").click()
    expect(page.locator(".was")).to_have_count(3)
    page.get_by_role("button", name="Share and export").click()
    page.get_by_role("menuitem", name="Copy the link").click()
    assert page.evaluate("navigator.clipboard.readText()") == viewer.app.url + address


def test_brushing_a_chart_zooms(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=series&show=count")
    drag(page, page.locator(".u-over"), (0.25, 0.5), (0.5, 0.6))
    page.wait_for_url(lambda url: "from=1357016400000" not in url)
    begin, end = map(int, re.findall(r"(?:from|to)=(\d+)", page.url))
    quarter = (1364792400000 - 1357016400000) / 4
    assert abs(end - begin - quarter) < quarter / 10
    viewer.settled()
    page = viewer.see(f"{FLIGHTS}&view=heatmap&show=avg(dep_delay)")
    drag(page, page.locator(".plot"), (0.3, 0.4), (0.6, 0.8))
    page.wait_for_url(lambda url: "where=" in url)
    viewer.settled()
    expect(chips(page, "Where")).to_have_count(2)
    low, high = chips(page, "Where").all_inner_texts()
    assert low.startswith("dep_delay >= ")
    assert high.startswith("dep_delay < ")


def test_columns_show_their_frequent_values(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=series&show=count")
    columns = page.get_by_role("complementary", name="Columns")
    columns.get_by_placeholder("Find a column").fill("carr")
    columns.get_by_role("button", name="carrier").click()
    popover = page.get_by_role("dialog", name="carrier")
    expect(popover.get_by_role("button", name="UA").first).to_be_visible()
    assert viewer.faults() == []
    popover.get_by_role("button", name="UA").first.click()
    viewer.settled()
    check_chips(page, "Where", ["carrier = UA"])


def test_empty_and_wrong_are_told_apart(viewer: Viewer) -> None:
    nowhere = quote('["carrier","=","no such"]')
    page = viewer.see(f"{FLIGHTS}&view=table&by=origin&where={nowhere}")
    expect(page.get_by_text("No rows match")).to_be_visible()
    assert viewer.faults() == []
    page = viewer.see(f"{FLIGHTS}&view=bars&by=no_such_column")
    expect(page.get_by_role("alert")).to_contain_text("no_such_column")
    assert any("400" in one for one in viewer.wrong), "the browser logs the refused request"
    viewer.wrong.clear()


def test_a_live_chart_shows_rows_as_they_come(viewer: Viewer) -> None:
    page = viewer.see("/explore?stream=clicks&from=-1h&to=now&view=bars&by=page&show=count&live=1")
    expect(page.locator("[data-key=live]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-key=live] .dot")).to_have_attribute("data-state", "good")
    page.locator("details.numbers summary").click()
    expect(page.locator("details.numbers td.num").first).to_have_text("40")
    now = REAL_CLOCK.now_ms()
    append_clicks(viewer.app.home, range(now - 3000, now, 10))
    expect(page.locator(".facts")).to_contain_text("420 of 420 rows")
    page.keyboard.press("l")
    expect(page.locator("[data-key=live]")).to_have_attribute("aria-pressed", "false")
    page.wait_for_url(lambda url: "live=1" not in url)


def test_a_dashboard_is_made_arranged_and_saved(viewer: Viewer) -> None:
    page = viewer.page
    for view, more in (("bars", "by=origin&show=count"), ("series", "show=count")):
        viewer.see(f"{FLIGHTS}&view={view}&{more}")
        page.get_by_role("button", name="Saved views and dashboards").click()
        page.get_by_role("menuitem", name="Add to a dashboard").click()
        if view == "bars":
            page.get_by_label("Title of a new dashboard").fill("My flights")
        page.get_by_label("Title of the chart").fill(f"chart of {view}")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_text("Added to My flights.")).to_be_visible()
    page.get_by_role("button", name="Open").last.click()
    viewer.settled()
    cards = page.get_by_role("article")
    expect(cards).to_have_count(2)
    expect(page.locator(".card .plot canvas")).to_have_count(2)
    assert viewer.faults() == []
    page.get_by_role("button", name="Edit").click()
    assert viewer.faults() == []
    page.get_by_role("button", name="Move chart of series").focus()
    page.keyboard.press("ArrowLeft")
    expect(cards.first).to_contain_text("chart of series")
    page.get_by_role("button", name="Resize chart of series").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Menu of chart of bars").click()
    page.get_by_role("menuitem", name="Edit the title").click()
    page.get_by_role("textbox", name="Title").fill(EVIL)
    page.get_by_role("button", name="Save").last.click()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("The dashboard is saved.")).to_be_visible()
    page.reload()
    viewer.settled()
    expect(cards.first).to_contain_text("chart of series")
    assert cards.first.evaluate("one => one.style.getPropertyValue('--width')") == "8"
    assert cards.first.evaluate("one => one.style.getPropertyValue('--height')") == "5"
    expect(cards.last).to_contain_text("<script>")
    cards.first.get_by_role("button", name="Menu of chart of series").click()
    page.get_by_role("menuitem", name="Show as a table").click()
    expect(cards.first.get_by_role("grid")).to_be_visible()
    drag(page, cards.last.locator(".plot"), (0.1, 0.2), (0.1, 0.2))
    page.get_by_role("menuitem", name="Only these rows").click()
    page.wait_for_url("**/explore?**")
    viewer.settled()
    page.goto(viewer.app.url + "/dashboards")
    expect(page.get_by_role("link", name="My flights")).to_be_visible()
    assert viewer.faults() == []


def flight_chart(title: str, **query: object) -> dict[str, object]:
    begin, end = 1357016400000, 1364792400000
    asked = {"stream": "flights", "from": begin, "to": end, "view": "bars", **query}
    return {"title": title, "width": 4, "height": 4, "query": {"group_by": ["origin"], **asked}}


def test_a_dashboard_has_variables_that_filter_all_charts(viewer: Viewer) -> None:
    charts = [flight_chart("first"), flight_chart("second", group_by=["carrier"])]
    viewer.put("/api/dashboards/chosen", {"title": "Chosen", "charts": charts})
    page = viewer.see("/dashboards/chosen")
    expect(page.locator(".plot canvas")).to_have_count(2)
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Add a variable").click()
    dialog = page.get_by_role("dialog", name="Add a variable")
    dialog.get_by_label("Column").select_option("origin")
    dialog.get_by_label("Title").fill("Airport")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("The dashboard is saved.")).to_be_visible()
    airport = page.get_by_role("button", name="Airport")
    expect(airport).to_contain_text("All")
    airport.click()
    page.get_by_role("menuitemradio", name="JFK").click()
    expect(page.locator(".plot").first).to_have_attribute("data-marks", "1")
    expect(airport).to_contain_text("JFK")
    assert viewer.faults() == []
    page.reload()
    viewer.settled()
    expect(airport).to_contain_text("JFK")
    expect(page.locator(".plot").first).to_have_attribute("data-marks", "1")
    expect(page.locator(".plot").last).not_to_have_attribute("data-marks", "0")
    airport.press("Enter")
    page.get_by_role("menuitemradio", name="All").press("Enter")
    expect(page.locator(".plot").first).to_have_attribute("data-marks", "3")
    expect(airport).to_be_focused()


def test_of_two_editors_the_second_overwrites_nothing(viewer: Viewer) -> None:
    """Charts are moved and resized by the mouse meanwhile."""
    charts = [flight_chart("left"), flight_chart("right")]
    saved = viewer.put("/api/dashboards/shared", {"title": "Shared", "charts": charts})
    page = viewer.see("/dashboards/shared")
    cards = page.get_by_role("article")
    expect(page.locator(".plot canvas")).to_have_count(2)
    page.get_by_role("button", name="Edit").click()
    grid = page.locator(".grid").bounding_box()
    assert grid is not None
    corner = page.get_by_role("button", name="Resize left")
    box = corner.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 12, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(box["x"] + 12 + 2 * grid["width"] / 12, box["y"] + 12 + 84, steps=5)
    page.mouse.up()
    size = "one => ['--width', '--height'].map(name => one.style.getPropertyValue(name))"
    assert cards.first.evaluate(size) == ["6", "5"]
    handle = page.get_by_role("button", name="Move left")
    to = cards.last.bounding_box()
    assert to is not None
    handle.hover()
    page.mouse.down()
    page.mouse.move(to["x"] + to["width"] / 2, to["y"] + to["height"] / 2, steps=5)
    page.mouse.up()
    expect(cards.first).to_contain_text("right")
    expect(page.locator(".dragged")).to_have_count(0)
    viewer.put("/api/dashboards/shared", {**saved, "title": "Theirs"})
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Somebody else saved this dashboard meanwhile.")).to_be_visible()
    assert any("409" in one for one in viewer.wrong), "the browser logs the refused request"
    viewer.wrong.clear()
    page.get_by_role("button", name="Show theirs").click()
    expect(page.get_by_role("heading", name="Theirs")).to_be_visible()
    expect(cards.first).to_contain_text("left")


def test_a_live_chart_comes_back_when_the_server_does(browser: Browser, tmp_path: Path) -> None:
    home, token = tmp_path / "home", tmp_path / "token"
    token.write_text("owner" * 8)
    now = REAL_CLOCK.now_ms()
    with open_bus(home / "bus") as bus:
        bus.create(StreamSpec("clicks", 1, click_schema(), "at"))
    append_clicks(home, range(now - 3000, now, 300))
    address = "/explore?stream=clicks&from=-1d&to=now&view=bars&show=count&live=1"
    context = browser.new_context()
    with served(tmp_path, home, token=token) as app:
        viewer = Viewer(app, context)
        page = viewer.see(address)
        light = page.locator("[data-key=live] .dot")
        expect(light).to_have_attribute("data-state", "good")
        expect(page.locator(".facts")).to_contain_text("10 of 10 rows")
    expect(light).to_have_attribute("data-state", "bad")
    append_clicks(home, range(now - 3000, now, 600))
    with served(tmp_path, home, port=int(app.url.rpartition(":")[2]), token=token):
        expect(light).to_have_attribute("data-state", "good", timeout=60_000)
        expect(page.locator(".facts")).to_contain_text("15 of 15 rows")
        page.goto("about:blank")
    context.close()


def test_a_view_is_saved_and_opened(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=bars&by=origin&show=count")
    page.get_by_role("button", name="Saved views and dashboards").click()
    page.get_by_role("menuitem", name="Save this view").click()
    page.get_by_label("Title").fill("By airport")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved as By airport.")).to_be_visible()
    viewer.see(f"{FLIGHTS}&view=series&show=count")
    page.get_by_role("button", name="Saved views and dashboards").click()
    page.get_by_role("menuitem", name="By airport", exact=True).click()
    viewer.settled()
    check_chips(page, "Group by", ["origin"])


def test_sql_runs_and_says_where_it_is_wrong(viewer: Viewer) -> None:
    page = viewer.see("/sql")
    editor = page.get_by_role("textbox", name="SQL")
    editor.fill("select origin, count(*) as n\nfrom flights\ngroup by 1 order by n desc")
    page.keyboard.press("Control+Enter")
    viewer.settled()
    expect(page.get_by_role("gridcell").first).to_have_text("EWR")
    assert viewer.faults() == []
    page.get_by_role("button", name="Bars").click()
    expect(page.locator(".plot canvas")).to_be_visible()
    editor.fill("select origin,\n  no_such_column\nfrom flights")
    page.get_by_role("button", name="Run").click()
    alert = page.locator(".banner.bad")
    expect(alert).to_contain_text("no_such_column")
    assert any("400" in one for one in viewer.wrong)
    viewer.wrong.clear()
    page.get_by_role("button", name="History").click()
    expect(page.get_by_role("menuitem")).to_have_count(2)
    page.keyboard.press("Escape")
    editor.fill("select dest from fl")
    page.keyboard.press("Control+ ")
    expect(page.get_by_role("option", name="flights")).to_be_visible()
    page.keyboard.press("Enter")
    expect(editor).to_have_value("select dest from flights")


def test_what_is_downloaded_is_what_is_shown(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=bars&by=origin&show=count")
    starts = {"CSV": b"origin,count", "Parquet": b"PAR1", "PNG": b"\x89PNG"}
    for kind, start in starts.items():
        page.get_by_role("button", name="Share and export").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=f"Download {kind}").click()
        assert download.value.path().read_bytes().startswith(start), kind


def test_hostile_texts_stay_texts(viewer: Viewer) -> None:
    base = "/explore?" + urlencode({"stream": "hostile", "from": "-1d", "to": "now"})
    page = viewer.see(f"{base}&view=samples")
    expect(page.get_by_role("gridcell", name=EVIL).first).to_be_visible()
    for view in ("table", "bars", "series"):
        viewer.see(f"{base}&view={view}&" + urlencode({"by": EVIL_COLUMN, "show": "count"}))
        check_chips(page, "Group by", [EVIL_COLUMN])
    page.locator(".plot").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("<script>")
    page.keyboard.press("Enter")
    page.get_by_role("menuitem", name="Only these rows").click()
    viewer.settled()
    check_chips(page, "Where", [f"{EVIL_COLUMN} = {EVIL}"])
    page.get_by_role("button", name="Saved views and dashboards").click()
    page.get_by_role("menuitem", name="Save this view").click()
    page.get_by_label("Title").fill(EVIL)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved as <img")).to_be_visible()
    assert page.locator("img:not(.brand img), iframe, [onload], [onerror]").count() == 0


@pytest.mark.parametrize("width", [375, 1920])
def test_nothing_is_wider_than_the_screen(viewer: Viewer, width: int) -> None:
    viewer.page.set_viewport_size({"width": width, "height": 800})
    for address in (
        f"{FLIGHTS}&view=bars&by=dest&show=count&show=p95(dep_delay)",
        "/sql",
        "/dashboards/my-flights",
    ):
        page = viewer.see(address)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, address
        wide = "one => one.scrollWidth - one.clientWidth"
        inner = page.locator("#page").evaluate(wide)
        assert inner <= 0, address
    if width == 375:
        assert viewer.faults() == []


def test_the_sheet_of_shortcuts_opens_and_closes(viewer: Viewer) -> None:
    page = viewer.see(f"{FLIGHTS}&view=table&show=count")
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(sheet).to_contain_text("add a filter")
    assert viewer.faults() == []
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("textbox", name="SQL")).to_be_visible()
