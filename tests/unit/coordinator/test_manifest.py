"""The job's state is the fold of its manifests; a base says the same as the deltas before it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.manifest import (
    FORMAT,
    InputPosition,
    JobState,
    Manifest,
    TaskChange,
    TaskState,
    decode_manifest,
    encode_manifest,
    fold,
    with_progress,
)
from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.runtime.orders import Merged, OutputPart, SegmentRef, TaskProgress

CREATED = JobState(
    "j", "line", 1, 0, 5, "", 8, {"job": "{}"}, {"in": {0: InputPosition(0)}}, task_counts={"s": 2}
)


def ref(name: str, epoch: int) -> SegmentRef:
    return SegmentRef(f"segment/{name}", 10, epoch, name, bytes=4, first_epoch=epoch)


def base(state: JobState, previous: str = "") -> Manifest:
    held = msgspec.structs.replace(state, digest="")
    own = (state.job, state.lineage, state.generation, state.epoch, state.time_ms)
    return Manifest(FORMAT, "base", *own, previous, base=held)


def delta(state: JobState, **more: Any) -> Manifest:
    return Manifest(
        FORMAT, "delta", "j", "line", 1, state.epoch + 1, state.time_ms + 1, state.digest, **more
    )


def advance(state: JobState | None, manifest: Manifest) -> JobState:
    """Fold what comes back from bytes, as a reader does."""
    data, digest = encode_manifest(manifest)
    found, same = decode_manifest(data, "of a test")
    assert (found, same) == (manifest, digest)
    return fold(state, found, same)


CHANGE = st.builds(
    TaskChange,
    segment=st.none() | st.just(ref("changed", 0)),
    merged=st.none() | st.just(Merged(ref("merged", 0), ("all",), snapshot=True)),
    state_bytes=st.integers(0, 99),
    event_deadline=st.none() | st.integers(0, 9),
    wall_deadline=st.none() | st.integers(0, 9),
    host=st.sampled_from(["a", "b"]),
)
EPOCH = st.fixed_dictionaries(
    {
        "inputs": st.dictionaries(
            st.sampled_from(["in", "other"]),
            st.dictionaries(
                st.integers(0, 2),
                st.builds(InputPosition, st.integers(0, 9), st.integers(0, 9)),
                max_size=2,
            ),
            max_size=2,
        ),
        "watermarks": st.dictionaries(st.sampled_from(["s", "t"]), st.integers(0, 9), max_size=2),
        "tasks": st.dictionaries(st.sampled_from(["s/0", "s/1"]), CHANGE, max_size=2),
        "counts": st.dictionaries(st.sampled_from(["in", "late"]), st.integers(0, 9), max_size=2),
        "outputs": st.lists(st.just(OutputPart("o", 0, "output/x", 0, 9, 1)), max_size=2).map(
            tuple
        ),
        "until": st.none() | st.just({"in": [7]}),
    }
)


def at_epoch(state: JobState, changes: dict[str, Any]) -> dict[str, Any]:
    """Give segments and merges the epochs and sources that a run would."""
    tasks = {}
    for name, change in changes["tasks"].items():
        held = state.tasks.get(name, TaskState())
        segment = change.segment and ref(f"{name}-{state.epoch + 1}", state.epoch + 1)
        merged = None
        if change.merged is not None and held.files:
            file = SegmentRef(f"snapshot/{name}-{held.epoch}", 9, held.epoch, held.attempt)
            merged = Merged(file, tuple(f.path for f in held.files), snapshot=True)
        tasks[name] = msgspec.structs.replace(change, segment=segment, merged=merged)
    return {**changes, "tasks": tasks}


@given(epochs=st.lists(EPOCH, max_size=6), bases=st.sets(st.integers(0, 6)))
def test_a_base_anywhere_changes_nothing(epochs: list[Any], bases: set[int]) -> None:
    """Folding deltas, and beginning at a base in between, give the same state."""
    plain = advance(None, base(CREATED))
    with_bases = plain
    for number, changes in enumerate(epochs):
        manifest = delta(plain, **at_epoch(plain, changes))
        plain = advance(plain, manifest)
        following = msgspec.structs.replace(manifest, previous=with_bases.digest)
        if number in bases:
            folded = fold(with_bases, following, "")
            with_bases = advance(None, base(folded, with_bases.digest))
        else:
            with_bases = advance(with_bases, following)
        same = msgspec.structs.replace(with_bases, digest=plain.digest)
        assert same == plain
    assert plain.task_counts == {"s": 2}


def test_a_task_keeps_each_field_of_its_progress() -> None:
    """One that is left out when a report becomes a change, or a change a state, would be lost."""
    wanted: dict[str, Any] = dict.fromkeys(TaskProgress.__struct_fields__, 7)
    for kind in (TaskChange, TaskState):
        kept = with_progress(kind(host="a"), TaskProgress(**wanted))
        assert kept == kind(host="a", **wanted)


@given(epochs=st.lists(EPOCH, max_size=8))
def test_segments_are_those_since_the_snapshot(epochs: list[Any]) -> None:
    """What a store is rebuilt from: the newest snapshot and every later segment, once, in order."""
    state = advance(None, base(CREATED))
    model: dict[str, tuple[int, list[int]]] = {}
    for changes in epochs:
        made = at_epoch(state, changes)
        for name, change in made["tasks"].items():
            stands, kept = model.get(name, (-1, []))
            if change.merged is not None:
                stands, kept = max([stands, *kept]), []
            if change.segment is not None:
                kept = [*kept, state.epoch + 1]
            model[name] = (stands, kept)
        state = advance(state, delta(state, **made))
        for name, (stands, kept) in model.items():
            task = state.tasks[name]
            assert [segment.epoch for segment in task.segments] == kept
            assert task.epoch == max([stands, *kept])
            assert not task.snapshots or task.snapshot_epoch == stands
            assert {s.path for s in task.files} <= state.files()
        assert {part.path for part in state.outputs} <= state.files()


@pytest.mark.parametrize(
    "change",
    [{"epoch": 3}, {"previous": "other"}, {"epoch": 1, "previous": ""}],
    ids=["gap", "other digest", "no digest"],
)
def test_a_manifest_that_does_not_follow_is_refused(change: dict[str, Any]) -> None:
    state = advance(None, base(CREATED))
    with pytest.raises(CorruptDataError, match="follows") as error:
        advance(state, msgspec.structs.replace(delta(state), **change))
    assert error.value.fields["epoch"] in (1, 3)


def test_a_delta_alone_has_nothing_to_follow() -> None:
    with pytest.raises(CorruptDataError, match="found nothing"):
        advance(None, delta(CREATED))


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_told_apart_from_damage(other: int) -> None:
    """Older and later ones, also when nothing else of them can be read."""
    data, _ = encode_manifest(msgspec.structs.replace(base(CREATED), format=other))
    line = data.splitlines()[0].replace(b'"lineage"', b'"unknown"')
    damaged = line + b"\n" + hashlib.blake2b(line, digest_size=16).hexdigest().encode() + b"\n"
    for found in (data, damaged):
        with pytest.raises(CorruptDataError, match=f"has format {other}, this version reads 2"):
            decode_manifest(found, "of a test")


def log_of(tmp_path: Any, kinds: str, rows: int = 1) -> tuple[FileCommitLog, list[JobState]]:
    """A log with one manifest for each letter: ``b``ase or ``d``elta."""
    log = FileCommitLog(tmp_path, Files(sync=False))
    states: list[JobState] = []
    for number, kind in enumerate(kinds):
        if number == 0:
            manifest = base(CREATED)
        else:
            manifest = delta(states[-1], counts={"in": rows})
            if kind == "b":
                folded = fold(states[-1], manifest, "")
                manifest = base(folded, states[-1].digest)
        data, digest = encode_manifest(manifest)
        assert log.publish(number, data)
        states.append(fold(states[-1] if states else None, manifest, digest))
    return log, states


@pytest.mark.parametrize("kinds", ["b", "bdd", "bddbd", "bdb"])
def test_history_is_read_back_at_every_epoch(tmp_path: Any, kinds: str) -> None:
    log, states = log_of(tmp_path, kinds)
    assert load_state(log) == states[-1]
    for epoch, state in enumerate(states):
        assert load_state(log, epoch) == state
    assert load_state(log, -1) is None


def test_history_before_a_base_may_be_pruned(tmp_path: Any) -> None:
    log, states = log_of(tmp_path, "bddbdd")
    log.prune(3)
    assert load_state(log) == states[-1]
    assert load_state(log, 3) == states[3]
    assert load_state(log, 2) is None
    log.prune(4)
    with pytest.raises(CorruptDataError, match="no base manifest between epochs 4 and 5"):
        load_state(log)


@pytest.mark.parametrize("kinds", ["bddd", "bdbd"])
def test_from_a_known_state_on_only_what_came_since_is_read(tmp_path: Any, kinds: str) -> None:
    log, states = log_of(tmp_path / "one", kinds)
    read = []

    class Reading(FileCommitLog):
        def read(self, epoch: int) -> bytes:
            read.append(epoch)
            return super().read(epoch)

    reading = Reading(tmp_path / "one", Files(sync=False))
    for epoch, state in enumerate(states):
        for known in states:
            assert load_state(reading, epoch, known) == state
    read.clear()
    assert load_state(reading, 3, states[3]) is states[3]
    assert load_state(reading, 3, states[2]) == states[3]
    assert min(read) >= 2
    _, others = log_of(tmp_path / "two", kinds, rows=2)
    assert load_state(log, 3, others[2]) == states[3], "it is of another history"


def test_a_missing_manifest_in_between_is_told(tmp_path: Any) -> None:
    log, _ = log_of(tmp_path, "bdddd")
    (tmp_path / "manifests" / f"{2:012d}.json").unlink()
    with pytest.raises(CorruptDataError, match="manifest of epoch 2 is missing"):
        load_state(log)


def test_a_manifest_of_another_history_is_told(tmp_path: Any) -> None:
    """One that is whole in itself, but does not follow the one before."""
    log, states = log_of(tmp_path / "one", "bddd")
    strange = delta(states[0], counts={"late": 9})
    path = tmp_path / "one" / "manifests" / f"{1:012d}.json"
    path.write_bytes(encode_manifest(strange)[0])
    with pytest.raises(CorruptDataError, match="manifest of epoch 2 follows"):
        load_state(log)


def test_no_manifest_is_no_job(tmp_path: Any) -> None:
    assert load_state(FileCommitLog(tmp_path, Files(sync=False))) is None
