"""Keyed state of tasks: stores, changelog segments, snapshots, and the one ``catch_up``.

Read ``task_state`` for the life of a task's state over an epoch, ``backend`` for what
holds committed data, ``segment`` for the form of files, ``objects`` for what user code sees.
"""

from headrace.state.backend import Backend, Changes
from headrace.state.chain import CatchUpStats, Chain, SegmentSource, Step
from headrace.state.follower import TaskName
from headrace.state.memory import MemoryBackend
from headrace.state.objects import ObjectStore
from headrace.state.position import Position, Target
from headrace.state.registry import Registry
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.segment import SegmentHeader, SegmentInfo, header_at
from headrace.state.segment_reader import SegmentReader
from headrace.state.segment_writer import SegmentWriter
from headrace.state.snapshots import SnapshotDecision, snapshot_decision
from headrace.state.store import KeyValueStore
from headrace.state.task_state import BACKENDS, TaskState

__all__ = [
    "BACKENDS",
    "Backend",
    "CatchUpStats",
    "Chain",
    "Changes",
    "KeyValueStore",
    "MemoryBackend",
    "ObjectStore",
    "Position",
    "Registry",
    "RocksDBBackend",
    "SegmentHeader",
    "SegmentInfo",
    "SegmentReader",
    "SegmentSource",
    "SegmentWriter",
    "SnapshotDecision",
    "Step",
    "Target",
    "TaskName",
    "TaskState",
    "header_at",
    "snapshot_decision",
]
