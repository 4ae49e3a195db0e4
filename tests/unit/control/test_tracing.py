"""Traces of epochs: a span for each step and slot, sent to a real receiver, or told why not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.homes import Settings, load_settings

import headrace as hr
from headrace.bus import StreamSpec, open_bus
from headrace.control.tracing import EpochTracer, epoch_tracer
from headrace.coordinator.epoch_records import EpochSummary
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user")
    orders.aggregate(n=hr.agg.count()).send_to(g.output("totals"))


@pytest.fixture(scope="module")
def summary() -> EpochSummary:
    with TestDriver(shop) as driver:
        driver.create("orders", {"user": pa.string()})
        driver.feed("orders", [{"user": "ann"}, {"user": "bob"}])
        found = driver.advance()
        assert found is not None
        return found


class Receiver(BaseHTTPRequestHandler):
    """A collector."""

    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    made.got = []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_an_epoch_is_a_trace_with_its_steps_and_slots(summary: EpochSummary) -> None:
    memory = InMemorySpanExporter()
    tracer = EpochTracer("shop", 1.0, SimpleSpanProcessor(memory), print)
    tracer.observe(summary, 1_000_000)
    spans = memory.get_finished_spans()
    tracer.close()
    by_id = {span.context.span_id: span for span in spans}
    (whole,) = [span for span in spans if span.parent is None]
    assert (whole.name, whole.end_time) == ("epoch", 1_000_000 * 1_000_000)
    assert whole.attributes is not None
    assert whole.attributes["headrace.rows"] == 2
    assert whole.resource.attributes["headrace.job"] == "shop"
    below = {
        parent: [s for s in spans if s.parent is not None and s.parent.span_id == parent]
        for parent in by_id
    }
    steps = below[whole.context.span_id]
    names = {span.name: span for span in steps}
    in_order = sorted(steps, key=lambda span: span.start_time or 0)
    assert list(summary.timings_ms) == [span.name for span in in_order]
    assert {"plan", "level 0", "level 1", "commit", "publish"} <= names.keys()
    for level in ("level 0", "level 1"):
        slots = below[names[level].context.span_id]
        assert slots
        for slot in slots:
            assert slot.name.startswith("slot ")
            assert slot.attributes is not None
            assert slot.attributes["headrace.tasks"] != 0
            assert {"run", "catch up"} <= {s.name for s in below[slot.context.span_id]}
    assert {span.context.trace_id for span in spans} == {whole.context.trace_id}
    assert min(span.start_time or 0 for span in spans) == whole.start_time


def test_a_collector_gets_it(summary: EpochSummary, receiver: Any) -> None:
    url = f"http://127.0.0.1:{receiver.server_address[1]}"
    tracer = epoch_tracer(load_settings(overrides=[f"tracing.endpoint={url}"]), "shop", print)
    assert tracer is not None
    tracer.observe(summary, 1_000_000)
    tracer.close()
    ((path, sent),) = receiver.got
    assert path == "/v1/traces"
    (resource,) = sent.resource_spans
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert names.count("epoch") == 1
    assert "commit" in names


def test_a_run_sends_each_of_its_epochs(receiver: Any, tmp_path: Path) -> None:
    with open_bus(tmp_path / "bus") as bus:
        orders = bus.create(StreamSpec("orders", 1, pa.schema({"user": pa.string()})))
        orders.append(0, pa.table({"user": ["ann"] * 30}))
    url = f"http://127.0.0.1:{receiver.server_address[1]}"
    sets = {"job.bounded": True, "epoch.max_rows": 10, "tracing.endpoint": url}
    result = hr.run(shop, sets, home=tmp_path)
    spans = [
        span
        for _, sent in receiver.got
        for resource in sent.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [span.name for span in spans].count("epoch") == result.epochs > 3
    assert len({span.trace_id for span in spans}) == result.epochs


def test_a_sample_of_none_sends_none(summary: EpochSummary) -> None:
    memory = InMemorySpanExporter()
    tracer = EpochTracer("shop", 0.0, SimpleSpanProcessor(memory), print)
    tracer.observe(summary, 1_000_000)
    tracer.close()
    assert memory.get_finished_spans() == ()


def test_a_collector_that_is_away_is_told_once(summary: EpochSummary) -> None:
    told: list[str] = []
    settings = load_settings(overrides=["tracing.endpoint=http://127.0.0.1:9"])
    tracer = epoch_tracer(settings, "shop", told.append)
    assert tracer is not None
    tracer.observe(summary, 1_000_000)
    tracer.close()
    (line,) = told
    assert line.startswith("tracing: ")
    assert line.endswith("epochs continue without traces")
    assert [one.name for one in threading.enumerate() if "Otel" in one.name] == []


def test_without_an_endpoint_there_is_nothing() -> None:
    assert epoch_tracer(Settings(), "shop", print) is None


def test_an_extra_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(overrides=["tracing.endpoint=http://127.0.0.1:9"])
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InvalidInputError, match=r'pip install "headrace\[tracing\]"'):
        epoch_tracer(settings, "shop", print)
