"""Whether a run is being merged: until that is over, it is the run that is to be merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.errors import InvalidInputError
from headrace.files import Files


class Note(msgspec.Struct, frozen=True):
    """A merge that was begun, and what it goes by until its end.

    Args:
        run: the lineage of the run's first part.
        parts: in how many each output is merged, by operator.
        key: columns that were asked for; ``None``: nothing has been appended, or by an older
            version, which did not note it.
        by_function: a function chooses, not the rule that live rows win; ``None``: the same.
        is_applied: rows may be appended, or given to a sink; ``None``: by an older version.
    """

    run: str
    parts: dict[str, int]
    key: tuple[str, ...] | None = None
    by_function: bool | None = None
    is_applied: bool | None = None


@contextmanager
def merging(
    settings: Settings, job: str, note: Note, files: Files, clock: Clock
) -> Iterator[Callable[[Note], None]]:
    """Note that a run is merged by a block; who dies or fails in it leaves the note.

    The block gets what puts another note in its place. One that is refused before anything was
    applied takes the note back: nothing is to be completed.

    Args:
        settings: where the job is.
        job: whose run it is.
        note: of the merge.
        files: the file system.
        clock: for names.
    """
    path = _path(settings, job)
    path.parent.mkdir(parents=True, exist_ok=True)

    last = note

    def put(note: Note) -> None:
        nonlocal last
        last = note
        files.replace(path, msgspec.json.encode(note), clock.new_id())

    put(note)
    try:
        yield put
    except InvalidInputError:
        if last.is_applied is False:
            files.remove(path)
        raise
    files.remove(path)


def begun(settings: Settings, job: str, run: str) -> Note | None:
    """Return what is noted of the merge of a run that is not over.

    Raises:
        InvalidInputError: that of another run is not, so these results may be counted twice.
    """
    note = _note(settings, job)
    if note is None or note.run == run:
        return note
    if note.is_applied is not False:
        raise InvalidInputError(
            f"a merge of an earlier run of {job!r} was begun and never completed: some of its "
            "results are among the live ones, and those of this run may be the same; give both up: "
            f"headrace jobs delete {job} --outputs",
            job=job,
        )
    return None


def check_goes_on(note: Note, other: str, key: tuple[str, ...], *, by_function: bool) -> None:
    """Refuse to complete a merge by another rule than that of the parts that are merged.

    Args:
        note: of how it was begun.
        other: whose run is merged.
        key: columns that are asked for now.
        by_function: a function is to choose now.

    Raises:
        InvalidInputError: it was begun otherwise.
    """
    began = (
        key if note.key is None else note.key,
        by_function if note.by_function is None else note.by_function,
    )
    if began != (key, by_function):
        raise InvalidInputError(
            f"the merge of {other!r} was begun with {_words(*began)}, and is now asked for with "
            f"{_words(key, by_function)}; complete it by the command that began it, for what was "
            f"merged stays, or give up the rest: headrace jobs delete {other} --outputs",
            job=other,
        )


def _words(key: tuple[str, ...], by_function: bool) -> str:
    by = "a merge function (--by)" if by_function else "no merge function"
    columns = f"--key {','.join(key)}" if key else "no --key"
    return f"{by} and {columns}"


def is_noted(settings: Settings, job: str) -> bool:
    """Say whether a merge of a job's run was begun, and is not over, whatever run it was."""
    return bool(job) and _path(settings, job).exists()


def is_half_merged(settings: Settings, job: str, clock: Clock) -> bool:
    """Say whether a merge of the job's last run was begun, and is not over."""
    return _of_last_run(settings, job, clock) is not None


def check_merged(settings: Settings, job: str, clock: Clock) -> None:
    """Refuse another run of a job while the results of its last one are merged in part.

    Raises:
        InvalidInputError: they are; what is left of them would be lost, or counted twice.
    """
    note = _of_last_run(settings, job, clock)
    if note is not None and note.is_applied is not False:
        raise InvalidInputError(
            f"a merge of the last run of {job!r} was begun, and some of its results are among the "
            "live ones; complete it by the command that began it, or give up the rest before the "
            f"next run: headrace jobs delete {job} --outputs",
            job=job,
        )


def _of_last_run(settings: Settings, job: str, clock: Clock) -> Note | None:
    note = _note(settings, job)
    if note is None:
        return None
    lineages = {reader.state().lineage for reader in part_readers(settings, job, clock)}
    return note if note.run in lineages else None


def _note(settings: Settings, job: str) -> Note | None:
    try:
        data = _path(settings, job).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Note)
    except msgspec.DecodeError:  # of a version that merged each output in one part
        return Note(data.decode(errors="replace"), {})


def _path(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "merging"
