"""``headrace backfill --blocking``: a job reads old data again, scaled out until that is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from headrace.cli.running.scaling import Scaling
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.reprocessing.scaled_out import ScaledOut

Go = Callable[[Sequence[str], "Scaling | None"], None]
WAIT_S = 60.0


@dataclass(frozen=True)
class InPlace:
    """A backfill in the place of the live job: out, until it has caught up, and in again.

    Args:
        job: its name.
        begin: the time that it is to begin at.
        tasks: of each keyed stage until it has caught up; ``None``: as it has.
        out: settings until then, beside ``overrides``.
        executors: those of them that are of its Spark application.
        config: as of ``run``, like what follows.
        overrides: the same.
        as_json: the same.
        home: the same.
        rate: rows a second that it may read until then, which ``out`` sees to.
    """

    job: str
    begin: str
    tasks: int | None
    out: Sequence[str]
    executors: Sequence[str]
    config: Path | None
    overrides: Sequence[str]
    as_json: bool
    home: Path | None
    rate: int | None = None

    def run(self, go: Go) -> None:
        """Begin anew, or go on with what was broken off; then run on as the job was.

        Args:
            go: runs the job under further settings until it is stopped; ends with ``typer.Exit``
                where somebody did.
        """
        from headrace.cli.jobs.finding import tell_notice
        from headrace.cli.running.scaling import Scaling, end_application
        from headrace.clock import SystemClock
        from headrace.coordinator.reprocessing.scaled_out import let_go
        from headrace.files import Files

        clock = SystemClock()
        settings, note = self._begun(clock)
        scaling = Scaling(self.tasks, ends=True, rate=self.rate)
        try:
            go(self.out, scaling)
        except typer.Exit:
            if not scaling.has_caught_up:
                tell_notice(
                    f"{self.job} has not caught up: the same command goes on, and scales in then"
                )
            raise
        end_application(self.executors)
        self._scale_in(note, clock)
        let_go(settings, self.job, Files())
        tell_notice(f"{self.job} has caught up, and goes on as before")
        go((), None)

    def _begun(self, clock: Clock) -> tuple[Settings, ScaledOut]:
        from headrace.cli.jobs.changes import reset
        from headrace.cli.jobs.finding import refuse_driven, tell_notice
        from headrace.coordinator.reprocessing.scaled_out import held, hold, scaled_out
        from headrace.files import Files

        settings, _ = self._parts(clock)
        self._stop(settings, clock)
        refuse_driven(settings, self.job, clock)
        settings, parts = self._parts(clock)
        before, run = held(settings, self.job), parts[0].run
        if before is not None and (before.begin, before.run) == (self.begin, run):
            tell_notice(
                f"the backfill of {self.job} from {self.begin} was broken off, and goes on; to "
                f"begin anew: headrace jobs reset {self.job}"
            )
        else:
            words = list(self.overrides)
            reset(self.job, self.begin, None, self.config, words, self.as_json, self.home)
            run = self._parts(clock)[1][0].run
        note = scaled_out(self.begin, self.tasks, before, parts, run)
        hold(settings, self.job, note, Files(), clock)
        return settings, note

    def _stop(self, settings: Settings, clock: Clock) -> None:
        """End the driver of the live job, if one runs, after its epoch; not for a mistake."""
        from headrace.cli.jobs.stopping import stop
        from headrace.cli.running.starts import read_time
        from headrace.config.starts import EARLIEST, LATEST
        from headrace.coordinator.backup.places import newest_of
        from headrace.coordinator.drivers import driver_of

        if self.begin not in {EARLIEST, LATEST}:
            read_time(self.begin, "--from", "earliest, latest, or a time")
        storage, shared = newest_of(settings, self.job), settings.jobs_dir / self.job
        if driver_of(storage, shared, self.job, clock) is not None:
            stop(self.job, WAIT_S, False, None, self.as_json, settings.home)

    def _parts(self, clock: Clock) -> tuple[Settings, list[JobState]]:
        from headrace.cli.jobs.finding import find_job
        from headrace.coordinator.inspection.part_readers import other_parts

        found = find_job(self.job, self.home, self.config, list(self.overrides), clock)
        others = [one.state() for one in other_parts(found.settings, self.job, clock)]
        return found.settings, [found.state, *others]

    def _scale_in(self, note: ScaledOut, clock: Clock) -> None:
        """Give stages the tasks that they had, but for those that are as the code says again."""
        settings, parts = self._parts(clock)
        for part in parts:
            for stage, has in part.task_counts.items():
                fresh = has if self.tasks is None else settings.job.tasks
                wanted = note.counts.get(stage, fresh)
                is_cut = part.rescaled_at < 0 and stage in note.cut
                if wanted != has and not is_cut:
                    self._rescale(stage, has, wanted)

    def _rescale(self, stage: str, has: int, wanted: int) -> None:
        from headrace.cli.jobs.commands import rescale
        from headrace.cli.jobs.finding import tell_notice
        from headrace.errors import InvalidInputError

        words = list(self.overrides)
        try:
            rescale(
                self.job,
                wanted,
                stage,
                WAIT_S,
                config=self.config,
                overrides=words,
                as_json=self.as_json,
                home=self.home,
            )
        except InvalidInputError as error:
            tell_notice(
                f"stage {stage} keeps {has} tasks: {error.message}. Later: headrace jobs "
                f"rescale {self.job} --stage {stage} --tasks {wanted}"
            )
