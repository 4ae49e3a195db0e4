"""Settings of what looks at a job: keys, alerts, traces."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from headrace.config.alerts import AlertRule, read_rules
from headrace.config.section import Section


class ObserveSettings(Section):
    """What is looked at beside the results."""

    hot_keys: bool = Field(
        True, description="draw rows that go through `partition_by` to find its heaviest keys"
    )


class AlertSettings(Section):
    """What is wrong with a job, and who is told."""

    rules: Annotated[tuple[AlertRule, ...], BeforeValidator(read_rules)] = Field(
        (), description="tables `[[alerts.rules]]`, or the same in JSON: what is wrong with a job"
    )
    webhook: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="URL that alerts are posted to as JSON; ${NAME} is taken from the environment",
    )
    stream: str | None = Field(
        None, min_length=1, description="stream that alerts are appended to, made where it is not"
    )


class TracingSettings(Section):
    """OpenTelemetry traces of epochs."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="URL that traces of epochs are sent to by OTLP over HTTP, such as "
        "http://localhost:4318; none: no traces",
    )
    sample: float = Field(1.0, ge=0, le=1, description="part of the epochs that are traced")
