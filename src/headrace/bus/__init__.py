"""Streams: durable, partitioned, ordered logs that many processes append to and read.

Read ``bus`` for the contract, ``spec`` for the data, ``file`` and ``memory`` for the two
buses, and docs/decisions/0002-bus-format.md for what lies on disk.
"""

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus, Stream
from headrace.bus.compacting.compaction import CompactionStoppedError
from headrace.bus.file import FileBus
from headrace.bus.memory import MemoryBus
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.retention import OffsetGoneError
from headrace.bus.settings import StreamSettings
from headrace.bus.spec import Appended, Compacted, OffsetBatch, Producer, Stored, StreamSpec

__all__ = [
    "Appended",
    "Bus",
    "BusOptions",
    "Compacted",
    "CompactionStoppedError",
    "FileBus",
    "Fsync",
    "MemoryBus",
    "OffsetBatch",
    "OffsetGoneError",
    "Producer",
    "Stored",
    "Stream",
    "StreamSettings",
    "StreamSpec",
    "open_bus",
]
