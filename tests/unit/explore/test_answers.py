"""Answers equal what plain Python computes of the same rows, sampled or not, in files or memory."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.exploring import Explored, ManualClock, Query, read_query, sampled_rows
from tests.support.homes import Home

from headrace.errors import InvalidInputError

BASE = 1_700_000_000_000
MINUTE = 60_000
COLUMNS = {
    "at": pa.int64(),
    "route": pa.string(),
    "ok": pa.bool_(),
    "n": pa.int64(),
    "ms": pa.float64(),
    "payload": pa.string(),
}
Rows = list[dict[str, Any]]


def made(first: int, count: int) -> Rows:
    """Rows with nulls, equal values, and the times of an hour."""
    return [
        {
            "at": BASE + (at * 7919) % (60 * MINUTE),
            "route": None if at % 11 == 0 else f"/r{at % 5}",
            "ok": None if at % 13 == 0 else at % 3 == 0,
            "n": None if at % 7 == 0 else (at * 31) % 50 - 10,
            "ms": None if at % 5 == 0 else float((at * 17) % 97) / 4,
            "payload": json.dumps({"user": {"id": at % 6}, "from": "a" if at % 2 else "b"}),
        }
        for at in range(first, first + count)
    ]


@pytest.fixture(scope="module", params=["all", "sampled", "mixed"])
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Explored, Rows]]:
    """A stream, the newest rows in memory and others in files, and its rows with their weights."""
    clock = ManualClock(BASE + 61 * MINUTE)
    folder = tmp_path_factory.mktemp("answers")
    rate = {"all": 1, "sampled": 3, "mixed": 1}[request.param]
    with Home(folder) as home:
        home.create("web", COLUMNS, time="at")
        rows: Rows = []
        for part in range(4):
            rate = 4 if request.param == "mixed" and part == 2 else rate
            rule = json.dumps([{"streams": "web", "sample": rate}])
            sent = made(part * 60, 60)
            home.send("web", sent, 0)
            rows += [{**row, "w": rate} for row in sampled_rows(sent, "web", 0, part * 60, rate)]
            explored = Explored(home, clock, f"explore.rules={rule}")
            explored.step()
            if part < 3:
                explored.service.close()  # which writes a file
        with explored:
            yield explored, rows


def value_of(row: dict[str, Any], column: str) -> Any:
    if column == "payload.user.id":
        return json.loads(row["payload"])["user"]["id"]
    if column == "payload.from":
        return json.loads(row["payload"])["from"]
    return row[column]


Test = Callable[[Any, Any], bool]
TESTS: dict[str, Test] = {
    "=": lambda value, wanted: value is not None and value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "<": lambda value, wanted: value is not None and value < wanted,
    ">=": lambda value, wanted: value is not None and value >= wanted,
    "in": lambda value, wanted: value is not None and value in wanted,
    "not in": lambda value, wanted: value is None or value not in wanted,
    "contains": lambda value, wanted: value is not None and wanted in value,
    "starts with": lambda value, wanted: value is not None and value.startswith(wanted),
    "is null": lambda value, wanted: value is None,
    "is not null": lambda value, wanted: value is not None,
}


def figure(fn: str, column: str | None, rows: Rows, seconds: float) -> Any:
    """Return a metric, by its definition."""
    weight = sum(row["w"] for row in rows)
    if fn == "count":
        return weight
    if fn == "rate":
        return weight / seconds
    held = [(value_of(row, column or ""), row["w"]) for row in rows]
    held = [(value, w) for value, w in held if value is not None]
    total = sum(w for _, w in held)
    if fn == "distinct":
        return len({value for value, _ in held})
    if fn in ("sum", "sum_rate"):
        found = sum(value * w for value, w in held)
        return found / seconds if fn == "sum_rate" else found
    if not held:
        return None
    if fn == "avg":
        return sum(value * w for value, w in held) / total
    if fn in ("min", "max"):
        return (min if fn == "min" else max)(value for value, _ in held)
    upto = 0
    for value, w in sorted(held):
        upto += w
        if upto * 100 >= total * int(fn[1:]):
            return value
    raise AssertionError


def expected(query: Query, rows: Rows, begin: int, end: int) -> dict[tuple[Any, ...], list[Any]]:
    """Return the metrics of each group, and in each bucket of time where there is one."""
    bucket = 10 * MINUTE if query.view == "series" else None
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        passes = all(TESTS[one.op](value_of(row, one.column), one.value) for one in query.filters)
        if begin <= row["at"] < end and passes:
            key = [_text(one, value_of(row, one)) for one in query.group_by]
            time = [] if bucket is None else [row["at"] // bucket * bucket]
            groups[*time, *key].append(row)
    if not query.group_by and bucket is None:
        _ = groups[()]
    found: dict[tuple[Any, ...], list[Any]] = {}
    for group, held in groups.items():
        seconds = (end - begin) / 1000
        if bucket is not None:
            seconds = (min(group[0] + bucket, end) - max(group[0], begin)) / 1000
        found[group] = [figure(one.fn, one.column, held, seconds) for one in query.metrics]
    return found


def _text(column: str, value: Any) -> Any:
    return str(value) if column.startswith("payload.") and value is not None else value


numbers = st.sampled_from(["n", "ms", "payload.user.id"])
filters = st.one_of(
    st.tuples(st.just("route"), st.sampled_from(["=", "!="]), st.sampled_from(["/r1", "/r2"])),
    st.tuples(st.just("route"), st.sampled_from(["in", "not in"]), st.just(["/r0", "/r3", "x'y"])),
    st.tuples(st.just("route"), st.sampled_from(["contains", "starts with"]), st.just("/r")),
    st.tuples(st.just("route"), st.sampled_from(["is null", "is not null"]), st.none()),
    st.tuples(numbers, st.sampled_from(["=", "!=", "<", ">="]), st.integers(-3, 20)),
    st.tuples(st.just("ok"), st.sampled_from(["=", "!="]), st.booleans()),
    st.tuples(st.just("payload.from"), st.just("="), st.sampled_from(["a", "c"])),
)
metrics = st.one_of(
    st.sampled_from([("count", None), ("rate", None), ("distinct", "route"), ("max", "route")]),
    st.tuples(
        st.sampled_from(["sum", "avg", "min", "max", "p50", "p75", "p95", "p99", "sum_rate"]),
        numbers,
    ),
    st.tuples(st.just("distinct"), st.sampled_from(["n", "ms"])),
)


@given(
    data=st.data(),
    view=st.sampled_from(["table", "series"]),
    begin=st.integers(-5, 40),
    length=st.integers(1, 70),
)
def test_an_answer_equals_that_of_plain_python(
    kept: tuple[Explored, Rows], data: Any, view: str, begin: int, length: int
) -> None:
    explored, rows = kept
    chosen = data.draw(st.lists(metrics, min_size=1, max_size=3, unique=True))
    groups = data.draw(
        st.lists(st.sampled_from(["route", "ok", "payload.from"]), max_size=2, unique=True)
    )
    conditions = data.draw(st.lists(filters, max_size=2))
    span = (BASE + begin * MINUTE, BASE + (begin + length) * MINUTE)
    query = read_query(
        {
            "stream": "web",
            "from": span[0],
            "to": span[1],
            "view": view,
            "bucket": "10m" if view == "series" else None,
            "group_by": groups,
            "metrics": [
                {"fn": fn, **({} if column is None else {"column": column})}
                for fn, column in chosen
            ],
            "filters": [
                {"column": c, "op": op, **({} if v is None else {"value": v})}
                for c, op, v in conditions
            ],
            "limit": 1000,
        }
    )
    result = explored.service.answer(query)
    wanted = expected(query, rows, *span)
    keys = len(groups) + (view == "series")
    found = {tuple(row[:keys]): row[keys:] for row in result.rows}
    assert len(found) == len(result.rows), "a group is there twice"
    if view == "series":
        empty = [0 if fn in ("count", "rate", "sum", "sum_rate", "distinct") else None
                 for fn, _ in chosen]  # fmt: skip
        filled = {key: values for key, values in found.items() if values != empty}
        wanted = {key: values for key, values in wanted.items() if values != empty}
        found = filled
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert all(map(same, values, found[key])), (key, values, found[key])


@pytest.mark.parametrize("route", ["/r1", "none has it"])
def test_a_quantile_alone_is_one_row(kept: tuple[Explored, Rows], route: str) -> None:
    explored, rows = kept
    query = read_query(
        {
            "stream": "web",
            "from": BASE,
            "to": BASE + 60 * MINUTE,
            "view": "table",
            "metrics": [{"fn": "p50", "column": "n"}, {"fn": "p95", "column": "n"}],
            "filters": [{"column": "route", "op": "=", "value": route}],
        }
    )
    wanted = expected(query, rows, BASE, BASE + 60 * MINUTE)
    assert explored.service.answer(query).rows == list(wanted.values())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Explored, Rows]]:
    clock = ManualClock(BASE + 61 * MINUTE)
    with Home(tmp_path_factory.mktemp("views")) as home:
        home.create("web", COLUMNS, time="at")
        rows = [{**row, "w": 1} for row in made(0, 200)]
        home.send("web", [{k: v for k, v in row.items() if k != "w"} for row in rows], 0)
        with Explored(home, clock) as explored:
            explored.step()
            yield explored, rows


def ask(explored: Explored, **query: Any) -> Any:
    return explored.ask("web", **{"from": BASE, "to": BASE + 60 * MINUTE, **query})


def test_groups_beyond_the_limit_of_a_series_are_one_that_is_called_other(
    web: tuple[Explored, Rows],
) -> None:
    explored, rows = web
    result = ask(explored, view="series", group_by=["route"], limit=2, bucket="1h")
    by_route: dict[Any, int] = defaultdict(int)
    for row in rows:
        by_route[row["route"]] += 1
    top = sorted(by_route.values(), reverse=True)
    shown = {row[1]: row[2] for row in result.rows if row[2]}
    assert (result.other_groups, result.other_label) == (4, "other")
    assert sum(shown.values()) == len(rows)
    assert shown["other"] == len(rows) - sum(top[:2])


def test_a_distribution_has_each_value_in_the_bucket_that_holds_it(
    web: tuple[Explored, Rows],
) -> None:
    explored, rows = web
    result = ask(explored, view="distribution", metrics=[{"fn": "p50", "column": "ms"}])
    values = [row["ms"] for row in rows if row["ms"] is not None]
    for low, high, count in result.rows:
        assert count == sum(low <= value < high for value in values), (low, high)
    assert sum(row[2] for row in result.rows) == len(values)
    heat = ask(explored, view="heatmap", metrics=[{"fn": "p50", "column": "ms"}])
    for at, low, high, count in heat.rows:
        held = [r for r in rows if r["ms"] is not None and at <= r["at"] < at + heat.bucket_ms]
        assert count == sum(low <= row["ms"] < high for row in held)
    assert sum(row[3] for row in heat.rows) == len(values)


def test_samples_are_the_newest_rows_as_they_are(web: tuple[Explored, Rows]) -> None:
    explored, rows = web
    result = ask(explored, view="samples", limit=5)
    newest = sorted(rows, key=lambda row: -row["at"])[:5]
    names = [one.name for one in result.columns]
    assert names == [*COLUMNS, "_partition", "_offset", "_sample_rate"]
    assert [[row[name] for name in COLUMNS] for row in newest] == [
        row[: len(COLUMNS)] for row in result.rows
    ]


def test_another_time_shows_the_same_groups(web: tuple[Explored, Rows]) -> None:
    explored, rows = web
    span = {"from": BASE + 30 * MINUTE, "to": BASE + 60 * MINUTE}
    result = ask(explored, group_by=["route"], compare="30m", limit=3, **span)
    assert result.compare is not None
    assert result.compare.from_ms == BASE
    shown = [row[0] for row in result.rows]
    for route, count in result.compare.rows:
        assert route in shown
        held = [r for r in rows if r["route"] == route and r["at"] < BASE + 30 * MINUTE]
        assert count == len(held)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"group_by": ["rote"]}, "no column 'rote'; did you mean 'route'?"),
        ({"metrics": [{"fn": "sum", "column": "route"}]}, "column 'route' is string; sum needs"),
        ({"metrics": [{"fn": "sum"}]}, "metric 'sum' needs a column"),
        ({"metrics": [{"fn": "median"}]}, "invalid enum value 'median'"),
        ({"view": "heatmap"}, "view 'heatmap' shows the values of the first metric's column"),
        ({"filters": [{"column": "n", "op": "=", "value": "x"}]}, "expected a number, found 'x'"),
        ({"filters": [{"column": "route", "op": "matches", "value": "("}]}, "cannot be answered"),
        ({"from": "soon"}, "from is 'soon'; expected now, -15m, a time such as"),
        ({"from": "now", "to": "-1h"}, "from must be before to"),
        ({"bucket": "1ms", "view": "series"}, "choose longer ones, or auto"),
        ({"order": {"by": "x"}}, "order: 'x' is neither a metric nor a group"),
        ({"more": 1}, "contains unknown field `more`"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_to_do(
    web: tuple[Explored, Rows], query: dict[str, Any], message: str
) -> None:
    explored, _ = web
    with pytest.raises(InvalidInputError) as refused:
        ask(explored, **query)
    assert message in refused.value.message


def test_values_that_look_like_sql_are_values(web: tuple[Explored, Rows]) -> None:
    explored, rows = web
    for value in ("x' OR 1=1 --", "'; DROP TABLE tail; --", '"', "\\", "%", "é\n"):
        found = ask(explored, filters=[{"column": "route", "op": "=", "value": value}])
        assert found.rows == [[0]]
        kept = ask(explored, filters=[{"column": "route", "op": "!=", "value": value}])
        assert kept.rows == [[len(rows)]]


def _names(values: Sequence[Any]) -> list[str]:
    return [one["name"] for one in values]


def test_columns_inside_json_are_listed_and_values_complete_what_is_typed(
    web: tuple[Explored, Rows],
) -> None:
    explored, _ = web
    [stream] = explored.service.streams(lambda _: True)
    kinds = {one.name: one.kind for one in stream["columns"]}
    assert kinds["at"] == "time"
    assert kinds["payload"] == "json"
    assert (kinds["payload.user.id"], kinds["payload.from"]) == ("number", "string")
    asked = {"column": "route", "prefix": "/r", "from": str(BASE), "to": str(BASE + 60 * MINUTE)}
    found = explored.service.values("web", {**asked, "limit": "3"})
    assert len(found) == 3
    assert all(one["value"].startswith("/r") for one in found)
