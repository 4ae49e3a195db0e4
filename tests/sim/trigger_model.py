"""What windows with triggers must send, by brute force, and what a reader makes of results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tests.sim.window_model import Case, Record, marked, sessions
from tests.support.windows import Hopping, Session, Tumbling

import headrace as hr

Row = tuple[Any, ...]
Seen = tuple[int, Record]
"""A record, after the event time at which it counts."""

END = 1 << 60


def stats(values: Iterable[int]) -> Row:
    """The aggregates of a bag of values."""
    bag = tuple(sorted(values))
    return (len(bag), sum(bag), max(bag), bag)


def sent(rows: Iterable[dict[str, Any]]) -> list[Row]:
    """Results: key, bounds, aggregates, and whether it is a retraction."""

    def moment(value: Any) -> int:
        return round(value.timestamp() * 1000)

    return [
        (
            row.get("k", ""),
            moment(row["window_start"]),
            moment(row["window_end"]),
            *stats(row["bag"]),
            row.get("is_retraction", False),
        )
        for row in rows
    ]


def held(rows: Sequence[Row], updates: str, *, grow: bool = False) -> Counter[Row]:
    """What a reader holds in the end that follows the rule of ``updates``; sessions ``grow``."""
    kept: dict[Any, list[Row]] = defaultdict(list)
    for key, begin, end, *_, bag, is_retraction in rows:
        mine = kept[key]
        if is_retraction:
            assert updates == "retract"
            mine.remove((begin, end, bag))
            continue
        inside = [one for one in mine if one[:2] == (begin, end)]
        if grow:
            inside = [one for one in mine if begin <= one[0] and one[1] <= end]
        if updates == "retract":
            assert not inside
        for one in inside:
            mine.remove(one)
        values = sorted([*bag, *(v for one in inside for v in one[2])]) if updates == "add" else bag
        mine.append((begin, end, tuple(values)))
    return Counter(
        (key, begin, end, *stats(bag)) for key, mine in kept.items() for begin, end, bag in mine
    )


def expect_early(log: Sequence[Record], case: Case) -> Counter[Row]:
    """Every result that a log makes, where instants follow from event time."""
    window, results = case.window, Counter[Row]()
    timely: dict[Any, list[Seen]] = defaultdict(list)
    for record, watermark in marked(log, case.lateness):
        seen, key = max(record.at, watermark), record.key if case.keyed else ""
        if isinstance(window, Session):
            if record.at + window.grace_ms >= watermark:
                timely[key].append((seen, record))
            continue
        assert isinstance(window, Tumbling | Hopping)
        every = window.every_ms if isinstance(window, Hopping) else window.size_ms
        last = record.at // every * every
        for begin in range(last, record.at - window.size_ms, -every):
            end = begin + window.size_ms
            if end + window.grace_ms > watermark:
                timely[key, begin, end].append((seen, record))
    for head, records in timely.items():
        if isinstance(window, Session):
            instants = _session_instants(records, window)
            for now in sorted(set(instants)):
                _add_sessions(results, head, records, instants, now, window)
        else:
            key, begin, end = head
            instants = [at if at < end else END for at in _instants(records, window)]
            _add_window(results, (key, begin, end), records, instants, window.updates)
    return results


def _instants(records: Sequence[Seen], window: Any) -> list[int]:
    """When each record counts, ends of windows aside."""
    if window.early_ms:
        return [(seen // window.early_ms + 1) * window.early_ms for seen, _ in records]
    idle, times = window.early_idle_ms, sorted(seen for seen, _ in records)
    ends = []
    for seen, _ in records:
        last = seen
        for other in times:
            if last <= other < last + idle:
                last = other
        ends.append(last + idle)
    return ends


def _session_instants(records: Sequence[Seen], window: Session) -> list[int]:
    """The same, none later than when its session is out."""
    whole = sessions([record for _, record in records], window.gap_ms)
    found = []
    for (_, record), instant in zip(records, _instants(records, window), strict=True):
        end = next(end for begin, end, _ in whole if begin <= record.at < end)
        found.append(min(instant, end + window.grace_ms))
    return found


def _add_window(
    results: Counter[Row], head: Row, records: Sequence[Seen], instants: Sequence[int], updates: str
) -> None:
    so_far: list[int] = []
    for now in sorted(set(instants)):
        fresh = [r.value for (_, r), at in zip(records, instants, strict=True) if at == now]
        if updates == "retract" and so_far:
            results[*head, *stats(so_far), True] += 1
        so_far = [*so_far, *fresh]
        results[*head, *stats(fresh if updates == "add" else so_far), False] += 1


def _add_sessions(
    results: Counter[Row],
    key: Any,
    records: Sequence[Seen],
    instants: Sequence[int],
    now: int,
    window: Session,
) -> None:
    """Add what an instant changes: the sessions of all before it, and those with its records."""
    before = [r for (_, r), at in zip(records, instants, strict=True) if at < now]
    fresh = [r for (_, r), at in zip(records, instants, strict=True) if at == now]
    old = sessions(before, window.gap_ms)
    for begin, end, values in sessions([*before, *fresh], window.gap_ms):
        own = [record.value for record in fresh if begin <= record.at < end]
        if not own:
            continue
        for b, e, v in old:
            if window.updates == "retract" and begin <= b and e <= end:
                results[key, b, e, *stats(v), True] += 1
        results[key, begin, end, *stats(own if window.updates == "add" else values), False] += 1


def window_of(kind: str, **more: Any) -> Any:
    """Return a window of a kind."""
    kinds: dict[str, Any] = {
        "tumbling": lambda **m: hr.tumbling("20ms", **m),
        "hopping": lambda **m: hr.hopping("12ms", "4ms", **m),
        "hopping that does not divide": lambda **m: hr.hopping("10ms", "4ms", **m),
        "sliding": lambda **m: hr.sliding("10ms", **m),
        "session": lambda **m: hr.session("6ms", **m),
    }
    return kinds[kind](**more)
