"""Plans of jobs, made without running them: what is explained, drawn, refused, changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.coordinator.bindings import with_store_servers
from headrace.coordinator.deployment import make_plan
from headrace.errors import GraphError
from headrace.graph.aggregates import Aggregate
from headrace.graph.operator_base import StreamInfo
from headrace.graph.operators import (
    CallPolicy,
    Deduplicate,
    FlatMapMessages,
    Input,
    JobGraph,
    JoinKept,
    KeepTable,
    Merge,
    Operator,
    Port,
    Process,
    Select,
    SendTo,
    Split,
    StoreSpec,
    Union,
)
from headrace.graph.processors import MonoidTotal
from headrace.graph.semantics import ORDERS, CommitStep, Semantics, commit_actions
from headrace.plan.compatibility import changes
from headrace.plan.explain import explain, mermaid, plan_object
from headrace.plan.inference import TableFile
from headrace.plan.parts import internal_stream_name, split_parts
from headrace.plan.planner import plan
from headrace.plan.semantics import RequestedSemantics
from headrace.plan.stages import (
    GROUP,
    MARK,
    TIME,
    WATERMARK,
    CallLimits,
    JobPlan,
    Stage,
    with_task_counts,
)

__all__ = [
    "GROUP",
    "MARK",
    "ORDERS",
    "TIME",
    "WATERMARK",
    "Aggregate",
    "CallLimits",
    "CallPolicy",
    "CommitStep",
    "Deduplicate",
    "FlatMapMessages",
    "Input",
    "JobGraph",
    "JobPlan",
    "JoinKept",
    "KeepTable",
    "Merge",
    "MonoidTotal",
    "Operator",
    "Port",
    "Process",
    "RequestedSemantics",
    "Select",
    "Semantics",
    "SendTo",
    "Split",
    "Stage",
    "StoreSpec",
    "StreamInfo",
    "TableFile",
    "Union",
    "changed",
    "changes",
    "commit_actions",
    "drawn",
    "explain",
    "explained",
    "info",
    "internal_stream_name",
    "make_plan",
    "mermaid",
    "mistakes",
    "plan",
    "plan_object",
    "planned",
    "split_parts",
    "with_store_servers",
    "with_task_counts",
]

Build = Callable[[hr.Graph], Any]


def info(
    columns: pa.Schema | Mapping[str, pa.DataType],
    partitions: int = 1,
    time: str | None = None,
    key: tuple[str, ...] = (),
) -> StreamInfo:
    """Return what a plan has to know of a stream that is there."""
    schema = columns if isinstance(columns, pa.Schema) else pa.schema(list(columns.items()))
    return StreamInfo(schema, partitions, time, key)


def planned(
    job: hr.Job | Build, streams: Mapping[str, StreamInfo] | None = None, **options: Any
) -> JobPlan:
    """Return the plan of a job, or of one named ``job`` that a function builds."""
    made = job if isinstance(job, hr.Job) else hr.job("job")(job)
    return plan(made.build(), streams or {}, **options)


def explained(
    job: hr.Job | Build, streams: Mapping[str, StreamInfo] | None = None, **options: Any
) -> str:
    """Return what ``headrace explain`` prints of a job."""
    return explain(planned(job, streams, **options))


def drawn(
    job: hr.Job | Build, streams: Mapping[str, StreamInfo] | None = None, **options: Any
) -> str:
    """Return the diagram of a job."""
    return mermaid(planned(job, streams, **options))


def mistakes(
    job: hr.Job | Build, streams: Mapping[str, StreamInfo] | None = None, **options: Any
) -> str:
    """Return the message of a job that must be refused, with every mistake in it."""
    with pytest.raises(GraphError) as caught:
        planned(job, streams, **options)
    return str(caught.value)


def changed(before: JobPlan, after: JobPlan) -> Any:
    """Return what state of one version of a job the other cannot go on from."""
    return changes(before.fingerprint, after.fingerprint)
