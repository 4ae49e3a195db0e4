"""Totals of a ``MonoidProcessor`` on a Redis server, by appending what each epoch adds.

An entry is a list: the partial results of a key, oldest first, as MessagePack. An epoch pushes
one to each of its keys' lists and reads none of them. Who reads combines what is there
(``redis_totals``); long lists are put together now and then (``redis_receiver``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.files import Bytes
from headrace.graph.partial_sinks import PartialSink
from headrace.graph.processors import MonoidProcessor
from headrace.graph.remote import shown_url
from headrace.graph.sinks import Receiver, SinkSite
from headrace.graph.states import PARTIAL
from headrace.records.keys import encode_columns
from headrace.sinks.postgres import real_url
from headrace.sinks.redis_totals import Merge, RedisTotals

Factory = Callable[[], MonoidProcessor[Any, Any]]
BATCH_ROWS = 1024
BATCHES = pa.schema([("rows", pa.int64()), ("data", pa.binary())])
_SCHEME = re.compile(r"(redis|rediss|unix)://|\$\{\w+\}$")


@dataclass(frozen=True)
class RedisPartials(PartialSink):
    """Where partial results are appended; made by ``redis_partials``.

    Args:
        url: of the server.
        namespace: what the names of entries begin with.
        compact_at: so long a list is put together.
        merge: of the processor whose results they are.
    """

    url: str
    namespace: str
    compact_at: int = 64
    merge: Merge | None = field(default=None, compare=False)

    suffix = "partials"

    @property
    def label(self) -> str:
        """The namespace."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.namespace).strip("-") or "redis"

    @property
    def identity(self) -> str:
        """The namespace, and what is done."""
        return f"Redis entries {self.namespace}* (partial results appended)"

    @property
    def promise(self) -> str:
        """What readers can rely on."""
        return (
            f"exactly-once, at {shown_url(self.url)}: a batch of an epoch and how far it is are "
            "one step; nothing is read to add to it"
        )

    def mistakes(self) -> list[str]:
        """Return what cannot be."""
        wrong = []
        if not _SCHEME.match(self.url):
            wrong.append(f"url is {shown_url(self.url)}; expected redis://, rediss:// or unix://")
        if not self.namespace:
            wrong.append('namespace is empty; expected what names begin with, such as "likes:"')
        if self.compact_at < 2:
            wrong.append(f"compact_at is {self.compact_at}; expected at least 2")
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return what is wrong where it is used without ``monoid``."""
        if self.merge is not None:
            return []
        return ["takes partial results; give it to monoid(..., state=)"]

    def of(self, factory: Factory, state: Any) -> RedisPartials:
        """Return the same for the partial results of a processor."""
        return replace(self, merge=Merge(factory, state))

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return names and partial results, packed as the server takes them."""
        prefix = self.namespace.encode()
        counts, data = [], []
        for batch in batches:
            keys = [batch.column(name) for name in schema.names if name != PARTIAL]
            names = [prefix + key for key in encode_columns(keys).to_list()]
            partials = batch.column(PARTIAL).to_pylist()
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                some = slice(begin, begin + BATCH_ROWS)
                pairs = zip(names[some], partials[some], strict=True)
                rows = [part for pair in pairs for part in pair]
                counts.append(len(rows) // 2)
                data.append(packed(rows))
        table = pa.Table.from_pydict({"rows": counts, "data": data}, BATCHES)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, BATCHES) as writer:
            writer.write_table(table)
        return [sink.getvalue()]

    def open(self, site: SinkSite) -> Receiver:
        """Connect to the server."""
        from headrace.sinks.redis_receiver import Place, RedisReceiver  # noqa: PLC0415 - needs redis

        if self.merge is None:
            raise InvalidInputError(
                f"sink {self.identity} takes partial results; give it to monoid(..., state=)"
            )
        url = real_url(self.url, os.environ)
        return RedisReceiver(Place(url, self.namespace, self.compact_at, self.merge), site)

    def totals(self, factory: Factory) -> RedisTotals:
        """Return a reader of the totals, for any program.

        Args:
            factory: the class of the job, or ``functools.partial`` of it.
        """
        merge = Merge.of(factory)
        return RedisTotals(real_url(self.url, os.environ), self.namespace, merge)


def packed(rows: Sequence[bytes]) -> bytes:
    """Return byte strings as MessagePack of before it had a type for them: the server's."""
    parts = [b"\xdd", len(rows).to_bytes(4, "big")]
    for row in rows:
        size = len(row)
        parts.append(_HEADS[size] if size < len(_HEADS) else b"\xdb" + size.to_bytes(4, "big"))
        parts.append(row)
    return b"".join(parts)


_HEADS = [bytes((0xA0 | size,)) for size in range(32)]


def redis_partials(url: str, namespace: str, *, compact_at: int = 64) -> RedisPartials:
    """Keep the totals of a ``MonoidProcessor`` on a Redis server, append-only, exactly-once.

    What an epoch adds is pushed to the list of each key, and no entry is read. Needs
    ``pip install 'headrace[remote]'`` where the driver runs and where totals are read.

    Args:
        url: ``redis://user:${PASSWORD}@host:6379/0``, ``rediss://`` or ``unix://``; ``${NAME}`` is
            taken from the environment of the driver.
        namespace: what names of entries begin with; of this use alone.
        compact_at: so long a list is put together, which reads it: the driver does it after an
            epoch.
    """
    return RedisPartials(url, namespace, compact_at)
