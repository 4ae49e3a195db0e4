"""Samza's property names: those that a setting stands for, and where the others are said.

A file with Samza's names in it can be given as it is; what Headrace says in the code of a job
is refused with the place, all of it at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


def _affinity(text: str) -> str:
    """Say Samza's switch in our words: a preferred host is asked for until the request expires."""
    return {"true": "strict", "false": "none"}.get(text.lower(), text)


def _seconds(text: str) -> str:
    return f"{int(text) / 1000:g}" if text.isdecimal() else text


class Alias(NamedTuple):
    """A property of Samza, ``*`` standing for any name, and the setting that it means.

    ``read`` says a value of the one as a value of the other, where they differ.
    """

    property: str
    setting: str
    read: Callable[[str], str] = str


class Elsewhere(NamedTuple):
    """A property of Samza that is no setting here, and what to do instead."""

    property: str
    instead: str


ALIASES: tuple[Alias, ...] = (
    Alias("job.container.count", "job.slots"),
    Alias("job.host-affinity.enabled", "placement.affinity", _affinity),
    Alias("cluster-manager.container.request.timeout.ms", "placement.wait_s", _seconds),
    Alias("job.hotstandby.enabled", "standby.enabled"),
    Alias("job.hotstandby.replicationcount", "standby.copies"),
    Alias("task.commit.ms", "epoch.interval_ms"),
    Alias("task.poll.interval.ms", "epoch.tick_ms"),
    Alias("task.max.concurrency", "job.max_concurrency"),
    Alias("job.container.thread.pool.size", "job.threads"),
    Alias("job.logged.store.base.dir", "state.dir"),
    Alias("job.non-logged.store.base.dir", "state.dir"),
    Alias("stores.*.container.cache.size.bytes", "state.block_cache_bytes"),
    Alias("stores.*.container.write.buffer.size.bytes", "state.write_buffer_bytes"),
)

ELSEWHERE: tuple[Elsewhere, ...] = (
    Elsewhere("job.name", 'name the job in its code: @hr.job("name")'),
    Elsewhere("job.id", 'give a second run a name of its own: @hr.job("name-2")'),
    Elsewhere("app.class", "name the job on the command line: headrace run MODULE:JOB"),
    Elsewhere(
        "job.coordinator.factory",
        "leave it out; processes share a job without a cluster by: headrace run MODULE:JOB --join",
    ),
    Elsewhere(
        "job.coordinator.zk.*", "leave it out: processes find each other by the job's folder"
    ),
    Elsewhere("app.name", 'name the job in its code: @hr.job("name")'),
    Elsewhere("task.class", "name the job on the command line: headrace run MODULE:JOB"),
    Elsewhere("task.inputs", 'read streams in the job\'s code: g.input("stream")'),
    Elsewhere("task.window.ms", 'make windows in the job\'s code: .window(hr.tumbling("10s"))'),
    Elsewhere("task.checkpoint.*", "leave it out: every epoch is a checkpoint"),
    Elsewhere("task.callback.timeout.ms", 'say it of the operator: callback_timeout="30s"'),
    Elsewhere("task.drop.*", 'say it of the operator: on_error="drop"'),
    Elsewhere("stores.*.rocksdb.ttl.ms", 'say it of the store: hr.store("name", ttl="1h")'),
    Elsewhere("stores.*.changelog", 'leave it out, or hr.store("name", changelog=False)'),
    Elsewhere("stores.*.factory", 'say it of the store: hr.store("name", kind="rocksdb")'),
    Elsewhere("stores.*.object.cache.size", "set state.cache_bytes, which is for all stores"),
    Elsewhere("stores.*.key.serde", "leave it out: keys have the types of their columns"),
    Elsewhere("stores.*.msg.serde", 'say the type of the store: hr.store("name", MyRecord)'),
    Elsewhere("serializers.*", "leave it out: streams have columns with types"),
    Elsewhere(
        "systems.*.streams.*.samza.bootstrap",
        'say it of the input: g.input("stream", bootstrap=True)',
    ),
    Elsewhere(
        "systems.*.streams.*.samza.priority", 'say it of the input: g.input("stream", priority=1)'
    ),
    Elsewhere("systems.*", "leave it out: streams are on the bus below home"),
)


def setting_of(key: str) -> str | None:
    """Return the setting that a property of Samza means; ``None``: it is none of those."""
    alias = alias_of(key)
    return None if alias is None else alias.setting


def alias_of(key: str) -> Alias | None:
    """Return what a property of Samza means, and how its values are read."""
    return next((alias for alias in ALIASES if _fits(alias.property, key)), None)


def place_of(key: str) -> str | None:
    """Return what to do instead of a property; ``None``: it is none that is known."""
    return next((found.instead for found in ELSEWHERE if _fits(found.property, key)), None)


def _fits(pattern: str, key: str) -> bool:
    head = pattern.removesuffix("*")
    text = re.escape(head).replace(r"\*", "[^.]+") + (".+" if head != pattern else "")
    return re.fullmatch(text, key) is not None


def read_properties(text: str) -> list[tuple[int, str, str]]:
    """Return line number, key and value of each property of a Java properties file."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip()
        if not plain or plain[0] in "#!":
            continue
        key, _, value = plain.partition("=")
        found.append((number, key.strip(), value.strip()))
    return found
