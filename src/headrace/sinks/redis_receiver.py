"""The driver's connection to Redis: appends what an epoch adds, batch by batch, each once.

A batch and how far the epoch is then (``epoch:rows``) are one step of the server: a script that
does nothing unless the epoch is where the sender thinks it is. So a batch whose answer was
lost, or that an older driver sends late, is not appended again. Batches travel many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.graph.remote import shown_url
from headrace.graph.sinks import Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.sinks.redis_totals import PROGRESS, Merge, compact, library

IN_FLIGHT = 32
TIMEOUT_S = 10.0

# An entry that is no list ends the script in its midst, and nothing is rolled back: how far it
# came is noted, so that nothing is appended twice once the entry was put in order.
_APPEND = """
local at = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if at ~= ARGV[2] then return {-1} end
local done, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local rows = cmsgpack.unpack(ARGV[6])
local long = {0}
for i = 1 + 2 * tonumber(ARGV[7]), #rows, 2 do
  local length = redis.pcall('RPUSH', rows[i], rows[i + 1])
  if type(length) == 'table' then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ':' .. done)
    return {-2, rows[i]}
  end
  if length >= limit then long[#long + 1] = rows[i] end
  done = done + 1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ':' .. done)
return long
"""


class _Batch(NamedTuple):
    """Some rows of an epoch: how many are before them, and they themselves as MessagePack."""

    first: int
    rows: int
    data: bytes


@dataclass(frozen=True)
class Place:
    """Where partial results go.

    Args:
        url: of the server, with its password.
        namespace: what names of entries begin with.
        compact_at: so long a list is put together.
        merge: how partial results combine.
    """

    url: str
    namespace: str
    compact_at: int
    merge: Merge


class RedisReceiver(Receiver):
    """Connected when it is made, and again after a connection broke.

    Args:
        place: where it sends.
        site: who sends.

    Raises:
        InvalidInputError: the server refuses the login.
        ReceiverAwayError: it does not answer.
    """

    def __init__(self, place: Place, site: SinkSite) -> None:
        self._place, self._site = place, site
        self._library = library()
        self._redis: Any = None
        self._prefix = place.namespace.encode()
        try:
            self._connected().ping()
        except (self._library.RedisError, OSError) as error:
            raise self._told(error) from error

    def _connected(self) -> Any:
        if self._redis is None:
            self._redis = self._library.Redis.from_url(
                self._place.url,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=None,
                max_connections=1,
            )
            self._script = self._redis.register_script(_APPEND)
        return self._redis

    def commit(self, epoch: SinkEpoch) -> None:
        """Append what is not there yet, and put together the lists that became long.

        Raises:
            ReceiverAwayError: the server does not answer; a part of the epoch may be there, and
                the next call goes on behind it.
            InvalidInputError: it refuses what is sent.
        """
        try:
            long: dict[bytes, None] = {}
            while not self._sent(epoch, long):
                pass
            if long:
                compact(self._connected(), list(long), self._place.merge)
        except (self._library.RedisError, OSError) as error:
            raise self._told(error) from error

    def _sent(self, epoch: SinkEpoch, long: dict[bytes, None]) -> bool:
        """Send what is missing; ``False``: another driver sends as well, look again."""
        redis, progress = self._connected(), self._prefix + PROGRESS.encode()
        sender = f"{self._site.job}/{self._site.operator}/{epoch.lineage}"
        at = (redis.hget(progress, sender) or b"").decode()
        number, _, rows = at.partition(":")
        if at and int(number) > epoch.epoch:
            return True
        done = int(rows) if at and int(number) == epoch.epoch else 0
        waiting: list[_Batch] = []

        def flush() -> bool:
            nonlocal at
            with redis.pipeline(transaction=False) as pipe:
                for batch in waiting:
                    skipped = max(0, done - batch.first)
                    told = [sender, at, epoch.epoch, batch.first + skipped]
                    more = [self._place.compact_at, batch.data, skipped]
                    self._script([progress], [*told, *more], client=pipe)
                    at = f"{epoch.epoch}:{batch.first + batch.rows}"
                answers = pipe.execute()
            for answer in answers:
                if answer[0] == -2:
                    raise self._no_list(answer[1])
                if answer[0] < 0:
                    return False
                long.update(dict.fromkeys(answer[1:]))
            waiting.clear()
            fault("sink.part_sent")
            return True

        for batch in self._batches(epoch, done):
            waiting.append(batch)
            if len(waiting) >= IN_FLIGHT and not flush():
                return False
        return flush() if waiting else True

    def _batches(self, epoch: SinkEpoch, done: int) -> Iterator[_Batch]:
        """Yield the batches of an epoch that are not all out."""
        rows = 0
        for prepared in epoch.files:
            with pa.memory_map(str(prepared.path)) as file:
                table = pa.ipc.open_file(file).read_all()
            for count, data in zip(*table.to_pydict().values(), strict=True):
                if rows + count > done:
                    yield _Batch(rows, count, data)
                rows += count

    def _no_list(self, name: bytes) -> InvalidInputError:
        return InvalidInputError(
            f"entry {name!r} at {shown_url(self._place.url)} is no list: another program uses "
            "these names; remove the entry, and start the job again: the epoch is committed and "
            "waits",
            operator=self._site.operator,
        )

    def _told(self, error: Exception) -> Exception:
        """Say what failed: whether it passes, or a person has to mend it."""
        self.close()
        redis, where = self._library, f"the server at {shown_url(self._place.url)}"
        said = str(error) or type(error).__name__
        refused = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
        if isinstance(error, refused) or said.startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
            return InvalidInputError(
                f"{where} refuses this login: {said}; give user and password in the url, as "
                "redis://user:${PASSWORD}@host",
                operator=self._site.operator,
            )
        return ReceiverAwayError(
            f"{where}, for {self._place.namespace}*, does not answer: {said}; check that it runs, "
            "has room and takes writes: what is committed is sent when it is back",
            operator=self._site.operator,
        )

    def close(self) -> None:
        """Let the connection go."""
        redis, self._redis = self._redis, None
        if redis is not None:
            with suppress(self._library.RedisError, OSError):
                redis.close()
