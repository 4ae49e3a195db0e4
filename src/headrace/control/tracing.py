"""Epochs as OpenTelemetry traces, made after each epoch of the times that its summary has.

What this needs of OpenTelemetry is an extra, and loaded only where there is an endpoint.
"""

from __future__ import annotations

import logging
import textwrap
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace import extras
from headrace.redaction import redacted

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from headrace.config import Settings
    from headrace.coordinator.epoch_records import EpochSummary
    from headrace.coordinator.slot_reports import SlotMetrics

STOP_S = 3.0
_NS = 1_000_000  # of a millisecond
_LOGGER = "opentelemetry"
_SHOWN = 160


class EpochTracer:
    """Makes a trace of each epoch.

    ``observe`` returns at once; a thread of the SDK sends what was made, and drops what it cannot.

    Args:
        job: its name.
        sample: part of the epochs that are traced.
        processor: takes the spans that have ended.
        notify: takes a line when spans cannot be sent; from any thread.
        give_up: ends what is being tried, so that nothing continues after the end.
    """

    def __init__(
        self,
        job: str,
        sample: float,
        processor: SpanProcessor,
        notify: Callable[[str], None],
        give_up: Callable[[], object] = lambda: None,
    ) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - of an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

        self._within = trace.set_span_in_context
        resource = Resource.create({"service.name": "headrace", "headrace.job": job})
        sampler = ParentBased(TraceIdRatioBased(sample))
        self._provider: TracerProvider = TracerProvider(
            sampler=sampler, resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headrace")
        self._words, self._give_up = _FirstComplaint(notify), give_up
        logging.getLogger(_LOGGER).addHandler(self._words)
        logging.getLogger(_LOGGER).propagate = False

    def observe(self, summary: EpochSummary, end_ms: int) -> None:
        """Make the trace of an epoch that has ended.

        Args:
            summary: of the epoch.
            end_ms: wall clock of its end.
        """
        end = end_ms * _NS
        begin = end - int(summary.took_ms * _NS)
        whole = self._tracer.start_span("epoch", start_time=begin)
        if not whole.is_recording():
            return
        whole.set_attributes(
            {
                "headrace.part": summary.job,
                "headrace.epoch": summary.epoch,
                "headrace.rows": summary.rows,
                "headrace.output_rows": summary.output_rows,
                "headrace.lag": summary.lag,
                "headrace.state_bytes": summary.state_bytes,
                "headrace.changelog_bytes": summary.changelog_bytes,
            }
        )
        within, at = self._within(whole), begin
        slots = [] if summary.observed is None else summary.observed.slots
        for step, took_ms in summary.timings_ms.items():
            span = self._tracer.start_span(step, within, start_time=at)
            self._slots(self._within(span), at, [s for s in slots if f"level {s.level}" == step])
            at += int(took_ms * _NS)
            span.end(at)
        whole.end(end)

    def _slots(self, within: Any, begin: int, slots: list[SlotMetrics]) -> None:
        """Make a span for each slot of a level; when exactly one began is not known."""
        for slot in slots:
            span = self._tracer.start_span(f"slot {slot.slot}", within, start_time=begin)
            span.set_attributes(
                {
                    "headrace.host": slot.host,
                    "headrace.process": slot.process,
                    "headrace.tasks": slot.tasks,
                }
            )
            inner, at = self._within(span), begin
            for step, took_ms in slot.steps_ms.items():
                made = self._tracer.start_span(step, inner, start_time=at)
                at += int(took_ms * _NS)
                made.end(at)
            span.end(at)

    def close(self) -> None:
        """Send what is left, and wait for that no longer than a moment."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(STOP_S)
        self._words.is_quiet = True  # it stays: what is still being tried would be printed
        if ending.is_alive():
            self._give_up()
            ending.join(STOP_S)


class _FirstComplaint(logging.Handler):
    """Reports the first thing that OpenTelemetry complains of; it says the same each second."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._notify = notify
        self.is_quiet = False

    def emit(self, record: logging.LogRecord) -> None:
        """Report it once."""
        if not self.is_quiet:
            self.is_quiet = True
            said = textwrap.shorten(redacted(record.getMessage()), _SHOWN, placeholder="…")
            self._notify(f"tracing: {said}; epochs continue without traces")


def epoch_tracer(settings: Settings, job: str, notify: Callable[[str], None]) -> EpochTracer | None:
    """Return what sends traces where the settings say; ``None`` where they do not.

    Args:
        settings: of the run.
        job: its name.
        notify: takes a line when they cannot be sent.

    Raises:
        InvalidInputError: there is an endpoint, and OpenTelemetry is not installed.
    """
    wanted = settings.tracing
    if wanted.endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        use = f"tracing.endpoint {wanted.endpoint}"
        raise extras.missing(error, use, "leave it out") or error from error
    endpoint = f"{wanted.endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=endpoint)
    processor = BatchSpanProcessor(exporter)
    return EpochTracer(job, wanted.sample, processor, notify, exporter.shutdown)
