"""What notebooks show of streams, jobs, graphs and runs."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
from tests.support.homes import Home

import headrace as hr

SHOWN: dict[str, str] = {}


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").filter(hr.col("who") != "<script>alert(1)</script>")
    by_user = orders.partition_by("who")
    totals = by_user.aggregate(cents=hr.agg.sum("cents"))
    SHOWN["text"], SHOWN["html"] = repr(by_user), by_user._repr_html_()
    totals.send_to("totals")
    orders.send_to("clean")


def boxes(html: str) -> list[str]:
    svg = ElementTree.fromstring(html[html.index("<svg") :])
    return [title.text or "" for title in svg.iter("{http://www.w3.org/2000/svg}title")]


def test_a_graph_is_drawn_with_all_operators_and_arrows() -> None:
    graph = shop.build()
    names = [operator.name for operator in graph.operators]
    assert sorted(boxes(graph._repr_html_())) == sorted(names)
    arrows = sum(len(operator.inputs) for operator in graph.operators)
    assert graph._repr_html_().count("<path") == arrows == 5
    assert shop._repr_html_() == graph._repr_html_()
    assert repr(graph) == f"<graph of job 'shop': {', '.join(names)}>"


def test_a_stream_is_drawn_with_what_it_is_made_by() -> None:
    shop.build()
    assert SHOWN["text"] == "<stream 'orders.by_who' by (who) of job 'shop'>"
    assert boxes(SHOWN["html"]) == ["orders", "orders.filter", "orders.by_who"]


def test_text_of_users_is_escaped() -> None:
    assert "<script" not in shop._repr_html_()
    assert "&lt;script" in shop._repr_html_()


def test_a_job_says_where_it_is_and_what_is_wrong_with_it() -> None:
    @hr.job("empty")
    def empty(g: hr.Graph) -> None:
        g.input("<b>")

    assert re.fullmatch(r"<job 'empty' of .*test_drawing.py:\d+>", repr(empty))
    shown = empty._repr_html_()
    assert "cannot name a stream" in shown
    assert "<b>" not in shown


def test_a_run_says_what_it_does(tmp_path: Path) -> None:
    with Home(tmp_path) as home:
        home.create("orders", {"who": pa.string(), "cents": pa.int64()})
        home.send("orders", [{"who": "ann", "cents": 5}])
        running = hr.start(shop, {"job.bounded": True}, home=tmp_path)
        assert running.wait(60).rows == 1
        epoch = running.wait(60).state.epoch
        assert repr(running) == f"<job 'shop': ended, epoch {epoch}>"
        html = f"<code>&lt;job &#x27;shop&#x27;: ended, epoch {epoch}&gt;</code>"
        assert running._repr_html_() == html


def test_a_store_says_what_it_holds() -> None:
    shown = hr.store("seen<b>", dict[str, int], ttl="1h")._repr_html_()
    assert shown == (
        "<code>store &#x27;seen&lt;b&gt;&#x27;: rocksdb, values dict, kept for 1h</code>"
    )
