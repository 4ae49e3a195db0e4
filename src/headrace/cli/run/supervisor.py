"""``headrace run --supervise``: a small parent that starts the driver again when it dies.

1. The same command, without ``--supervise``, runs in a child. 2. When that has ended, its exit code
or signal says whether the same would happen again: then the parent ends, too. 3. Else it waits, and
starts the child again; the waits double up to a bound, and begin small again after a child that ran
for a while. Signals are passed on to the child, which is in a process group of its own, so that
Ctrl-C in a terminal reaches it once. When the parent dies, its child stops: see ``supervised``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import typer

from headrace.cli.failures import (
    CORRUPT,
    INTERRUPTED,
    MISTAKE,
    NO_READER,
    NOT_OWNER,
    SET_ASIDE,
)
from headrace.cli.output import show_json
from headrace.cli.supervised import LINK, ChildReport
from headrace.clock import Clock
from headrace.config.sections import SuperviseSettings
from headrace.coordinator.bounded_runs import is_concluded
from headrace.coordinator.job_events import JobEvent, JobEventFile

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WRONG_USAGE = 2
_ASKED = "it was asked to stop"
_FINAL = {
    0: "it is done",
    MISTAKE: "the job, its settings or its data are invalid, and would be again",
    WRONG_USAGE: "the command is wrong, and would be again",
    NOT_OWNER: "another driver has the job; with --standby this one would wait for it",
    CORRUPT: "what it found damaged would be so again",
    SET_ASIDE: "it is done",
    INTERRUPTED: _ASKED,
    NO_READER: "nobody reads its output",
    128 + signal.SIGTERM: _ASKED,
    -signal.SIGINT: _ASKED,
    -signal.SIGTERM: _ASKED,
}
READ_S = 2.0
"""So long the parent reads what a child that has ended had said."""


@dataclass
class Backoff:
    """The waits between restarts, each twice the one before.

    Args:
        settings: the first and the longest wait, and when they start over.
    """

    settings: SuperviseSettings
    restarts: int = 0
    """In a row, since a child last ran for a while."""

    def next_s(self, ran_s: float) -> float | None:
        """Return how long to wait after a child that ran so long; ``None``: give up."""
        if ran_s >= self.settings.reset_after_s:
            self.restarts = 0
        most = self.settings.max_restarts
        if most and self.restarts >= most:
            return None
        doubled = self.settings.first_wait_s * 2.0 ** min(self.restarts, 60)
        self.restarts += 1
        return float(min(doubled, self.settings.max_wait_s))


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended.

    Args:
        process: its number.
        code: its exit code; below 0 the signal that killed it.
        ran_s: how long it ran.
        said: what it had come to.
    """

    process: int
    code: int
    ran_s: float
    said: ChildReport

    @property
    def signal(self) -> str:
        """The name of the signal that killed it; empty: none."""
        if self.code >= 0:
            return ""
        with suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"

    @property
    def exit_code(self) -> int:
        """What the supervisor ends with where this is the last child."""
        return self.code if self.code >= 0 else 128 - self.code

    def final(self, *, is_standby: bool) -> str:
        """Return why no other child follows; empty: one does."""
        if self.code == NOT_OWNER and is_standby:  # it stands by again
            return ""
        if (reason := _FINAL.get(self.code)) is not None:
            return reason
        said = self.said
        if said.bounded and is_concluded(Path(said.storage), said.lineage):
            return "its run had come to its end"
        return ""

    def __str__(self) -> str:
        """Return what happened, with what to look at."""
        how = f"was killed by {self.signal}" if self.signal else f"ended with code {self.code}"
        words = [f"the driver, process {self.process}, {how} after {self.ran_s:.0f} s"]
        if self.said.error:
            words.append(f"{self.said.code}: {self.said.error}")
        words += [f"{name}: {p}" for name, p in (("details", self.said.details),) if p]
        words += [f"log: {self.said.log}"] if self.said.log and Path(self.said.log).exists() else []
        return "; ".join(words)


@dataclass
class Supervisor:
    """Runs a command until it is done, or would fail the same again.

    Args:
        words: of the command; gets what the child before had come to.
        settings: how it is started again.
        clock: for durations.
        is_standby: a driver that lost the job waits for it again.
        report: called with what happened: in words, and as JSON.
    """

    words: Callable[[ChildReport], Sequence[str]]
    settings: SuperviseSettings
    clock: Clock
    report: Callable[[str, dict[str, Any]], None]
    is_standby: bool = False
    _asked: threading.Event = field(default_factory=threading.Event)
    _child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run it; returns the exit code. Call from the main thread."""
        backoff, said = Backoff(self.settings), ChildReport()
        with self._signals():
            while True:
                end = self._one(said)
                said = end.said
                reason = _ASKED if self._asked.is_set() else end.final(is_standby=self.is_standby)
                wait_s = None if reason else backoff.next_s(end.ran_s)
                if wait_s is None:
                    reason = reason or f"it was started again {backoff.restarts} times in a row"
                    if end.code and reason != _ASKED:
                        self._report(end, f"not started again: {reason}", None, backoff.restarts)
                    return 0 if end.code < 0 and "had come to its end" in reason else end.exit_code
                words = f"started again in {wait_s:g} s, the {_nth(backoff.restarts)} time in a row"
                self._report(end, words, wait_s, backoff.restarts)
                if self._asked.wait(wait_s):
                    return INTERRUPTED

    def _report(self, end: ChildEnd, next_: str, wait_s: float | None, restarts: int) -> None:
        words = f"{end}; {next_}"
        facts: dict[str, Any] = {
            "type": "supervisor",
            "process": end.process,
            "code": end.code if end.code >= 0 else None,
            "signal": end.signal or None,
            "error": {"code": end.said.code, "message": end.said.error} if end.said.error else None,
            "details": end.said.details or None,
            "log": end.said.log or None,
            "ran_s": round(end.ran_s, 1),
            "restarts": restarts,
            "wait_s": wait_s,
            "text": words,
        }
        self.report(words, facts)
        if end.said.storage:
            event = JobEvent(
                self.clock.now_ms(), "restart" if wait_s is not None else "failed", words
            )
            JobEventFile(Path(end.said.storage)).append(event)

    def _one(self, before: ChildReport) -> ChildEnd:
        own, other = socket.socketpair()
        began = self.clock.monotonic()
        with own:
            with other:
                command = [sys.executable, "-m", "headrace.cli.main", *self.words(before)]
                environment = {**os.environ, LINK: str(other.fileno())}
                self._child = process = subprocess.Popen(
                    command, env=environment, pass_fds=[other.fileno()], process_group=0
                )
            if self._asked.is_set():  # in between: it was not there to get the signal
                process.terminate()
            heard = _Heard(own, before)
            code = process.wait()
            heard.join(READ_S)
        ran_s = self.clock.monotonic() - began
        return ChildEnd(process.pid, code, ran_s, heard.said)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def pass_on(number: int, frame: FrameType | None) -> None:
            self._asked.set()
            if self._child is not None and self._child.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(self._child.pid, number)

        before = {number: signal.signal(number, pass_on) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Heard(threading.Thread):
    """Reads what a child says until it has ended."""

    def __init__(self, link: socket.socket, before: ChildReport) -> None:
        super().__init__(name="headrace-child", daemon=True)
        self._link = link
        # What a child has begun holds for those that follow; its error does not.
        self.said = msgspec.structs.replace(before, error="", code="", details="")
        self.start()

    def run(self) -> None:
        """Read lines; each adds to what is known."""
        with suppress(OSError), self._link.makefile("rb") as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):
                    new = msgspec.json.decode(line, type=ChildReport)
                    facts = {n: v for n, v in msgspec.structs.asdict(new).items() if v}
                    self.said = msgspec.structs.replace(self.said, **facts)


def _nth(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    is_teen = 10 < number % 100 < 20
    return f"{number}{'th' if is_teen else endings.get(number % 10, 'th')}"


ONCE = {"from_savepoint", "takeover"}
"""Options for the first driver alone: once it has begun, those after it continue."""


def words_of(context: typer.Context, *, has_begun: bool, is_restored: bool) -> list[str]:
    """Return the words of a command as it was given, without its supervisor.

    Args:
        context: of the command.
        has_begun: a driver has; the next one takes over from nobody.
        is_restored: a driver has begun from the savepoint.
    """
    left_out = {"supervise"}
    left_out |= {"takeover"} if has_begun else set()
    left_out |= {"from_savepoint"} if is_restored or has_begun else set()
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in left_out or value is None or value is False or value == ():
            continue
        name = parameter.opts[0]
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            options.append(name)
        elif isinstance(value, list | tuple):
            options += [word for one in value for word in (name, str(one))]
        else:
            options += [name, str(value)]
    return [*context.command_path.split()[1:], *options, "--", *arguments]


def supervise(
    context: typer.Context,
    settings: SuperviseSettings,
    clock: Clock,
    *,
    as_json: bool,
    is_standby: bool,
) -> int:
    """Run the command of a context in children; return the exit code.

    Args:
        context: of ``headrace run``.
        settings: how it is started again.
        clock: for durations.
        as_json: what happens is said as JSON on stdout, instead of a line on stderr.
        is_standby: a driver that lost the job waits for it again.
    """

    def report(words: str, facts: dict[str, Any]) -> None:
        if as_json:
            show_json(facts)
        else:
            typer.echo(words, err=True)

    def words(said: ChildReport) -> list[str]:
        return words_of(context, has_begun=bool(said.storage), is_restored=said.restored)

    return Supervisor(words, settings, clock, report, is_standby).run()
