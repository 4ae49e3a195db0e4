"""What samples say of a job over time: cut into equal stretches, as a whole and in its parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.control.samples import Sample


@dataclass(frozen=True)
class Stretch:
    """What happened in one of the equal parts of the time that is shown."""

    begin_ms: int
    rows: int = 0
    seconds: float = 0.0
    epochs: int = 0
    busy_ms: float = 0.0
    lag: int = 0
    state_bytes: int = 0
    output_rows: int = 0


@dataclass(frozen=True)
class InputStretch:
    """What was read of an input in one part of the time, and the most that lay before it."""

    begin_ms: int
    rows: int = 0
    seconds: float = 0.0
    lag: int = 0


@dataclass(frozen=True)
class StageStretch:
    """How far a stage's watermark was behind the clock at most in one part of the time, ms."""

    begin_ms: int
    behind_ms: int | None = None


@dataclass
class InputPast:
    """One input: what was so at its last sample, and before."""

    name: str
    lag: int = 0
    stretches: list[InputStretch] = field(default_factory=list)


@dataclass
class StagePast:
    """One stage, in the same way."""

    name: str
    watermark_ms: int | None = None
    behind_ms: int | None = None
    stretches: list[StageStretch] = field(default_factory=list)


@dataclass
class Past:
    """All of it; only stretches in which a driver ran are there.

    ``left_out`` tells how many samples could not be read; ``live``, that a driver told it.
    """

    stretches: list[Stretch]
    inputs: list[InputPast]
    stages: list[StagePast]
    left_out: int = 0
    live: bool = False

    def told(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "live": self.live,
            "stretches": list(map(asdict, self.stretches)),
            "inputs": {one.name: list(map(asdict, one.stretches)) for one in self.inputs},
            "stages": {one.name: list(map(asdict, one.stretches)) for one in self.stages},
            "left_out": self.left_out,
        }


def past_of(samples: Iterable[Sample], begin_ms: int, end_ms: int, count: int) -> Past:
    """Cut the time into equal parts, and sum up those in which the job ran.

    What counts up is taken from sample to sample of one driver; a driver that begins anew counts
    from 0, and its rows go on from those of the job.
    """
    width = max(1, -(-(end_ms - begin_ms) // count))
    whole: dict[int, Stretch] = {}
    inputs: dict[str, InputPast] = {}
    stages: dict[str, StagePast] = {}
    before: Sample | None = None
    detailed: Sample | None = None
    for sample in samples:
        at_ms = min(sample.at_ms, end_ms - 1)  # what is of this very moment belongs to the last
        begin = begin_ms + (at_ms - begin_ms) // width * width
        whole[begin] = _more(whole.get(begin, Stretch(begin)), before, sample)
        before = sample
        if sample.inputs or sample.stages:
            _note_inputs(inputs, detailed, sample, begin)
            _note_stages(stages, sample, begin)
            detailed = sample
    return Past(
        [whole[begin] for begin in sorted(whole)],
        [inputs[name] for name in sorted(inputs)],
        [stages[name] for name in sorted(stages)],
    )


def _more(held: Stretch, before: Sample | None, sample: Sample) -> Stretch:
    held = replace(held, lag=max(held.lag, sample.lag), state_bytes=sample.state_bytes)
    if before is None or before.driver != sample.driver:
        return held
    return replace(
        held,
        rows=held.rows + sample.rows - before.rows,
        seconds=held.seconds + (sample.at_ms - before.at_ms) / 1000,
        epochs=held.epochs + sample.epochs - before.epochs,
        busy_ms=held.busy_ms + sample.busy_ms - before.busy_ms,
        output_rows=held.output_rows + sample.output_rows - before.output_rows,
    )


def _note_inputs(
    found: dict[str, InputPast], before: Sample | None, sample: Sample, begin: int
) -> None:
    for name, now in sample.inputs.items():
        past = found.setdefault(name, InputPast(name))
        past.lag = now.lag
        if not past.stretches or past.stretches[-1].begin_ms != begin:
            past.stretches.append(InputStretch(begin))
        held = past.stretches[-1]
        held = replace(held, lag=max(held.lag, now.lag))
        if before is not None and before.driver == sample.driver and name in before.inputs:
            held = replace(
                held,
                rows=held.rows + max(0, now.rows - before.inputs[name].rows),
                seconds=held.seconds + (sample.at_ms - before.at_ms) / 1000,
            )
        past.stretches[-1] = held


def _note_stages(found: dict[str, StagePast], sample: Sample, begin: int) -> None:
    for name, watermark in sample.stages.items():
        past = found.setdefault(name, StagePast(name))
        behind = None if watermark is None else sample.at_ms - watermark
        past.watermark_ms, past.behind_ms = watermark, behind
        if not past.stretches or past.stretches[-1].begin_ms != begin:
            past.stretches.append(StageStretch(begin))
        known = [ms for ms in (past.stretches[-1].behind_ms, behind) if ms is not None]
        past.stretches[-1] = StageStretch(begin, max(known, default=None))
