"""Reads the job's state back from its commit log."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.manifest import JobState, Manifest, decode_manifest, fold
from headrace.errors import CorruptDataError


def load_state(log: CommitLog, upto: int | None = None) -> JobState | None:
    """Return the state after the newest epoch, or after ``upto``; ``None``: no job yet.

    Raises:
        CorruptDataError: a manifest is damaged, missing, or does not follow the one before.
    """
    while True:
        epochs = [epoch for epoch in log.epochs() if upto is None or epoch <= upto]
        if not epochs:
            return None
        try:
            return _fold_all(log, epochs)
        except CorruptDataError:
            if log.epochs()[0] <= epochs[0]:
                raise
            # A driver pruned meanwhile what was about to be read.


def states(log: CommitLog, upto: int) -> Iterator[JobState]:
    """Yield the states after the epochs that can still be read, oldest first.

    Raises:
        CorruptDataError: a manifest is damaged, missing, or does not follow the one before.
    """
    state: JobState | None = None
    for epoch in log.epochs():
        if epoch > upto:
            return
        try:
            manifest, digest = decode_manifest(log.read(epoch), f"of epoch {epoch}")
        except CorruptDataError:
            if state is None and log.epochs()[0] > epoch:
                continue  # a driver pruned it meanwhile
            raise
        if state is not None or manifest.kind == "base":
            state = fold(state, manifest, digest)
            yield state


def newest_base(log: CommitLog, upto: int) -> int | None:
    """Return the newest epoch up to one whose manifest is a base; ``None``: there is none."""
    for epoch in reversed(log.epochs()):
        if epoch <= upto:
            manifest, _ = decode_manifest(log.read(epoch), f"of epoch {epoch}")
            if manifest.kind == "base":
                return epoch
    return None


def _fold_all(log: CommitLog, epochs: list[int]) -> JobState | None:
    chain: list[tuple[Manifest, str]] = []
    for epoch in range(epochs[-1], epochs[0] - 1, -1):
        manifest, digest = decode_manifest(log.read(epoch), f"of epoch {epoch}")
        chain.append((manifest, digest))
        if manifest.kind == "base":
            break
    else:
        raise CorruptDataError(
            f"no base manifest between epochs {epochs[0]} and {epochs[-1]}", epoch=epochs[-1]
        )
    state: JobState | None = None
    for manifest, digest in reversed(chain):
        state = fold(state, manifest, digest)
    return state
