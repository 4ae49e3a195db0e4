"""What a query that reads a job's results asks of the process that runs the job, by files.

The source of a query runs in a process of its own. It can ask whether all that there was for the
job has been taken in, which ``trigger(availableNow=True)`` means; and it looks whether the job has
failed, so that the query fails with it rather than to wait for ever.
"""

from __future__ import annotations

from pathlib import Path

from headrace.clock import Clock
from headrace.errors import UnavailableError
from headrace.files import Files

FAILED = "failed"
_ASKED, _ANSWERED = "asked-", "answered-"
POLL_S = 0.05


def check_running(folder: Path) -> None:
    """Fail with the job whose results are read.

    Raises:
        UnavailableError: it has failed.
    """
    path = folder / FAILED
    if path.exists():
        raise UnavailableError(f"{path.read_text()}; put that right, and call stateful again")


def wait_until_taken_in(folder: Path, files: Files, clock: Clock) -> None:
    """Return when the job has taken in what there was for it when this was called.

    Raises:
        UnavailableError: it has failed.
    """
    number = clock.new_id()
    files.replace(folder / f"{_ASKED}{number}", b"", clock.new_id())
    while not (folder / f"{_ANSWERED}{number}").exists():
        check_running(folder)
        clock.sleep(POLL_S)
    files.remove(folder / f"{_ASKED}{number}")
    files.remove(folder / f"{_ANSWERED}{number}")


def asked(files: Files, folder: Path) -> list[str]:
    """Return the numbers of questions that have no answer."""
    names = files.names(folder)
    numbers = [name.removeprefix(_ASKED) for name in names if name.startswith(_ASKED)]
    return [number for number in numbers if answer_name(number) not in names]


def answer_name(number: str) -> str:
    """Return the name of the file that answers a question."""
    return f"{_ANSWERED}{number}"
