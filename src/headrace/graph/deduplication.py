"""Checks of what users give to ``deduplicate``."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.graph.arguments import Keys, attempt
from headrace.graph.durations import Duration, duration_ms


def checked_ids(wrong: list[str], columns: Sequence[object], keys: Keys) -> tuple[str, ...]:
    """Return the columns of an id: the key's, then the others."""
    ids = tuple(column for column in columns if isinstance(column, str))
    if len(ids) < len(columns):
        wrong.append(f"deduplicate takes names of columns; found {list(columns)}")
    if len(set(ids)) < len(ids):
        wrong.append(f"deduplicate names a column twice in {list(ids)}")
    if not keys:
        by = ", ".join(map(repr, ids)) or "..."
        wrong.append(f"deduplicate keeps ids for each key: put partition_by({by}) before it")
        return ids
    missing = [key for key in keys if ids and key not in ids]
    if missing:
        wrong.append(
            f"deduplicate by {list(ids)} in a stream that is partitioned by {list(keys)} would not "
            f"see copies under another key: partition by columns of the id, or add {missing} to it"
        )
    return (*keys, *(column for column in ids if column not in keys))


def checked_spans(
    wrong: list[str], within: Duration | None, ttl: Duration | None
) -> tuple[int | None, int | None]:
    """Return how long ids are kept: by event time, and in their store, ms."""
    within_ms = kept_ms = None
    if within is not None:
        within_ms = attempt(wrong, lambda: duration_ms(within, "within"), None)
    if ttl is not None:
        kept_ms = attempt(wrong, lambda: duration_ms(ttl, "ttl"), None)
    if within is not None and ttl is not None:
        wrong.append("within= counts event time and ttl= the wall clock: give one of them")
    return within_ms, kept_ms if within is None else within_ms
