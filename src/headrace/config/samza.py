"""Samza's property names: those with a setting, and what replaces the others.

A file with Samza's names can be used as it is. Properties that belong into the code of a job
are refused, all at once, each with what to do instead.
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


class ReplacedProperty(NamedTuple):
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

REPLACED: tuple[ReplacedProperty, ...] = (
    ReplacedProperty("job.name", 'name the job in its code: @hr.job("name")'),
    ReplacedProperty("job.id", 'give a second run its own name: @hr.job("name-2")'),
    ReplacedProperty("app.class", "name the job on the command line: headrace run MODULE:JOB"),
    ReplacedProperty(
        "job.coordinator.factory",
        "leave it out; to share a job among processes without a cluster: headrace run MODULE:JOB "
        "--join",
    ),
    ReplacedProperty(
        "job.coordinator.zk.*", "leave it out: processes find each other by the job's folder"
    ),
    ReplacedProperty("app.name", 'name the job in its code: @hr.job("name")'),
    ReplacedProperty("task.class", "name the job on the command line: headrace run MODULE:JOB"),
    ReplacedProperty("task.inputs", 'read streams in the job\'s code: g.input("stream")'),
    ReplacedProperty(
        "task.window.ms", 'make windows in the job\'s code: .window(hr.tumbling("10s"))'
    ),
    ReplacedProperty("task.checkpoint.*", "leave it out: every epoch is a checkpoint"),
    ReplacedProperty("task.callback.timeout.ms", 'set it on the operator: callback_timeout="30s"'),
    ReplacedProperty("task.drop.*", 'set it on the operator: on_error="drop"'),
    ReplacedProperty("stores.*.rocksdb.ttl.ms", 'set it on the store: hr.store("name", ttl="1h")'),
    ReplacedProperty("stores.*.changelog", 'leave it out, or hr.store("name", changelog=False)'),
    ReplacedProperty("stores.*.factory", 'set it on the store: hr.store("name", kind="rocksdb")'),
    ReplacedProperty(
        "stores.*.object.cache.size", "set state.cache_bytes, which is for all stores"
    ),
    ReplacedProperty("stores.*.key.serde", "leave it out: keys have the types of their columns"),
    ReplacedProperty(
        "stores.*.msg.serde", 'declare the type of the store: hr.store("name", MyRecord)'
    ),
    ReplacedProperty("serializers.*", "leave it out: streams have columns with types"),
    ReplacedProperty(
        "systems.*.streams.*.samza.bootstrap",
        'set it on the input: g.input("stream", bootstrap=True)',
    ),
    ReplacedProperty(
        "systems.*.streams.*.samza.priority", 'set it on the input: g.input("stream", priority=1)'
    ),
    ReplacedProperty("systems.*", "leave it out: streams are on the bus below home"),
)


def setting_of(key: str) -> str | None:
    """Return the setting that a property of Samza means; ``None``: it is none of those."""
    alias = alias_of(key)
    return None if alias is None else alias.setting


def alias_of(key: str) -> Alias | None:
    """Return what a property of Samza means, and how its values are read."""
    return next((alias for alias in ALIASES if _fits(alias.property, key)), None)


def replacement_of(key: str) -> str | None:
    """Return what to do instead of a property; ``None``: it is none that is known."""
    return next((found.instead for found in REPLACED if _fits(found.property, key)), None)


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
