"""Tables follow what was committed: from files, from what the process wrote, whatever was lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError
from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.records.schema import TableLayout
from headrace.state.backend import ChainStep, Position, SegmentChain, Target
from headrace.state.columnar_table import TableChanges
from headrace.state.columns import TableKeys
from headrace.state.restore import RestoreCounts, TaskName
from headrace.state.run_merge import merge_runs, merged_schema
from headrace.state.segment import SegmentHeader, SegmentReader, open_runs
from headrace.state.segment_writer import SegmentWriter
from headrace.state.task_state import TaskState

FILES = Files(sync=False)
LAYOUT = TableLayout(pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
SPECS = [StoreSpec("t", "columnar", layout=LAYOUT), StoreSpec("kv", "memory", int)]
GROUPS = 4


class Ledger:
    """Committed epochs in a list, segments on disk."""

    def __init__(self, root: Path) -> None:
        self.root, self.line, self.shape = root, "line", 0
        self.snapshot: tuple[Position, Path] | None = None
        self.steps: list[ChainStep] = []
        self.winner: str | None = None
        self.asked = 0

    @property
    def target(self) -> Target:
        held = self.steps[-1].position if self.steps else Position(self.line, 0, "0")
        return Target(held, self.winner, self.shape)

    def write(self, name: str, changes) -> tuple[Path, int]:
        epoch = self.target.position.epoch + 1
        header = SegmentHeader("changelog", "job", self.line, 1, epoch, name)
        path = self.root / name
        writer = SegmentWriter(FILES, path, header)
        for store, own in changes.items():
            if isinstance(own, TableChanges):
                writer.add_table("s", 0, store, own.schema, own.batches, GROUPS)
            else:
                writer.add("s", 0, store, *own)
        return path, writer.close().checksum

    def commit(self, path: Path) -> None:
        position = Position(self.line, self.target.position.epoch + 1, path.name)
        self.steps.append(ChainStep(position, (path,)))
        self.winner = path.name

    def merge(self) -> None:
        """Put one file in the place of all."""
        files = [SegmentReader(FILES, path) for step in self.steps for path in step.paths]
        runs = [run for reader in files for run in open_runs(reader, "t", LAYOUT)]
        position = self.steps[-1].position
        path = self.root / f"merged-{position.epoch}"
        writer = SegmentWriter(
            FILES, path, SegmentHeader("snapshot", "job", position.lineage, 1, position.epoch, "m")
        )
        schema = merged_schema(runs, LAYOUT, drop_deleted=True)
        writer.add_table("s", 0, "t", schema, merge_runs(runs, LAYOUT, True), GROUPS)
        writer.close()
        self.snapshot = (position, path)
        self.shape += 1

    def chain(self, stage, task, groups, after) -> SegmentChain:
        self.asked += 1
        known = [step.position for step in self.steps]
        if after in known:
            return SegmentChain(after, (), tuple(self.steps[known.index(after) + 1 :]))
        if self.snapshot is None:
            return SegmentChain(None, (), tuple(self.steps))
        position, path = self.snapshot
        later = tuple(self.steps[known.index(position) + 1 :])
        return SegmentChain(position, (path,), later)


def opened(folder: Path, specs=SPECS) -> TaskState:
    return TaskState(TaskName("job", "s", 0, (0, GROUPS)), specs, folder, FILES)


def put(state: TaskState, ids, value: int) -> None:
    batch = pa.record_batch({"id": pa.array(ids, pa.int64())})
    keys = TableKeys.of(LAYOUT, batch)
    values = pa.record_batch({"n": pa.array([value] * len(keys), pa.int64())})
    state.table("t").put(keys, values)


def rows(state: TaskState) -> dict[int, int]:
    found = [row for batch in state.table("t").scan() for row in batch.to_pylist()]
    return {row["id"]: row["n"] for row in found}


def run_epoch(state: TaskState, ledger: Ledger, name: str, ids, value: int) -> RestoreCounts:
    stats = state.catch_up(ledger.target, ledger)
    state.begin(ledger.target.position.epoch + 1, name)
    put(state, ids, value)
    path, checksum = ledger.write(name, state.seal())
    state.written(path, checksum)
    ledger.commit(path)
    return stats


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    (tmp_path / "job").mkdir()
    return Ledger(tmp_path / "job")


def test_what_this_process_wrote_is_opened_without_asking(tmp_path: Path, ledger: Ledger) -> None:
    state = opened(tmp_path)
    run_epoch(state, ledger, "a", [1, 2], 1)
    assert ledger.asked == 2, "one for each kind of store"
    stats = run_epoch(state, ledger, "b", [2, 3], 2)
    assert (stats.from_memory, ledger.asked) == (True, 2)
    assert state.catch_up(ledger.target, ledger).from_memory
    assert rows(state) == {1: 1, 2: 2, 3: 2}
    assert state.catch_up(ledger.target, ledger) == RestoreCounts()
    assert (state.overlay_bytes, sum(state.store_bytes.values()) > 0) == (0, True)
    state.close()


def test_another_process_opens_the_files(tmp_path: Path, ledger: Ledger) -> None:
    state = opened(tmp_path)
    run_epoch(state, ledger, "a", [1, 2], 1)
    run_epoch(state, ledger, "b", [2, 3], 2)
    fresh = opened(tmp_path / "fresh")
    stats = fresh.catch_up(ledger.target, ledger)
    assert (stats.from_memory, len(stats.files)) == (False, 2)
    assert rows(fresh) == {1: 1, 2: 2, 3: 2}
    assert fresh.position == ledger.target.position


def test_changes_that_were_not_committed_are_forgotten(tmp_path: Path, ledger: Ledger) -> None:
    state, winner = opened(tmp_path), opened(tmp_path / "winner")
    run_epoch(state, ledger, "a", [1], 1)
    for each in (state, winner):
        each.catch_up(ledger.target, ledger)
        each.begin(2, "lost" if each is state else "won")
    put(state, [1, 5], 99)
    state.written(*ledger.write("lost", state.seal()))
    put(winner, [1, 2], 2)
    ledger.commit(ledger.write("won", winner.seal())[0])
    state.catch_up(ledger.target, ledger)
    assert rows(state) == {1: 2, 2: 2}
    state.begin(3, "c")
    put(state, [1], 50)
    state.catch_up(ledger.target, ledger)
    assert rows(state) == {1: 2, 2: 2}


def test_a_merge_shows_the_same_rows_from_other_files(tmp_path: Path, ledger: Ledger) -> None:
    state = opened(tmp_path)
    for epoch, name in enumerate("abc"):
        run_epoch(state, ledger, name, [epoch, 9], epoch)
    ledger.merge()
    state.catch_up(ledger.target, ledger)
    assert len(state.table("t").runs) == 1
    assert rows(state) == {0: 0, 1: 1, 2: 2, 9: 2}
    run_epoch(state, ledger, "d", [1], 7)
    ledger.merge()
    for path in ledger.root.glob("[abcd]"):
        path.unlink()
    state.catch_up(ledger.target, ledger)
    assert rows(state) == {0: 0, 1: 7, 2: 2, 9: 2}


def test_a_missing_or_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, ledger: Ledger
) -> None:
    state = opened(tmp_path)
    run_epoch(state, ledger, "a", [1], 1)
    data = (ledger.root / "a").read_bytes()
    (ledger.root / "a").unlink()
    specs = SPECS[:1]
    with pytest.raises(CorruptDataError, match="/a is missing"):
        opened(tmp_path / "one", specs).catch_up(ledger.target, ledger)
    (ledger.root / "a").write_bytes(data[:-1])
    with pytest.raises(CorruptDataError, match="/a is damaged"):
        opened(tmp_path / "two", specs).catch_up(ledger.target, ledger)


def test_a_table_ahead_of_what_is_asked_for_refuses(tmp_path: Path, ledger: Ledger) -> None:
    state = opened(tmp_path, SPECS[:1])
    run_epoch(state, ledger, "a", [1], 1)
    state.catch_up(ledger.target, ledger)
    with pytest.raises(NotOwnerError, match="at epoch 1, asked for 0"):
        state.catch_up(Target(Position("line", 0, "0")), ledger)


def test_a_table_needs_a_layout_and_a_changelog(tmp_path: Path) -> None:
    for spec in (
        StoreSpec("t", "columnar"),
        StoreSpec("t", "columnar", layout=LAYOUT, changelog=False),
    ):
        with pytest.raises(InvalidInputError, match="no layout or no changelog"):
            opened(tmp_path, [spec])
    state = opened(tmp_path)
    with pytest.raises(InvalidInputError, match="no table 'kv'"):
        state.table("kv")
    with pytest.raises(InvalidInputError, match="no store 't'"):
        state.store("t")


def test_a_merge_is_taken_up_although_nothing_else_was_committed(
    tmp_path: Path, ledger: Ledger
) -> None:
    state = opened(tmp_path, SPECS[:1])
    for name in "abc":
        run_epoch(state, ledger, name, [1, 2], 1)
    state.catch_up(ledger.target, ledger)
    before = len(state.table("t").runs)
    ledger.merge()
    state.catch_up(ledger.target, ledger)
    assert (before, len(state.table("t").runs)) == (3, 1)
    assert rows(state) == {1: 1, 2: 1}
    state.close()


def test_what_an_earlier_attempt_wrote_is_not_taken_for_a_later_one(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The attempt that wins changed only the other store."""
    state = opened(tmp_path)
    run_epoch(state, ledger, "a", [1], 1)
    state.catch_up(ledger.target, ledger)
    state.begin(2, "lost")
    put(state, [1], 9)
    state.written(*ledger.write("lost", state.seal()))
    state.catch_up(ledger.target, ledger)
    state.begin(2, "won")
    path, _ = ledger.write("won", state.seal())
    ledger.commit(path)
    state.catch_up(ledger.target, ledger)
    assert rows(state) == {1: 1}
    state.close()
