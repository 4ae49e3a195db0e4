"""Streams: durable, partitioned, ordered logs that many processes append to and read.

See ``bus`` for the contract, ``spec`` for the data, ``file`` and ``memory`` for the two buses, and
docs/decisions/0002-bus-format.md for the format on disk.
"""

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus, Stream
from headrace.bus.compaction import CompactionStoppedError
from headrace.bus.file import FileBus
from headrace.bus.log import OffsetGoneError
from headrace.bus.memory import MemoryBus
from headrace.bus.object_bus import ObjectBus
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.readable import ExternalLog, LogAwayError, LogConnector, ReadableLog
from headrace.bus.spec import (
    Appended,
    AppendedUpTo,
    Compacted,
    Fence,
    OffsetBatch,
    Producer,
    Stored,
    StreamReplacedError,
    StreamSpec,
)
from headrace.bus.stream_stores import StreamSettings

__all__ = [
    "Appended",
    "AppendedUpTo",
    "Bus",
    "BusOptions",
    "Compacted",
    "CompactionStoppedError",
    "ExternalLog",
    "Fence",
    "FileBus",
    "Fsync",
    "LogAwayError",
    "LogConnector",
    "MemoryBus",
    "ObjectBus",
    "OffsetBatch",
    "OffsetGoneError",
    "Producer",
    "ReadableLog",
    "Stored",
    "Stream",
    "StreamReplacedError",
    "StreamSettings",
    "StreamSpec",
    "open_bus",
]
