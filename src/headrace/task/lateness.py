"""The watermark of one partition, record by record: a function of the log before it.

``FixedLateness`` stays a duration behind the highest event time. ``ConfidentLateness`` stays
behind by what the delays so far say, see docs/decisions/0011-time.md.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from headrace.graph.operators import Confidence
from headrace.plan.stages import InputBinding
from headrace.task.chunk import Ints
from headrace.task.orders import NO_WATERMARK, InputRange

STEP_ROWS = 1024
"""Records from one estimate to the next; the first ones come after 64, 128, 256 and 512."""

FIRST_ROWS = 64
HALVED_ROWS = 1 << 16
"""Records after which all counts are halved."""

_SUB = 16  # buckets of an octave


class Lateness(Protocol):
    """Follows one partition.

    ``max_time`` is the highest event time so far, ``watermark`` what the manifest keeps of it.
    """

    max_time: int
    watermark: int

    @property
    def delays(self) -> tuple[int, ...]:
        """What the manifest keeps of the delays."""
        ...

    def before(self, times: Ints) -> Ints:
        """Take the event times of the next records; return the watermark just before each."""
        ...


class FixedLateness:
    """A watermark that stays ``lateness_ms`` behind the highest event time."""

    delays: tuple[int, ...] = ()  # none are counted

    def __init__(self, lateness_ms: int, wanted: InputRange) -> None:
        self.max_time, self._lateness, self._floor = wanted.max_time, lateness_ms, wanted.floor
        self.watermark = NO_WATERMARK  # follows from the highest time

    def before(self, times: Ints) -> Ints:
        """Take the event times of the next records; return the watermark just before each."""
        highest = np.maximum.accumulate(np.concatenate([[self.max_time], times]))
        self.max_time = int(highest[-1])
        known = highest[:-1]
        marks = np.where(known == NO_WATERMARK, NO_WATERMARK, known - self._lateness)
        return np.maximum(marks, self._floor)


class ConfidentLateness:
    """A watermark that a part of the records are not behind.

    ``delays`` is how many records were seen, the lateness that holds since the last step, then
    pairs of a bucket and its count.
    """

    def __init__(self, confidence: Confidence, wanted: InputRange) -> None:
        self.max_time, self.watermark = wanted.max_time, wanted.watermark
        self._part, self._floor = confidence.part, wanted.floor
        self._seen, self.lateness_ms, *rest = wanted.delays or (0, confidence.first_ms)
        pairs = np.array(rest, np.int64).reshape(-1, 2)
        self._counts = np.zeros(int(pairs[:, 0].max(initial=-1)) + 1, np.int64)
        self._counts[pairs[:, 0]] = pairs[:, 1]

    @property
    def delays(self) -> tuple[int, ...]:
        """The counts so far."""
        buckets = np.flatnonzero(self._counts)
        pairs = np.stack([buckets, self._counts[buckets]], axis=1)
        return (self._seen, self.lateness_ms, *pairs.ravel().tolist())

    def before(self, times: Ints) -> Ints:
        """Take the event times of the next records; return the watermark just before each."""
        highest = np.maximum.accumulate(np.concatenate([[self.max_time], times]))
        self.max_time = int(highest[-1])
        known = highest[:-1]
        delays = np.where(known == NO_WATERMARK, 0, np.maximum(known - times, 0))
        buckets = buckets_of(delays)
        marks = np.empty(len(times), np.int64)
        begin = 0
        while begin < len(times):
            end = min(len(times), begin + _next_step(self._seen) - self._seen)
            # What stands after each record is the mark before the next one.
            after = np.maximum.accumulate(
                np.concatenate([[self.watermark], highest[begin + 1 : end + 1] - self.lateness_ms])
            )
            marks[begin:end], self.watermark = after[:-1], int(after[-1])
            self._count(buckets[begin:end])
            begin = end
        return np.maximum(marks, self._floor)

    def _count(self, buckets: Ints) -> None:
        found = np.bincount(buckets, minlength=len(self._counts))
        found[: len(self._counts)] += self._counts
        self._counts = found
        before, self._seen = self._seen, self._seen + len(buckets)
        if self._seen == _next_step(before):
            self.lateness_ms = self._estimate()
            if self._seen % HALVED_ROWS == 0:
                self._counts >>= 1

    def _estimate(self) -> int:
        """Return the least delay that the wanted part of the counts does not exceed."""
        upto = np.cumsum(self._counts)
        return bucket_end(int(np.searchsorted(upto, math.ceil(self._part * int(upto[-1])))))


def lateness_of(binding: InputBinding, wanted: InputRange) -> Lateness:
    """Return what follows a partition of an input from where a range begins."""
    if binding.confidence is None:
        return FixedLateness(binding.lateness_ms, wanted)
    return ConfidentLateness(binding.confidence, wanted)


def _next_step(seen: int) -> int:
    if seen < FIRST_ROWS:
        return FIRST_ROWS
    return 1 << seen.bit_length() if seen < STEP_ROWS else (seen // STEP_ROWS + 1) * STEP_ROWS


def buckets_of(delays: Ints) -> Ints:
    """Return the bucket of each delay, ms: exact below 16, then sixteenths of an octave."""
    exponents = np.frexp(delays.astype(np.float64))[1].astype(np.int64) - 1
    shift = np.maximum(exponents - 4, 0)
    return np.where(delays < _SUB, delays, shift * _SUB + (delays >> shift))


def bucket_end(bucket: int) -> int:
    """Return the highest delay of a bucket, ms."""
    if bucket < 2 * _SUB:
        return bucket
    shift, rest = divmod(bucket - _SUB, _SUB)
    return ((rest + _SUB + 1) << shift) - 1
