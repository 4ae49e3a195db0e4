"""How a store of kind ``remote`` is reached: plain data that a job declares.

Nothing here connects; ``state.remote`` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headrace.graph.durations import Duration, duration_ms

Access = Literal["batched", "async", "blocking"]
ACCESSES = ("batched", "async", "blocking")
_SCHEME = re.compile(r"(redis|rediss|unix)://")


@dataclass(frozen=True)
class Remote:
    """How a remote store is reached; given to ``hr.store(..., kind="remote", remote=...)``.

    Args:
        url: ``redis://host:6379/0``, ``rediss://`` or ``unix://``; none: the setting
            ``remote.url``. What stands as ``${NAME}`` is taken from the environment of the
            process that connects, so that a password is in neither the plan nor a message.
        access: ``batched``: the keys of a batch are loaded with one round trip before user code
            runs, and changes are sent with one at the end of the epoch; ``async``: no key is
            loaded before, ``context.get_later`` and ``get_async`` keep many requests in
            flight; ``blocking``: one request for each ``get`` and ``put``, at once.
        namespace: what the keys of the server begin with; none: ``headrace/<job>/<store>/``.
        load: columns whose values are the keys to load with ``batched``; none: those of
            ``partition_by``.
        cache: how old a value may be that is read from the cache and not from the server;
            ``"0s"``: nothing is kept between epochs.
        cache_bytes: of keys and encoded values that one task keeps.
        timeout: of one round trip.
        patience: how long an unreachable server is asked again, with new connections.
        in_flight: commands under way at the same time, of one task.
        batch_keys: keys of one command.
    """

    url: str | None = None
    access: Access = "batched"
    namespace: str | None = None
    load: tuple[str, ...] = ()
    cache: Duration = "1s"
    cache_bytes: int = 16 << 20
    timeout: Duration = "2s"
    patience: Duration = "30s"
    in_flight: int = 64
    batch_keys: int = 512

    def mistakes(self) -> list[str]:
        """Return what cannot be, one sentence each."""
        wrong = []
        if self.url is not None and not _SCHEME.match(self.url):
            wrong.append(f"url is {shown_url(self.url)}; expected redis://, rediss:// or unix://")
        if self.access not in ACCESSES:
            wrong.append(f"access is {self.access!r}; expected one of {ACCESSES}")
        if self.load and self.access != "batched":
            wrong.append(f"load= is for access='batched'; access is {self.access!r}")
        least = {"cache_bytes": 0, "in_flight": 1, "batch_keys": 1}
        wrong += [
            f"{name} is {getattr(self, name)}; expected at least {bound}"
            for name, bound in least.items()
            if getattr(self, name) < bound
        ]
        for name, bound in {"cache": 0, "timeout": 1, "patience": 0}.items():
            try:
                duration_ms(getattr(self, name), name, least=bound)
            except ValueError as error:
                wrong.append(str(error))
        return wrong


def shown_url(url: str) -> str:
    """Return an address without its password and query, for messages."""
    bare = url.partition("?")[0]
    scheme, mark, rest = bare.rpartition("://")
    login, at, place = rest.rpartition("@")
    user = login.partition(":")[0]
    return f"{scheme}{mark}{user}{at if user else ''}{place}"
