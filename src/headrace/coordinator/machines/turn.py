"""One turn of a driver: from the last manifest to the next one, and its outputs.

1. What the last manifest names is brought out. 2. An epoch is planned. 3. Its levels run, one
after the other. 4. For each act of the commit: the generation is looked at, the manifest is
appended to the log, what it names is brought out; or output is emitted by itself. 5. What is left
over is swept.

What goes wrong leads back to 1, with nothing but what the manifests say. A store that another
process has open is waited for. Where a slot is misplaced, all are asked anew; so they are by
whoever lost the race for an epoch, for the winner may have placed tasks where this driver has
standbys open. An error ends the turn, once it is known that no newer driver caused it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.errors import InternalError, NotOwnerError
from headrace.graph.semantics import Act

MOST_TRIES = 20
HELD_WAIT_S = 0.5
HELD_S = 90.0  # Spark ends a Python worker that has been idle for a minute


class Phase(StrEnum):
    """Where a turn is."""

    BEHIND = "behind"
    """The outputs of the last manifest may not all be out."""
    CLEAR = "clear"
    """They are; the next epoch can be planned."""
    RUNNING = "running"
    """The level with the number ``at`` runs."""
    CLAIMING = "claiming"
    """Act ``at`` is a manifest; no newer generation may have begun."""
    APPENDING = "appending"
    """None had; the manifest is on its way to the log."""
    PUBLISHING = "publishing"
    """The manifest is in the log; what it names is on its way out."""
    EMITTING = "emitting"
    """Act ``at`` is output that no manifest names."""
    SWEEPING = "sweeping"
    """The epoch is committed and out."""
    OUTRUN = "outrun"
    """Another manifest was there; is its driver an older one, or a newer?"""
    UNPLACED = "unplaced"
    """Slots are not where they were."""
    HELD = "held"
    """A process that dies, or is idle, has a store open."""
    DOUBTED = "doubted"
    """Something failed; did a newer driver cause it?"""
    DONE = "done"
    IDLE = "idle"
    FAILED = "failed"


OVER = frozenset({Phase.DONE, Phase.IDLE, Phase.FAILED})


@dataclass(frozen=True)
class Publish:
    """Bring out what the last manifest names."""


@dataclass(frozen=True)
class Plan:
    """Do what others asked for, and plan the next epoch."""


@dataclass(frozen=True)
class Run:
    """Run a level."""

    level: int


@dataclass(frozen=True)
class Check:
    """Make sure that no newer generation has begun, which would explain ``cause``."""

    cause: Exception | None = None


@dataclass(frozen=True)
class Append:
    """Append the manifest of an act to the log, if no other is there."""

    act: Act
    is_last: bool


@dataclass(frozen=True)
class Emit:
    """Bring out what an act names without a manifest."""

    act: Act


@dataclass(frozen=True)
class Sweep:
    """Remove what nobody needs any more."""


@dataclass(frozen=True)
class Ask:
    """Ask all slots where they are; they let go of their stores."""


@dataclass(frozen=True)
class Wait:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True)
class End:
    """The turn is over; with the error, if it failed."""

    error: Exception | None = None


Action = Publish | Plan | Run | Check | Append | Emit | Sweep | Ask | Wait | End


@dataclass(frozen=True)
class Done:
    """What was to be done is done: published, run, emitted, swept, asked, waited."""


@dataclass(frozen=True)
class Planned:
    """There is an epoch to run: so many levels, and then these acts."""

    levels: int
    acts: tuple[Act, ...]


@dataclass(frozen=True)
class Nothing:
    """There is nothing to do."""


@dataclass(frozen=True)
class Won:
    """The manifest is in the log."""


@dataclass(frozen=True)
class Lost:
    """Another driver's was there."""


@dataclass(frozen=True)
class Misplaced:
    """A slot is not where it was."""

    error: Exception


@dataclass(frozen=True)
class StoreHeld:
    """A store is open in another process; ``now`` of the monotonic clock, s."""

    error: Exception
    now: float


@dataclass(frozen=True)
class Failed:
    """Anything else went wrong."""

    error: Exception


Event = Done | Planned | Nothing | Won | Lost | Misplaced | StoreHeld | Failed


@dataclass(frozen=True)
class Turn:
    """A turn of a driver, as far as it has come.

    Args:
        began: of the monotonic clock, s.
        phase: where it is.
        levels: of the epoch that is planned.
        acts: of its commit.
        at: number of the level that runs, or of the act that is done.
        tries: how often an epoch was planned anew.
        error: that the turn ends with, or ended.
    """

    began: float
    phase: Phase = Phase.BEHIND
    levels: int = 0
    acts: tuple[Act, ...] = ()
    at: int = 0
    tries: int = 0
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Say whether nothing is left to do."""
        return self.phase in OVER

    @property
    def action(self) -> Action:
        """What is to be done now; its outcome goes to ``after``."""
        match self.phase:
            case Phase.BEHIND | Phase.PUBLISHING:
                return Publish()
            case Phase.CLEAR:
                return Plan()
            case Phase.RUNNING:
                return Run(self.at)
            case Phase.CLAIMING | Phase.OUTRUN | Phase.DOUBTED:
                return Check(self.error)
            case Phase.APPENDING:
                return Append(self.acts[self.at], self.at == self._last_manifest)
            case Phase.EMITTING:
                return Emit(self.acts[self.at])
            case Phase.SWEEPING:
                return Sweep()
            case Phase.UNPLACED:
                return Ask()
            case Phase.HELD:
                return Wait(HELD_WAIT_S)
            case _:
                return End(self.error)

    @property
    def _last_manifest(self) -> int:
        return max(number for number, act in enumerate(self.acts) if act.saves)

    def after(self, event: Event) -> Turn:
        """Return the turn after what came of its action.

        Raises:
            InternalError: that cannot come of it.
        """
        match event:
            case Misplaced(error) if self.phase is Phase.RUNNING:
                return self._anew(Phase.UNPLACED, error)
            case StoreHeld(error, now) if self.phase is Phase.RUNNING:
                return self._held(error, now)
            case Failed(error) | Misplaced(error) | StoreHeld(error):
                return self._failed(error)
        found = self._succeeded(event)
        if found is None:
            raise InternalError(f"a turn that is {self.phase} met {type(event).__name__}")
        return found

    def _succeeded(self, event: Event) -> Turn | None:
        match self.phase, event:
            case Phase.BEHIND, Done():
                return replace(self, phase=Phase.CLEAR)
            case Phase.CLEAR, Nothing():
                return replace(self, phase=Phase.IDLE)
            case Phase.CLEAR, Planned(levels, acts):
                return replace(self, phase=Phase.RUNNING, levels=levels, acts=acts, at=0)
            case Phase.RUNNING, Done() if self.at + 1 < self.levels:
                return replace(self, at=self.at + 1)
            case Phase.RUNNING, Done():
                return self._act(0)
            case Phase.CLAIMING, Done():
                return replace(self, phase=Phase.APPENDING)
            case Phase.APPENDING, Won():
                return replace(self, phase=Phase.PUBLISHING)
            case Phase.APPENDING, Lost():
                return replace(self, phase=Phase.OUTRUN)
            case ((Phase.PUBLISHING | Phase.EMITTING), Done()):
                return self._act(self.at + 1)
            case Phase.OUTRUN, Done():
                return self._anew(Phase.UNPLACED)
            case ((Phase.UNPLACED | Phase.HELD), Done()):
                return replace(self, phase=Phase.BEHIND)
            case Phase.DOUBTED, Done():
                return replace(self, phase=Phase.FAILED)
            case Phase.SWEEPING, Done():
                return replace(self, phase=Phase.DONE)
        return None

    def _act(self, number: int) -> Turn:
        if number == len(self.acts):
            return replace(self, phase=Phase.SWEEPING)
        saves = bool(self.acts[number].saves)
        return replace(self, phase=Phase.CLAIMING if saves else Phase.EMITTING, at=number)

    def _anew(self, phase: Phase, error: Exception | None = None) -> Turn:
        """Go back to the manifest; nothing of the epoch counts."""
        if self.tries + 1 == MOST_TRIES:
            return replace(self, phase=Phase.FAILED, error=error)
        return replace(self, phase=phase, tries=self.tries + 1, levels=0, acts=(), at=0)

    def _held(self, error: Exception, now: float) -> Turn:
        if now - self.began >= HELD_S:
            return replace(self, phase=Phase.DOUBTED, error=error)
        return replace(self, phase=Phase.HELD, levels=0, acts=(), at=0)

    def _failed(self, error: Exception) -> Turn:
        """End with an error; what was found while another one was doubted explains that."""
        if self.phase is Phase.DOUBTED or isinstance(error, NotOwnerError):
            return replace(self, phase=Phase.FAILED, error=error)
        return replace(self, phase=Phase.DOUBTED, error=error)

    def validate(self) -> None:
        """Make sure that a turn is one that can be.

        Raises:
            InternalError: it is not.
        """
        in_acts = self.phase in {
            Phase.CLAIMING,
            Phase.APPENDING,
            Phase.PUBLISHING,
            Phase.EMITTING,
            Phase.OUTRUN,
        }
        wrong = {
            "a level that is not": self.phase is Phase.RUNNING and not self.at < self.levels,
            "an act that is not": in_acts and not self.at < len(self.acts),
            "a manifest of nothing": self.phase in {Phase.CLAIMING, Phase.APPENDING}
            and not self.acts[self.at].saves,
            "too many tries": self.tries >= MOST_TRIES,
            "no error": self.phase is Phase.DOUBTED and self.error is None,
            "an epoch before it is planned": self.phase in {Phase.BEHIND, Phase.UNPLACED}
            and bool(self.acts or self.levels),
        }
        if found := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise InternalError(f"a turn that is {self.phase} has {found[0]}: {self}")
