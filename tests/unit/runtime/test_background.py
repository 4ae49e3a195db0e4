"""Work beside the epochs: never waited for, dropped without a trace, no thread left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.clock import Deadline, SystemClock
from headrace.runtime.background import Background, InlineBackground, ThreadBackground, WorkHandle

LIMIT_S = 30.0


@dataclass
class Job:
    """Waits until it is let go or told to stop."""

    let_go: threading.Event = field(default_factory=threading.Event)
    began: threading.Event = field(default_factory=threading.Event)
    forgotten: list[str] = field(default_factory=list)
    error: Exception | None = None
    nice: int = 0

    def run(self, should_stop: Callable[[], bool]) -> int:
        self.nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.began.set()
        while not self.let_go.wait(0.001):
            if should_stop():
                raise InterruptedError
        if self.error is not None:
            raise self.error
        return 7

    def forget(self) -> None:
        self.forgotten.append(threading.current_thread().name)


def wait(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, LIMIT_S)
    while not condition():
        assert not deadline.expired
        clock.sleep(0.001)


def submitted(background: Background, job: Job) -> WorkHandle[int]:
    ticket = background.submit(job)
    assert ticket is not None
    return ticket


@pytest.fixture
def background() -> object:
    made = ThreadBackground(most_waiting=2, nice=3)
    yield made
    made.close()


def test_work_is_done_beside_and_its_result_is_kept(background: ThreadBackground) -> None:
    job = Job()
    ticket = submitted(background, job)
    assert job.began.wait(LIMIT_S)
    assert not background.look(ticket)
    job.let_go.set()
    wait(lambda: background.look(ticket))
    assert (ticket.result, ticket.error, job.forgotten) == (7, None, [])
    assert job.nice == min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + 3)
    ticket.drop()
    ticket.drop()
    assert len(job.forgotten) == 1


def test_an_error_is_kept_for_whoever_looks(background: ThreadBackground) -> None:
    job = Job(error=OSError("full"))
    job.let_go.set()
    ticket = submitted(background, job)
    wait(lambda: background.look(ticket))
    assert isinstance(ticket.error, OSError)
    following = Job()
    following.let_go.set()
    after = submitted(background, following)
    wait(lambda: background.look(after))


def test_too_much_work_is_refused_and_never_waited_for(background: ThreadBackground) -> None:
    running = Job()
    submitted(background, running)
    assert running.began.wait(LIMIT_S)
    waiting = [Job(), Job()]
    tickets = [submitted(background, job) for job in waiting]
    assert background.submit(Job()) is None
    tickets[0].drop()
    assert waiting[0].forgotten == ["MainThread"]
    running.let_go.set()
    waiting[1].let_go.set()
    wait(lambda: background.look(tickets[1]))
    assert not waiting[0].began.is_set()


def test_closing_stops_what_runs_and_leaves_no_thread(background: ThreadBackground) -> None:
    running, waiting = Job(), Job()
    submitted(background, running)
    assert running.began.wait(LIMIT_S)
    submitted(background, waiting)
    background.close()
    assert running.forgotten == ["headrace-background"]
    assert waiting.forgotten == ["MainThread"]
    assert "headrace-background" not in {thread.name for thread in threading.enumerate()}
    again = Job()
    again.let_go.set()
    ticket = submitted(background, again)
    wait(lambda: background.look(ticket))


def test_the_thread_goes_when_there_is_nothing_to_do(background: ThreadBackground) -> None:
    job = Job()
    job.let_go.set()
    submitted(background, job)
    wait(lambda: "headrace-background" not in {t.name for t in threading.enumerate()})


FORK = """
import os, sys, threading
from headrace.runtime.background import ThreadBackground

class Job:
    def __init__(self): self.forgotten, self.begun = 0, threading.Event()
    def run(self, should_stop):
        self.begun.set()
        while not should_stop(): threading.Event().wait(0.001)
    def forget(self): self.forgotten += 1

background = ThreadBackground()
parents = Job()
ticket = background.submit(parents)
parents.begun.wait()
child = os.fork()
if not child:
    own = Job()
    background.close()          # the parent's work is left alone
    mine = background.submit(own)
    own.begun.wait()
    background.close()
    os._exit(0 if (parents.forgotten, own.forgotten) == (0, 1) else 1)
_, status = os.waitpid(child, 0)
assert status == 0 and parents.forgotten == 0
print("left at exit")
"""


def test_a_fork_begins_without_work_and_an_exit_waits_for_none() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "left at exit\n", "")


def test_inline_work_is_done_at_a_look_when_it_is_time() -> None:
    times = iter([False, True])
    background = InlineBackground(lambda: next(times))
    job = Job()
    job.let_go.set()
    ticket = background.submit(job)
    assert not job.began.is_set()
    assert not background.look(ticket)
    assert background.look(ticket)
    assert background.look(ticket)
    left = Job()
    background.submit(left)
    background.close()
    assert (len(left.forgotten), job.forgotten) == (1, [])
