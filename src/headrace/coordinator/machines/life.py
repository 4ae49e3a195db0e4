"""The life of a driver: it starts, takes turns, is paused, and ends.

What others ask for is looked at between two turns, never in one. ``stop`` wins over all else;
a pause holds up turns, not requests, and not a job that has ended; the wish to finish is noted in
the manifest before the next turn, as often as it is there, and that is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.errors import InternalError


class Phase(StrEnum):
    """What a driver does."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ENDED = "ended"


class Action(StrEnum):
    """What is to be done now; its outcome goes to ``after``."""

    LOOK = "look"
    """Look at what others ask for."""
    SERVE = "serve"
    """Do what can be done between two turns, and wait for a moment."""
    END_INPUTS = "end inputs"
    """Note that the inputs end where they do now."""
    TURN = "turn"
    """Take a turn."""
    REST = "rest"
    """Wait until the next epoch may begin."""
    AWAIT = "await"
    """Wait until an input has grown or a timer is due."""
    RETURN = "return"
    """The driver is done."""


@dataclass(frozen=True)
class Begun:
    """The coordinator has started; the job may have ended long ago."""

    ended: bool = False


@dataclass(frozen=True)
class Wishes:
    """What others ask for."""

    stop: bool = False
    finish: bool = False
    paused: bool = False


@dataclass(frozen=True)
class Turned:
    """A turn is over: it committed an epoch or found nothing to do; the job may have ended."""

    committed: bool
    ended: bool


@dataclass(frozen=True)
class Done:
    """What was to be done is done."""


Event = Begun | Wishes | Turned | Done


@dataclass(frozen=True)
class Life:
    """A driver's life, as far as it has come.

    Args:
        phase: what it does.
        action: what is to be done now; nothing while it is starting.
        ended: the job has, for good.
    """

    phase: Phase = Phase.STARTING
    action: Action | None = None
    ended: bool = False

    def after(self, event: Event) -> Life:
        """Return the life after what came of its action.

        Raises:
            InternalError: that cannot come of it.
        """
        match self.action, event:
            case None, Begun(ended):
                return Life(Phase.RUNNING, Action.LOOK, ended)
            case Action.LOOK, Wishes():
                return self._asked(event)
            case Action.END_INPUTS, Done():
                return replace(self, action=Action.TURN)
            case Action.TURN, Turned(committed, ended):
                return self._turned(committed=committed, ended=ended)
            case ((Action.SERVE | Action.REST | Action.AWAIT), Done()):
                return replace(self, action=Action.LOOK)
        raise InternalError(f"a driver that is to {self.action} met {type(event).__name__}")

    def _asked(self, wishes: Wishes) -> Life:
        if wishes.stop:
            return replace(self, phase=Phase.STOPPED, action=Action.RETURN)
        if wishes.paused and not self.ended:
            return replace(self, phase=Phase.PAUSED, action=Action.SERVE)
        action = Action.END_INPUTS if wishes.finish and not self.ended else Action.TURN
        return replace(self, phase=Phase.RUNNING, action=action)

    def _turned(self, *, committed: bool, ended: bool) -> Life:
        if committed:  # the next turn brings out what this one could not
            return replace(self, action=Action.REST, ended=ended)
        if ended:
            return Life(Phase.ENDED, Action.RETURN, ended=True)
        return replace(self, action=Action.AWAIT)

    def validate(self) -> None:
        """Make sure that a life is one that can be.

        Raises:
            InternalError: it is not.
        """
        is_over = self.phase in {Phase.STOPPED, Phase.ENDED}
        wrong = {
            "an action before it has begun": (self.phase is Phase.STARTING)
            != (self.action is None),
            "no end": is_over != (self.action is Action.RETURN),
            "an end that is none": self.phase is Phase.ENDED and not self.ended,
            "turns while it is paused": self.phase is Phase.PAUSED
            and self.action not in {Action.SERVE, Action.LOOK},
            "a pause after the end": self.phase is Phase.PAUSED and self.ended,
        }
        if found := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise InternalError(f"a driver that is {self.phase} has {found[0]}: {self}")
