"""Lines that do not fit a stream: kept with their bytes in a stream beside it."""

from __future__ import annotations

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.clock import Clock
from headrace.sources.text_rows import BadLine

SUFFIX = ".dead"
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("message", pa.string()),
        ("bytes", pa.binary()),
    ]
)


class BadLines:
    """Takes the lines of one append that do not fit, and appends them to ``<stream>.dead``.

    Args:
        bus: has the stream; the one beside it is made with the first bad line.
        stream: its name.
        clock: for when.
    """

    def __init__(self, bus: Bus, stream: str, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self.stream = stream + SUFFIX
        self.count = 0
        self.file = ""
        self._held: list[BadLine] = []

    def add(self, bad: BadLine) -> None:
        """Take a line of the file that is read now."""
        self._held.append(bad)

    def flush(self) -> None:
        """Append what was taken since the last time."""
        if not self._held:
            return
        at = self._clock.now_ms() * 1000
        rows = [
            {"at": at, "file": self.file, "line": n, "message": message, "bytes": data}
            for n, message, data in self._held
        ]
        spec = StreamSpec(self.stream, 1, SCHEMA, "at")
        stream = self._bus.create(spec, exist_ok=True)
        stream.append(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        self.count += len(rows)
        self._held.clear()
