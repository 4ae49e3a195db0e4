"""Many messages in one call of librdkafka, without an object of Python for any of them.

The client library makes a call, and an object, for each message. Its own ``produce_batch`` takes a
dict for each and is no faster. librdkafka's function of this name takes an array of pointers and
lengths, which NumPy makes of the buffers of Arrow. It has no timestamps and no headers.

The handle is the first field of the client's objects; what is there is looked at before it is used,
so a client library that is built otherwise has no such calls, and each message is a call again.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.kafka.clients import library

_COPY = 2  # RD_KAFKA_MSG_F_COPY
_ANY = -1  # RD_KAFKA_PARTITION_UA: the partitioner says which
_MESSAGE = np.dtype(
    {
        "names": ["error", "partition", "value", "value_len", "key", "key_len"],
        "formats": ["i4", "i4", "u8", "u8", "u8", "u8"],
        "offsets": [0, 16, 24, 32, 40, 48],
        "itemsize": 72,
    }
)
"""``rd_kafka_message_t``, as far as it is used, on machines of 64 bits."""


class BatchCalls:
    """Calls for one topic of one producer; see ``of``.

    Args:
        functions: of librdkafka.
        handle: of the producer.
        topic: its name.
    """

    def __init__(self, functions: Any, handle: int, topic: str) -> None:
        self._functions = functions
        self._topic = functions.rd_kafka_topic_new(handle, topic.encode(), None)

    @classmethod
    def of(cls, producer: Any, topic: str) -> BatchCalls | None:
        """Return the calls for a producer; ``None`` where they cannot be made.

        Args:
            producer: of the client library; it has to be there until ``close``.
            topic: its name.
        """
        functions = _functions()
        if functions is None:
            return None
        at = id(producer) + object.__basicsize__
        handle = ctypes.c_uint64.from_address(at).value
        if not _memory(handle, 8):
            return None
        name = _memory(functions.rd_kafka_name(handle) or 0, 64)
        return cls(functions, handle, topic) if b"#producer-" in name else None

    def produce(self, batch: pa.RecordBatch) -> bool:
        """Give messages to the producer, which copies them; False where they need calls each.

        Args:
            batch: with ``key``, ``value``, ``time`` and ``headers``.

        Raises:
            KafkaException: the producer does not take all of them.
        """
        rows = batch.num_rows
        if any(batch.column(name).null_count < rows for name in ("time", "headers")):
            return False
        messages = np.zeros(rows, _MESSAGE)
        for name in ("key", "value"):
            _point(messages, name, batch.column(name))
        taken = self._functions.rd_kafka_produce_batch(
            self._topic, _ANY, _COPY, messages.ctypes.data, rows
        )
        if taken < rows:
            lib = library()
            error = int(messages["error"][np.flatnonzero(messages["error"])[0]])
            raise lib.KafkaException(lib.KafkaError(error))
        return True

    def close(self) -> None:
        """Release the topic, before the producer ends."""
        topic, self._topic = self._topic, None
        if topic is not None:
            self._functions.rd_kafka_topic_destroy(topic)


def _point(messages: Any, name: str, column: pa.Array) -> None:
    """Set pointers to and lengths of the bytes of a column; none for a null."""
    _, places, data = column.buffers()
    if column.null_count == len(column) or places is None:
        return
    ends = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    is_there = np.asarray(column.is_valid())
    # An empty value is none without an address.
    start = messages.ctypes.data if data is None else data.address
    messages[name] = np.where(is_there, ends[:-1].astype(np.uint64) + np.uint64(start), 0)
    messages[f"{name}_len"] = np.where(is_there, np.diff(ends), 0)


@cache
def _functions() -> Any:
    """Return the functions of the librdkafka that the client library has loaded, or ``None``."""
    found = _loaded()
    if found is None or sys.maxsize < 2**32:
        return None
    functions = ctypes.CDLL(found)
    pointer = ctypes.c_void_p
    functions.rd_kafka_name.argtypes = [pointer]
    functions.rd_kafka_name.restype = pointer
    functions.rd_kafka_topic_new.argtypes = [pointer, ctypes.c_char_p, pointer]
    functions.rd_kafka_topic_new.restype = pointer
    functions.rd_kafka_topic_destroy.argtypes = [pointer]
    functions.rd_kafka_topic_destroy.restype = None
    functions.rd_kafka_produce_batch.argtypes = [
        pointer,
        ctypes.c_int32,
        ctypes.c_int,
        pointer,
        ctypes.c_int,
    ]
    return functions


def _loaded() -> str | None:
    library()
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(maxsplit=5)[-1] for line in lines if "/librdkafka" in line), None)


def _memory(address: int, size: int) -> bytes:
    """Return what is at an address of this process; nothing where no memory is."""
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(size) or b""
    except (OSError, OverflowError, ValueError):
        return b""
