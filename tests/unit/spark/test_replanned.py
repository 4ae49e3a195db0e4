"""A batch that Spark plans again with other rows, after a loss of power: none of them is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.spark.source_options import StreamLocation
from headrace.spark.staging import BatchWriterId, Checkpoint, Committer, StagedPart, Stager

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


class Synced(Files):
    """A disk that knows what was made durable before what."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.done: list[str] = []

    def sync_system(self, folder: Path) -> None:
        self.done.append("synced")
        super().sync_system(folder)

    def publish(self, path: Path, *words: object, **how: object) -> bool:
        self.done.append("recorded")
        return super().publish(path, *words, **how)  # type: ignore[arg-type]


class Query:
    """A streaming query over a growing list of rows, with a checkpoint as Spark writes it."""

    def __init__(self, home: Path, *, is_visible: bool = True) -> None:
        self.place, self.files = StreamLocation(str(home), "events"), Synced()
        with self.place.open() as bus:
            bus.create(StreamSpec("events", 2, SCHEMA, key=("k",)))
        self.folder = home / "checkpoint"
        for name in ("offsets", "commits"):
            (self.folder / name).mkdir(parents=True)
        self.write = BatchWriterId(self.place, "query 1")
        self.checkpoint = Checkpoint(self.folder, self.files) if is_visible else None

    def plan(self, batch: int, end: int) -> None:
        """Write down, not durably, which offsets a batch has."""
        head = json.dumps({"batchTimestampMs": batch * 1000 + end})
        path = self.folder / "offsets" / str(batch)
        path.write_text(f'v1\n{head}\n{{"events":{end}}}')
        path.with_name(f".{batch}.crc").write_bytes(b"of other content")

    def staged(self, batch: int, keys: range) -> list[StagedPart]:
        rows = {"k": list(keys), "v": [str(key) for key in keys]}
        batches = [pa.RecordBatch.from_pydict(rows, SCHEMA)]
        return Stager(self.write, batch, 0, self.files).stage(batches)

    def run(self, batch: int, begin: int, end: int) -> int:
        """Append a batch as a driver does; its rows are the numbers between."""
        committer = Committer(self.write, self.files, checkpoint=self.checkpoint)
        if not committer.needs_rows(batch):
            return committer.commit(batch, None)
        return committer.commit(batch, self.staged(batch, range(begin, end)))

    def ends(self) -> int:
        """Where the batch ends that Spark runs when it is started again, and its number."""
        names = [int(p.name) for p in (self.folder / "offsets").iterdir() if p.name.isdigit()]
        entry = (self.folder / "offsets" / str(max(names))).read_text()
        return int(json.loads(entry.splitlines()[2])["events"])

    @property
    def rows(self) -> list[int]:
        with self.place.open() as bus:
            stream = bus.stream("events")
            read = [part.batch for p in range(2) for part in stream.read(p, 0)]
        return sorted(key for batch in read for key in batch.column("k").to_pylist())


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_what_is_recorded_depends_on_nothing_that_is_not_durable(query: Query) -> None:
    query.plan(0, 2)
    query.run(0, 0, 2)
    assert query.files.done[:2] == ["synced", "recorded"]


def test_a_batch_that_is_replayed_as_it_was_counts_once(query: Query) -> None:
    query.plan(0, 2)
    assert [query.run(0, 0, 2), query.run(0, 0, 2)] == [2, 0]
    query.plan(1, 3)
    assert query.run(1, 2, 3) == 1
    assert query.rows == [0, 1, 2]


@pytest.mark.parametrize("lost", [[3], [2, 3]])
def test_offsets_that_were_lost_are_put_back(query: Query, lost: list[int]) -> None:
    """With the power went what Spark had planned last; it plans the number again, with more."""
    for batch in range(4):
        query.plan(batch, 2 * batch + 2)
        query.run(batch, 2 * batch, 2 * batch + 2)
    for batch in lost:
        (query.folder / "offsets" / str(batch)).unlink()
        (query.folder / "offsets" / f".{batch}.crc").unlink()
    again = lost[0]
    query.plan(again, 12)
    with pytest.raises(UnavailableError, match="they were put back: start it again"):
        query.run(again, 2 * again, 12)
    assert query.rows == list(range(8))
    assert sorted(p.name for p in (query.folder / "offsets").iterdir() if p.name != "3")[-1] < "3"
    assert not (query.folder / "offsets" / ".3.crc").exists()
    assert query.ends() == 8
    assert query.run(3, 6, 8) == 0
    query.plan(4, 12)
    assert query.run(4, 8, 12) == 4
    assert query.rows == list(range(12))


def test_a_batch_that_was_not_all_appended_is_completed_first(query: Query) -> None:
    query.plan(0, 6)
    committer = Committer(query.write, query.files, checkpoint=query.checkpoint)
    parts = query.staged(0, range(6))
    assert len(parts) == 2
    append, calls = Committer._append, list[int]()

    def dying(self: Committer, *words: object) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt
        append(self, *words)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Committer, "_append", dying)
        with pytest.raises(KeyboardInterrupt):
            committer.commit(0, parts)
    query.plan(0, 9)
    with pytest.raises(UnavailableError, match="put back"):
        query.run(0, 0, 9)
    assert query.rows == list(range(6))


@pytest.mark.parametrize("again", [(0, 4), (0, 1), (1, 3)])
def test_without_a_checkpoint_other_rows_are_known_by_what_they_are(
    tmp_path: Path, again: tuple[int, int]
) -> None:
    query = Query(tmp_path, is_visible=False)
    assert query.run(0, 0, 2) == 2
    assert query.run(0, 0, 2) == 0
    with pytest.raises(InvalidInputError, match=r"no row of this one is appended\. Start"):
        query.run(0, *again)
    assert query.rows == [0, 1]
    assert query.run(1, 2, 3) == 1
    with pytest.raises(InvalidInputError, match=r"batch 1 of 'query 1' was appended"):
        query.run(0, 0, 3)
    assert query.rows == [0, 1, 2]


def test_a_record_of_before_says_nothing_of_rows(query: Query) -> None:
    """One that was written when only numbers counted."""
    query.write.folder.mkdir(parents=True)
    (query.write.folder / "000000000003-record.json").write_text('{"batch":3,"parts":[]}')
    query.plan(3, 9)
    assert query.run(3, 0, 9) == 0
    assert query.run(4, 9, 10) == 1


def test_a_write_that_is_repeated_under_its_name_has_as_many_rows(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.write = BatchWriterId(query.place, "write of monday")
    committer = Committer(query.write, query.files)
    assert committer.commit(0, query.staged(0, range(3))) == 3
    assert committer.commit(0, query.staged(0, range(3, 6))) == 0  # made anew, by the clock, say
    with pytest.raises(InvalidInputError, match=r"appended 3 rows .* give these another writeId"):
        committer.commit(0, query.staged(0, range(5)))
    assert query.rows == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "is_found"), [("{}", True), ("file:{}", True), ("file://{}", True), ("s3a:{}", False)]
)
def test_a_checkpoint_is_found_by_the_option_of_the_query(
    tmp_path: Path, given: str, is_found: bool
) -> None:
    option = {"checkpointLocation": given.format(tmp_path)}
    assert (Checkpoint.of(option, Files()) is not None) == is_found
    assert Checkpoint.of({}, Files()) is None
