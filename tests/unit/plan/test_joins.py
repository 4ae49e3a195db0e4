"""Joins of streams are checked and explained before a job runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import JobPlan, StreamInfo, changes, explain, mermaid, plan

import headrace as hr
from headrace.errors import GraphError

VIEWS = pa.schema([("ad", pa.int32()), ("page", pa.string()), ("at", pa.int64())])
CLICKS = pa.schema([("of", pa.int64()), ("page", pa.string()), ("cost", pa.float64())])
STREAMS = {
    "views": StreamInfo(VIEWS, 2, "at"),
    "clicks": StreamInfo(CLICKS.append(pa.field("at", pa.int64())), 3, "at"),
    "untimed": StreamInfo(CLICKS, 1, None),
}


def joined(
    by: str = "of", stream: str = "clicks", lateness: str = "0s", **arguments: Any
) -> JobPlan:
    """Plan a join of views with another stream, and a window after it."""

    @hr.job("pairs")
    def pairs(g: hr.Graph) -> None:
        views = g.input("views", out_of_orderness=lateness).partition_by("ad")
        others = g.input(stream).partition_by(by)
        made = views.join(others, name="j", **arguments)
        made.window(hr.tumbling("1h"), n=hr.agg.count()).send_to(g.output("hours"))
        if arguments.get("late") == "side_output":
            made.side("late_left").send_to(g.output("late-views"))
            made.side("late_right").send_to(g.output("late"))

    return plan(pairs.build(), STREAMS)


def mistake(**arguments: Any) -> str:
    with pytest.raises(GraphError) as caught:
        joined(**arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, 'as within="10m", or before= and after='),
        ({"within": "1m", "after": "1m"}, "within= is for both directions"),
        ({"within": "1m", "window": hr.tumbling("1h")}, "window= says which rows are near"),
        ({"window": hr.session("1h")}, "window= of a join takes hr.tumbling"),
        (
            {"window": hr.tumbling("1h", allowed_lateness="1m")},
            "the window of a join has a size alone",
        ),
        ({"window": hr.tumbling("soon")}, "expected a duration such as"),
        ({"within": "soon"}, "within is 'soon'; expected a duration"),
        ({"within": "1m", "how": "outer"}, "join\\(how='outer'\\); expected one of"),
        ({"within": "1m", "late": "update"}, "join\\(late='update'\\); expected one of"),
        ({"within": "1m", "suffix": ""}, "suffix= is what a name ends in"),
        ({"within": "1m"}, "columns \\['at', 'page'\\] would be there twice: give suffix="),
        ({"within": "1m", "columns": ["price"]}, "columns: no column 'price'"),
        ({"within": "1m", "columns": {"ad": "cost"}}, "columns \\['ad'\\] would be there twice"),
        (
            {"within": "1m", "by": "page", "suffix": "_r"},
            "key 'ad' of 'views.by_ad' is int32, but 'page' of 'clicks.by_page' is string: rows",
        ),
        (
            {"within": "1m", "stream": "untimed", "suffix": "_r"},
            "a join of two streams needs event time, which input 'untimed' has not",
        ),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        joined(**arguments)


def test_streams_that_do_not_fit_are_told() -> None:
    @hr.job("pairs")
    def pairs(g: hr.Graph) -> None:
        views, clicks = g.input("views"), g.input("clicks")
        views.join(clicks.partition_by("of"), within="1m").send_to(g.output("a"))
        two = clicks.partition_by("of", "page")
        views.partition_by("ad").join(two, within="1m").send_to(g.output("b"))
        views.partition_by("ad").join("clicks", within="1m").send_to(g.output("c"))  # type: ignore[arg-type]

    with pytest.raises(GraphError) as caught:
        pairs.build()
    text = str(caught.value)
    assert "stream 'views' is not partitioned by any: put partition_by(...) before it" in text
    assert "by ['ad'], but 'clicks.by_of_page' by ['of', 'page']: partition both by as many" in text
    assert "join takes a stream; found 'clicks' (str)" in text


def test_a_result_has_the_columns_of_both_and_the_wider_key() -> None:
    made = joined(within="1m", columns={"cost": "cost", "where": "page"})
    [stage] = [stage for stage in made.stages if stage.keyed]
    assert stage.schemas["j"].names == ["ad"]  # the window counts, and uses no other
    assert stage.schemas["j"].field("ad").type == pa.int64()
    sent = {exchange.operator: exchange.schema.names for exchange in stage.receives}
    assert sent["views.by_ad"] == ["ad", "__time", "__watermark"]
    assert sent["clicks.by_of"] == ["of", "__time", "__watermark"]


def test_late_rows_have_the_columns_that_they_came_with() -> None:
    made = joined(within="1m", suffix="_r", late="side_output")
    outputs = {output.stream: output for stage in made.stages for output in stage.outputs}
    assert outputs["late"].schema.names == ["of", "page", "cost", "at"]
    assert outputs["late"].keys == ("of",)


@pytest.mark.parametrize(
    ("arguments", "lag"),
    [
        ({}, 0),
        ({"allowed_lateness": "10s"}, 10_000),
        ({"how": "left"}, 60_000),
        ({"how": "right"}, 20_000),
        ({"how": "full", "allowed_lateness": "10s"}, 70_000),
    ],
)
def test_windows_behind_a_join_wait_for_rows_without_a_partner(
    arguments: dict[str, Any], lag: int
) -> None:
    made = joined(before="20s", after="1m", suffix="_r", **arguments)
    [stage] = [stage for stage in made.stages if stage.keyed]
    assert stage.delays["j"] == 0
    assert stage.delays["j.window"] == lag


def test_a_join_in_windows_keeps_rows_for_as_long_as_these() -> None:
    made = joined(window=hr.tumbling("1h"), how="full", suffix="_r", allowed_lateness="1m")
    text = explain(made, width=200)
    assert "full join of views.by_ad with clicks.by_of on ad = of, in one window of 1h" in text
    assert "keeps left rows (ad) until the watermark is 1h59s999ms past them" in text
    [stage] = [stage for stage in made.stages if stage.keyed]
    assert stage.delays["j.window"] == 3_600_000 + 60_000 - 1


@pytest.mark.parametrize(
    ("how", "left", "right"),
    [("inner", "1m", "20s"), ("left", "1m", "1m20s"), ("right", "1m20s", "20s")],
)
def test_explain_says_what_is_kept_of_each_side_and_for_how_long(
    how: str, left: str, right: str
) -> None:
    text = explain(joined(before="20s", after="1m", how=how, suffix="_r"), width=200)
    head = f"{how} join of views.by_ad with clicks.by_of on ad = of, from 20s before to 1m after"
    assert head in text
    assert f"keeps left rows (ad) until the watermark is {left} past them, in store j.left" in text
    assert (
        f"keeps right rows (of) until the watermark is {right} past them, in store j.right" in text
    )
    assert ("rows without a partner are sent when none can come" in text) == (how != "inner")


def test_the_diagram_shows_both_inputs() -> None:
    text = mermaid(joined(within="1m", suffix="_r"))
    assert "inner join of views.by_ad with clicks.by_of on ad = of, within 1m in event time" in text
    assert text.count("==>") == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"within": "2m"}, "after was 1m, is now 2m"),
        ({"within": "1m", "how": "left"}, "how was inner, is now left"),
        ({"within": "1m", "allowed_lateness": "1s"}, "grace was 0s, is now 1s"),
        ({"window": hr.tumbling("1m")}, "window was none, is now 1m"),
    ],
)
def test_state_of_another_join_is_refused(arguments: dict[str, Any], text: str) -> None:
    before = joined(within="1m", suffix="_r")
    assert changes(before.fingerprint, joined(within="1m", suffix="_r").fingerprint) == []
    after = joined(suffix="_r", **arguments)
    assert any(text in told for told in changes(before.fingerprint, after.fingerprint))


def test_state_without_a_column_that_is_wanted_now_is_refused() -> None:
    def pairs(column: str) -> JobPlan:
        @hr.job("pairs")
        def made(g: hr.Graph) -> None:
            views, clicks = (
                g.input("views").partition_by("ad"),
                g.input("clicks").partition_by("of"),
            )
            rows = views.join(clicks, within="1m", suffix="_r", name="j")
            rows.map("ad", column).send_to(g.output("out"))

        return plan(made.build(), STREAMS)

    told = changes(pairs("page").fingerprint, pairs("cost").fingerprint)
    assert any("left columns was ad: int64, page: string, is now ad: int64" in one for one in told)
