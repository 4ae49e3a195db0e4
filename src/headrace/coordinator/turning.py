"""Does what a turn asks for, and tells it what came of that: the I/O around ``machines.turn``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from headrace.clock import Clock
from headrace.coordinator.committing import Committing
from headrace.coordinator.epoch import EpochRun, MisplacedError, Runner
from headrace.coordinator.levels import check_files, run_level
from headrace.coordinator.machines import turn as machine
from headrace.coordinator.machines.turn import MOST_TRIES, Event, Phase, Turn
from headrace.coordinator.reign import Reign
from headrace.coordinator.storage import JobStorage
from headrace.errors import HeadraceError, InternalError, UnavailableError
from headrace.faults import fault
from headrace.plan.semantics import commit_acts
from headrace.state.ownership import StoreHeldError
from headrace.task.asynchronous.loop import collecting_rarely


@dataclass
class Committed:
    """An epoch that was planned, and by the end of its turn is committed.

    Args:
        run: the epoch.
        began: of the monotonic clock, s.
        rows: that left the job.
        timings: how long each step took, ms.
    """

    run: EpochRun
    began: float
    rows: int = 0
    timings: dict[str, float] = field(default_factory=dict)


class Turning:
    """Takes the turns of one driver.

    Args:
        runner: of the slots.
        storage: of the job.
        reign: of the driver.
        committing: does the acts of commits.
        clock: for names, waiting, and how long each step takes.
        publish: brings out what the last manifest names, and returns the rows.
        plan: does what others asked for, and plans the next epoch.
        ask: asks the slots where they are, for they were found misplaced.
        sweep: removes what an epoch leaves over.
    """

    def __init__(  # noqa: PLR0913 - each is a part of its own, by name
        self,
        *,
        runner: Runner,
        storage: JobStorage,
        reign: Reign,
        committing: Committing,
        clock: Clock,
        publish: Callable[[], int],
        plan: Callable[[bool], tuple[EpochRun | None, float]],
        ask: Callable[[MisplacedError | None], None],
        sweep: Callable[[EpochRun], None],
    ) -> None:
        self._runner, self._storage, self._reign = runner, storage, reign
        self._committing, self._clock = committing, clock
        self._publish, self._plan, self._ask, self._sweep = publish, plan, ask, sweep
        self._force = False
        self._now: Committed | None = None
        self._misplaced: MisplacedError | None = None

    def take(self, *, force: bool) -> Committed | None:
        """Take a turn; ``None`` when there was nothing to do.

        Args:
            force: plan an epoch although nothing is due.

        Raises:
            HeadraceError: what the turn ended with; it can be taken again where the kind says so.
        """
        self._force, self._now = force, None
        turn = Turn(self._clock.monotonic())
        with collecting_rarely():  # what an epoch of many tasks is made of is no garbage
            while not turn.is_over:
                turn = self._step(turn)
        if turn.phase is Phase.DONE:
            return self._now
        if turn.phase is Phase.FAILED:
            if turn.error is None or isinstance(turn.error, MisplacedError):
                raise UnavailableError(
                    f"slots kept moving between hosts for {MOST_TRIES} tries",
                    epoch=self._reign.state.epoch,
                ) from turn.error
            raise turn.error
        return None

    def _step(self, turn: Turn) -> Turn:
        event: Event
        try:
            event = self._do(turn)
        except MisplacedError as error:
            self._misplaced = error
            event = machine.Misplaced(error)
        except StoreHeldError as error:
            event = machine.StoreHeld(error, self._clock.monotonic())
        except (HeadraceError, OSError) as error:
            event = machine.Failed(error)
        return turn.after(event)

    def _do(self, turn: Turn) -> Event:
        began = self._clock.monotonic()
        match turn.action:
            case machine.Publish():
                return self._bring_out(turn)
            case machine.Plan():
                return self._next()
            case machine.Run(level):
                return self._run(level, is_last=level == turn.levels - 1)
            case machine.Check(cause):
                if turn.phase is Phase.CLAIMING:
                    fault("commit.step_begins")
                self._reign.check(cause)
                self._timed("commit", began)
            case machine.Append(act, is_last):
                won = self._committing.append(self._epoch.run, act, is_last=is_last)
                self._timed("commit", began)
                if not won:
                    return machine.Lost()
                fault("commit.published")
                return machine.Won()
            case machine.Emit(act):
                fault("commit.step_begins")
                self._epoch.rows += self._committing.emit(self._epoch.run, act)
                self._timed("emit", began)
                self._act_done(turn)
            case machine.Sweep():
                self._sweep(self._epoch.run)
                self._timed("forget", began)
                fault("epoch.swept")
            case machine.Ask():
                self._ask(self._misplaced)
            case machine.Wait(seconds):
                self._clock.sleep(seconds)
            case machine.End():
                raise InternalError("a turn that is over has nothing to do")
            case other:
                assert_never(other)
        return machine.Done()

    @property
    def _epoch(self) -> Committed:
        if self._now is None:
            raise InternalError("a turn without an epoch")
        return self._now

    def _timed(self, what: str, began: float) -> None:
        if self._now is not None:
            took = (self._clock.monotonic() - began) * 1000
            timings = self._now.timings
            timings[what] = round(timings.get(what, 0.0) + took, 2)

    def _bring_out(self, turn: Turn) -> Event:
        began = self._clock.monotonic()
        rows = self._publish()
        if turn.phase is Phase.BEHIND:  # an epoch whose publishing failed, or that another won
            self._committing.emit_left()
        else:
            self._epoch.rows += rows
            self._timed("publish", began)
            self._act_done(turn)
        return machine.Done()

    def _act_done(self, turn: Turn) -> None:
        fault("commit.step_done")
        if turn.at == len(turn.acts) - 1:
            fault("epoch.published")

    def _next(self) -> Event:
        run, began = self._plan(self._force)
        if run is None:
            return machine.Nothing()
        self._now = Committed(run, began)
        self._timed("plan", began)
        fault("epoch.planned")
        return machine.Planned(len(run.plan.levels), tuple(commit_acts(run.plan)))

    def _run(self, level: int, *, is_last: bool) -> Event:
        began, run = self._clock.monotonic(), self._epoch.run
        run_level(run, level, self._runner, self._storage, self._reign, self._clock)
        self._timed(f"level {level}", began)
        fault("epoch.level_done")
        if is_last:
            fault("epoch.before_commit")
            check_files(run, self._storage)
        return machine.Done()
