"""What every bus must do, as tests. Subclass ``BusContract`` and say how to open yours.

Here are fences, changes of columns and compaction; the rest is in ``bus_suite``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import (
    Appended,
    Bus,
    BusOptions,
    Fence,
    OffsetGoneError,
    Producer,
    Stream,
    StreamSpec,
)
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import injected
from headrace.files import Files
from headrace.records.frame import encode_frame
from headrace.testing.bus_suite import (
    ME,
    SCHEMA,
    SPEC,
    AppendingContract,
    BusSuite,
    ChangingContract,
    ReadingContract,
    everything,
    rows,
    write_frames,
)
from headrace.testing.script import ManualClock

OLD, NEW, OTHER = Fence("job", 1), Fence("job", 2), Fence("other@part", 1)
COMPACT = StreamSpec("prices", 1, SCHEMA, key=("id",), compact=True)
MORE = StreamSpec("more", 1, SCHEMA)
FENCED_WIDER = SCHEMA.append(pa.field("note", pa.string()))
FILE = "frames.seg"

ACTS: dict[str, Callable[[Bus, Path, Fence], object]] = {
    "append": lambda bus, path, fence: bus.stream("events").append(0, rows(0, 1), fence=fence),
    "rows": lambda bus, path, fence: bus.stream("events").append_rows(rows(0, 9), fence=fence),
    "file": lambda bus, path, fence: bus.stream("events").append_file(0, path, fence=fence),
    "trim": lambda bus, path, fence: bus.stream("events").trim(0, 1, fence=fence),
    "trim nothing": lambda bus, path, fence: bus.stream("events").trim(1, 0, fence=fence),
    "hold": lambda bus, path, fence: bus.stream("prices").hold("job", [1], fence=fence),
    "release": lambda bus, path, fence: bus.stream("prices").release("job", fence=fence),
    "set": lambda bus, path, fence: bus.stream("events").configure(retain_ms=5, fence=fence),
    "evolve": lambda bus, path, fence: bus.stream("events").evolve(FENCED_WIDER, fence=fence),
    "create": lambda bus, path, fence: bus.create(MORE, fence=fence),
    "create again": lambda bus, path, fence: bus.create(SPEC, exist_ok=True, fence=fence),
    "remove": lambda bus, path, fence: bus.remove("events", fence=fence),
}
"""Everything that can be done to streams for a job."""


def seen(bus: Bus) -> object:
    """Return what an act could have changed."""
    streams = [bus.stream(name) for name in bus.names()]
    return [(one.spec, one.settings, one.begins(), one.ends(), one.holds()) for one in streams]


class FencingContract(BusSuite):
    """Generations of jobs: the newest one that is known keeps all older ones out."""

    @pytest.fixture
    def frames(self, tmp_path: Path) -> Path:
        """Write a file of frames."""
        write_frames(tmp_path / FILE, [rows(0, 3)])
        return tmp_path / FILE

    @pytest.mark.parametrize("act", list(ACTS))
    def test_an_older_generation_changes_nothing(self, bus: Bus, frames: Path, act: str) -> None:
        """Whatever it asks is refused, however often; others may ask the same."""
        bus.create(SPEC).append(0, rows(0, 3), fence=OLD)
        bus.create(COMPACT).hold("job", [2], fence=OLD)
        bus.fence(NEW)
        before = seen(bus)
        for _ in range(2):
            with pytest.raises(
                NotOwnerError, match=r"\(generation 2\); this one, of generation 1, stops"
            ):
                ACTS[act](bus, frames, OLD)
        assert before == seen(bus)
        for fence in (OTHER, NEW):
            bus.stream("events").append(0, rows(3, 1), fence=fence)
        ACTS[act](bus, frames, NEW)

    def test_a_newer_generation_is_known_by_what_it_asks(self, bus: Bus, tmp_path: Path) -> None:
        """Although nobody announced it; so is the newest one after all is opened again."""
        stream = bus.create(SPEC)
        assert [bus.fenced("job"), bus.fenced("never")] == [0, 0]
        stream.append(0, rows(0, 1), fence=Fence("job", 7))
        bus.fence(Fence("job", 7))
        for older in (1, 6):
            with pytest.raises(NotOwnerError, match=r"by a newer driver \(generation 7\)"):
                bus.fence(Fence("job", older))
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert again.fenced("job") == 7
            with pytest.raises(NotOwnerError):
                again.stream("events").append(0, rows(1, 1), fence=Fence("job", 6))
            assert again.stream("events").append(0, rows(1, 1), fence=Fence("job", 30)).next_offset
            assert again.fenced("job") == 30

    def test_sequences_do_not_help_an_older_generation(self, bus: Bus) -> None:
        """Neither a lineage that is not known, nor a sequence that is above or is there."""
        stream = bus.create(SPEC)
        stream.append(0, rows(0, 1), producer=ME, sequence=1, fence=OLD)
        again = stream.append(0, rows(0, 1), producer=ME, sequence=1, fence=NEW)
        assert Appended(0, 1, True) == again
        for producer, sequence in ((ME, 1), (ME, 2), (Producer("job", "lineage-2"), 1)):
            with pytest.raises(NotOwnerError):
                stream.append(0, rows(1, 1), producer=producer, sequence=sequence, fence=OLD)
        assert stream.ends() == [1, 0]

    def test_a_stream_that_is_created_again_keeps_it_out(self, bus: Bus, frames: Path) -> None:
        """It knows no producer of before; the bus knows the generation."""
        bus.create(SPEC).append(0, rows(0, 3), producer=ME, sequence=5, fence=OLD)
        bus.fence(NEW)
        bus.remove("events", fence=NEW)
        for act in ("create again", "create", "remove"):
            with pytest.raises((NotOwnerError, InvalidInputError)):
                ACTS[act](bus, frames, OLD)
        bus.create(SPEC, fence=NEW)
        for act in ("append", "file", "trim nothing", "remove"):
            with pytest.raises(NotOwnerError):
                ACTS[act](bus, frames, OLD)
        assert bus.stream("events").ends() == [0, 0]

    def test_an_append_that_is_taken_over_half_way_comes_before(self, bus: Bus) -> None:
        """It had the partition when the newer generation came; the next one is refused."""
        stream = bus.create(SPEC)

        def take_over(point: str) -> None:
            if point == "bus.frame_written":
                bus.fence(NEW)

        with injected(take_over, ("bus.frame_written",)):
            stream.append(0, rows(0, 1), fence=OLD)
        with pytest.raises(NotOwnerError):
            stream.append(0, rows(1, 1), fence=OLD)
        assert stream.ends() == [1, 0]

    def test_what_is_no_generation_is_refused(self) -> None:
        """It would be a file elsewhere, or hold nobody back."""
        for job, generation in (("", 1), ("../job", 1), (".job", 1), ("a/b", 1), ("job", 0)):
            with pytest.raises(InvalidInputError, match="expected a name that begins"):
                Fence(job, generation)


CREATED = pa.schema(
    [("user", pa.int64()), ("at", pa.int64()), ("n", pa.int32()), ("name", pa.string())]
)
VISITS = StreamSpec("visits", 2, CREATED, "at", ("user",))
WIDER = CREATED.set(2, pa.field("n", pa.int64())).append(pa.field("note", pa.string()))
WIDEST = WIDER.append(pa.field("score", pa.float64()))


def visit(user: int, **more: Any) -> dict[str, Any]:
    """Return a row of the stream as it was created, and more."""
    return {"user": user, "at": 1000 + user, "n": user, "name": f"u{user}", **more}


def read(stream: Stream, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Return all rows of the first partition."""
    parts = stream.read(0, stream.begins()[0], columns=columns)
    return [row for part in parts for row in part.batch.to_pylist()]


def append_visits(stream: Stream, schema: pa.Schema, *rows: dict[str, Any]) -> None:
    """Append rows in one of the schemas of the stream."""
    stream.append(0, pa.RecordBatch.from_pylist(list(rows), schema))


class EvolutionContract(BusSuite):
    """How a stream gets columns, and wider ones; a base of ``BusContract``."""

    @pytest.fixture
    def visits(self, tmp_path: Path) -> Iterator[Stream]:
        """Create a stream with two rows, in a bus of its own."""
        with self.open_bus(tmp_path / "evolving", BusOptions()) as bus:
            stream = bus.create(VISITS)
            append_visits(stream, CREATED, visit(1), visit(2))
            yield stream

    def test_older_rows_have_the_default_of_an_added_column(self, visits: Stream) -> None:
        """Null where none was given; new rows have what they brought."""
        visits.evolve(WIDER)
        visits.evolve(WIDEST, {"score": 0.5})
        append_visits(visits, WIDEST, visit(3, note="x", score=2.0))

        older = [visit(n, note=None, score=0.5) for n in (1, 2)]
        assert [*older, visit(3, note="x", score=2.0)] == read(visits)
        assert visits.spec.schema.equals(WIDEST)
        assert visits.spec.added == (("note", None), ("score", 0.5))

    def test_columns_are_read_alone_and_in_any_order(self, visits: Stream) -> None:
        """An added column alone, one that is older alone, and both."""
        visits.evolve(WIDEST, {"score": 0.5})
        append_visits(visits, WIDEST, visit(3, score=2.0))

        assert [{"score": value} for value in (0.5, 0.5, 2.0)] == read(visits, ["score"])
        assert [{"name": f"u{n}"} for n in (1, 2, 3)] == read(visits, ["name"])
        assert read(visits, ["score", "user"])[2:] == [{"score": 2.0, "user": 3}]
        (found,) = visits.read(0, 1, 2, columns=["note", "n"])
        assert (found.first_offset, found.batch.to_pylist()) == (1, [{"note": None, "n": 2}])
        assert found.batch.schema.field("n").type == pa.int64()

    def test_a_wider_type_is_that_of_all_rows(self, visits: Stream) -> None:
        """Narrow rows may be appended still."""
        visits.evolve(WIDER)
        append_visits(visits, WIDER, visit(3) | {"n": 2**40})
        append_visits(visits, CREATED, visit(4))

        assert [row["n"] for row in read(visits)] == [1, 2, 2**40, 4]
        assert all(part.batch.schema.equals(WIDER) for part in visits.read(0, 0))

    def test_rows_may_leave_out_added_columns_only(self, visits: Stream) -> None:
        """One that appends as before continues; nobody may leave out more than that."""
        visits.evolve(WIDEST, {"score": 0.5})
        append_visits(visits, CREATED, visit(3))
        visits.append_rows(pa.RecordBatch.from_pylist([visit(4)], CREATED))

        assert visit(3, note=None, score=0.5) == read(visits)[2]
        assert sum(visits.ends()) == 4
        with pytest.raises(InvalidInputError, match=r"missing \['name'\]"):
            append_visits(visits, CREATED.remove(3), visit(4))

    def test_files_of_an_older_schema_are_appended(self, visits: Stream, tmp_path: Path) -> None:
        """A job that was planned before continues with its outputs; frames name their schema."""
        visits.evolve(WIDER, {"note": "-"})
        frames: list[Any] = []
        for version, schema in enumerate((CREATED, CREATED.set(2, WIDER.field("n")), WIDER)):
            rows = pa.RecordBatch.from_pylist([visit(3 + version, note="x")], schema)
            frames += encode_frame(rows, version)
        Files().write_new(tmp_path / "rows.seg", frames)
        visits.append_file(0, tmp_path / "rows.seg", producer=Producer("me", ""), sequence=1)

        assert [row["n"] for row in read(visits)[2:]] == [3, 4, 5]
        assert [row["note"] for row in read(visits)[2:]] == ["-", "-", "x"]
        assert visits.time_range(0) == (1001, 1005)
        assert visits.offset_at(0, 1004) == 3

    def test_what_was_changed_is_durable(self, tmp_path: Path) -> None:
        """A bus that knows only what is durable reads the same; older schemas may be named."""
        with self.open_bus(tmp_path / "bus", BusOptions()) as bus:
            stream = bus.create(VISITS)
            append_visits(stream, CREATED, visit(1))
            stream.evolve(WIDEST, {"score": 0.5})
            append_visits(stream, WIDEST, visit(2))
            before = read(stream)
            with self.reopen(bus, tmp_path / "bus", BusOptions()) as again:
                for schema in (CREATED, WIDEST):
                    spec = StreamSpec("visits", 2, schema, "at", ("user",))
                    assert again.create(spec, exist_ok=True).spec.schema.equals(WIDEST)
                assert before == read(again.stream("visits"))
                again.stream("visits").configure(retain_ms=None)
                assert again.stream("visits").spec.schema.equals(WIDEST)

    def test_the_same_again_changes_nothing(self, visits: Stream) -> None:
        """To evolve is idempotent, in any order of columns."""
        visits.evolve(WIDER)
        before = visits.settings
        visits.evolve(pa.schema(list(reversed(list(WIDER)))))
        assert visits.settings == before
        assert visits.spec.schema.equals(WIDER)

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            (CREATED.remove(3), r"column 'name' cannot be taken out: .*; keep it, or create an"),
            (CREATED.remove(0), "column 'user', its key, cannot be taken out"),
            (
                CREATED.remove(3).append(pa.field("full_name", pa.string())),
                "cannot be taken out .a column cannot be renamed to 'full_name' either",
            ),
            (
                CREATED.set(2, pa.field("n", pa.string())),
                r"column 'n' is int32 and cannot become string: .* headrace bus configure visits "
                '--add-column "n_2:string"',
            ),
            (CREATED.set(2, pa.field("n", pa.int16())), "is int32 and cannot become int16"),
            (CREATED.set(2, pa.field("n", pa.float32())), "is int32 and cannot become float32"),
            (
                CREATED.set(0, pa.field("user", pa.string())),
                "column 'user' is its key and stays int64; found string: create another stream",
            ),
            (
                CREATED.set(1, pa.field("at", pa.timestamp("us"))),
                "column 'at' is its event time and stays int64",
            ),
            (CREATED.append(pa.field("__x", pa.int8())), "begins with '__', .*; rename it"),
            (CREATED.append(pa.field("n", pa.int8())), r"columns \['n'\] appear more than once"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, visits: Stream, wanted: pa.Schema, message: str
    ) -> None:
        """The error says what to do instead, and nothing has changed."""
        with pytest.raises(InvalidInputError, match=message):
            visits.evolve(wanted)
        assert visits.spec.schema.equals(CREATED)

    def test_a_default_has_to_fit_its_column(self, visits: Stream) -> None:
        """Nothing is cut off or guessed, and only added columns have one."""
        for default in (300, "x", 1.5, [1], float("nan")):
            with pytest.raises(InvalidInputError, match=r"cannot have the default .*int8"):
                visits.evolve(CREATED.append(pa.field("q", pa.int8())), {"q": default})
        with pytest.raises(InvalidInputError, match=r"\['name'\] are not; leave them out"):
            visits.evolve(WIDER, {"name": "x"})
        at = pa.field("since", pa.timestamp("us", tz="UTC"))
        visits.evolve(CREATED.append(at), {"since": "2013-01-31T05:15:00Z"})
        assert read(visits)[0]["since"].isoformat() == "2013-01-31T05:15:00+00:00"


PRICES = StreamSpec("prices", 1, SCHEMA, "at", ("id",), compact=True)
ONE = Producer("one", "")
HOUR_MS = 3_600_000


def price(key: int | None, offset: int, name: str | None = "x") -> dict[str, Any]:
    """Return a row with an event time that shows its offset."""
    return {"id": key, "at": 1000 + offset, "name": name}


def append_prices(stream: Stream, *keys: int | None, name: str | None = "x", **how: Any) -> None:
    """Append a row of each key."""
    end = stream.ends()[0]
    rows = [price(key, end + number, name) for number, key in enumerate(keys)]
    stream.append(0, pa.RecordBatch.from_pylist(rows, SCHEMA), **how)


def offsets(stream: Stream, start: int = 0, stop: int | None = None, **how: Any) -> list[int]:
    """Return the offsets that there are, after checking that each row is at its own."""
    found: list[int] = []
    following = start
    for part in stream.read(0, start, stop, **how):
        assert part.first_offset == following
        following = part.next_offset
        times = part.batch.column("at").to_pylist()
        assert [at - 1000 for at in times] == part.offsets.tolist()
        found += part.offsets.tolist()
    if not how:
        assert following == (stream.ends()[0] if stop is None else stop)
    return found


class CompactionContract(BusSuite):
    """The latest row of each key, deletes, and what readers see meanwhile."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Make a clock that the tests move."""
        return ManualClock()

    @pytest.fixture
    def timed(self, tmp_path: Path, clock: ManualClock) -> Iterator[Bus]:
        """Open an empty bus with that clock."""
        with self.open_bus(tmp_path / "bus", self.options, clock) as bus:
            yield bus

    @pytest.fixture
    def prices(self, timed: Bus) -> Stream:
        """Create a compacted stream."""
        return timed.create(PRICES)

    def test_the_last_row_of_each_key_is_kept_at_its_offset(
        self, timed: Bus, prices: Stream, tmp_path: Path
    ) -> None:
        """Offsets do not move, and the end stays where it is."""
        append_prices(prices, 1, 2, 1, None)
        append_prices(prices, 3, None, 2)
        done = prices.compact(0)
        assert (done.upto, done.rows_before, done.rows) == (7, 7, 4)
        assert done.bytes == prices.stored()[0].bytes < done.bytes_before
        assert (prices.begins(), prices.ends(), prices.compacted()) == ([0], [7], [7])
        with self.reopen(timed, tmp_path / "bus", self.options) as again:
            stream = again.stream("prices")
            assert stream.spec == PRICES
            assert offsets(stream) == [2, 4, 5, 6]
            append_prices(stream, 1, 7)
            assert offsets(stream) == [2, 4, 5, 6, 7, 8]
            stream.compact(0)
            assert offsets(stream) == [4, 5, 6, 7, 8]
            assert [row["id"] for row in everything(stream)] == [3, None, 2, 1, 7]
            assert stream.stored()[0].rows == 5

    def test_any_range_reads_what_is_left_of_it(self, prices: Stream) -> None:
        """Batches cover the range without a gap, whatever is gone of it."""
        append_prices(prices, 1, 2, 1, 1, 3, 3)
        prices.compact(0)
        append_prices(prices, 2, 4)
        left = [1, 3, 5, 6, 7]
        for start in range(9):
            for stop in range(start, 9):
                assert [n for n in left if start <= n < stop] == offsets(prices, start, stop)
        for most in range(6):
            assert left[:most] == offsets(prices, max_rows=most)
        assert offsets(prices, max_bytes=1) == [1]
        (bare,) = prices.read(0, 2, 5, columns=[])
        assert (bare.offsets.tolist(), bare.next_offset) == ([3], 5)

    def test_what_was_read_in_part_goes_on_where_it_was(self, prices: Stream) -> None:
        """Bounded reads one after the other see each row once."""
        append_prices(prices, *range(40), *range(0, 40, 2))
        prices.compact(0)
        expected = [*range(1, 40, 2), *range(40, 60)]
        for how in ({"max_rows": 7}, {"max_bytes": 100}):
            at, seen = 0, []
            while at < 60:
                for part in prices.read(0, at, **how):  # type: ignore[arg-type]
                    seen += part.offsets.tolist()
                    at = part.next_offset
            assert expected == seen

    def test_a_reader_in_the_middle_sees_what_is_kept(self, prices: Stream) -> None:
        """What it has stays as it is; what it has not read yet may be compacted."""
        for _ in range(3):
            append_prices(prices, 1, 2)
        reading = prices.read(0, 0)
        first = next(reading)
        prices.compact(0)
        rest = [n for part in reading for n in part.offsets.tolist()]
        assert rest in ([2, 3, 4, 5], [4, 5])
        assert first.batch.column("id").to_pylist() == [1, 2]

    def test_a_delete_goes_after_its_time(self, clock: ManualClock, prices: Stream) -> None:
        """It hides its key at once, and readers see it for a while."""
        prices.configure(keep_deletes_ms=HOUR_MS)
        append_prices(prices, 1, 2)
        append_prices(prices, 1, name=None)
        clock.advance(2 * HOUR_MS)
        prices.compact(0)
        assert offsets(prices) == [1, 2]
        clock.advance(HOUR_MS - 1)
        append_prices(prices, 3)
        prices.compact(0)
        assert offsets(prices) == [1, 2, 3]
        clock.advance(1)
        prices.compact(0)
        assert offsets(prices) == [1, 3]
        append_prices(prices, 2, 3, name=None)
        prices.compact(0)
        clock.advance(HOUR_MS)
        done = prices.compact(0)
        assert (done.upto, done.rows) == (6, 0)
        assert (offsets(prices), prices.time_range(0), prices.stored()[0].rows) == ([], None, 0)
        append_prices(prices, 2)
        assert offsets(prices) == [6]
        prices.compact(0)
        assert offsets(prices) == [6]

    def test_without_values_no_row_deletes(self, timed: Bus, clock: ManualClock) -> None:
        """A stream of keys alone is a set; a column that is added does not change that."""
        keys = pa.schema([("id", pa.int64()), ("at", pa.int64())])
        stream = timed.create(StreamSpec("keys", 1, keys, "at", ("id",), compact=True))
        stream.configure(keep_deletes_ms=1)
        stream.append(0, pa.record_batch([[1, 2, 1], [1000, 1001, 1002]], schema=keys))
        stream.evolve(keys.append(pa.field("note", pa.string())))
        for _ in range(3):
            stream.compact(0)
            clock.advance(HOUR_MS)
        assert offsets(stream) == [1, 2]

    def test_added_columns_keep_their_defaults(self, clock: ManualClock, prices: Stream) -> None:
        """Also in rows that a compaction has written again; and deletes stay deletes."""
        prices.configure(keep_deletes_ms=HOUR_MS)
        append_prices(prices, 1, 2, 1)
        append_prices(prices, 2, name=None)
        prices.evolve(
            SCHEMA.append(pa.field("n", pa.int64())).append(pa.field("m", pa.int64())), {"n": 5}
        )
        for _ in range(2):
            prices.compact(0)
            assert [(row["id"], row["n"], row["m"]) for row in everything(prices)] == [
                (1, 5, None),
                (2, 5, None),
            ]
        clock.advance(HOUR_MS)
        prices.compact(0)
        assert offsets(prices) == [2]

    def test_nothing_goes_from_where_a_reader_holds_it(
        self, clock: ManualClock, prices: Stream
    ) -> None:
        """Until it moves on, releases it, or has been silent for long."""
        for _ in range(4):
            append_prices(prices, 1, 2)
        before = offsets(prices, 4)
        prices.hold("job", [4])
        prices.hold("other", [6])
        assert prices.compact(0).upto <= 4
        assert before == offsets(prices, 4)
        assert prices.holds() == {"job": (4,), "other": (6,)}
        prices.hold("job", [8])
        assert 4 <= prices.compact(0).upto <= 6
        prices.release("other")
        prices.release("nobody")
        assert (prices.compact(0).upto, offsets(prices)) == (8, [6, 7])
        append_prices(prices, 1, 2)
        append_prices(prices, 2)
        assert prices.compact(0).upto == 8
        clock.advance(8 * 24 * HOUR_MS)
        assert (prices.compact(0).upto, offsets(prices)) == (11, [8, 10])

    def test_young_rows_are_left(self, clock: ManualClock, prices: Stream) -> None:
        """Those that were appended within ``compact_after_ms``."""
        prices.configure(compact_after_ms=HOUR_MS)
        append_prices(prices, 1, 1)
        assert (prices.compact(0).upto, offsets(prices)) == (0, [0, 1])
        clock.advance(HOUR_MS)
        assert (prices.compact(0).upto, offsets(prices)) == (2, [1])

    def test_a_compacted_stream_is_trimmed_like_others(
        self, timed: Bus, prices: Stream, tmp_path: Path
    ) -> None:
        """Whole segments go, and what is left of compacted rows stays compacted."""
        for _ in range(3):
            append_prices(prices, 1, 2, 3)
        prices.compact(0)
        append_prices(prices, 1, 4)
        append_prices(prices, 5)
        begin = prices.trim(0, 11)
        assert begin in (9, 11)
        assert [n for n in (9, 10, 11) if n >= begin] == offsets(prices, begin)
        with pytest.raises(OffsetGoneError):
            prices.read(0, 8)
        prices.compact(0)
        with self.reopen(timed, tmp_path / "bus", self.options) as again:
            stream = again.stream("prices")
            assert (stream.begins(), stream.ends()) == ([begin], [12])
            assert [n for n in (9, 10, 11) if n >= begin] == offsets(stream, begin)

    def test_event_times_are_found_in_what_is_left(self, prices: Stream) -> None:
        """The first row at or after the time that is still there."""
        append_prices(prices, 1, 2, 1, 3, 2)
        prices.compact(0)
        append_prices(prices, 9)
        found = {time: prices.offset_at(0, time) for time in range(999, 1008)}
        assert found == {
            **dict.fromkeys(range(999, 1003), 2),
            1003: 3,
            1004: 4,
            1005: 5,
            1006: 6,
            1007: 6,
        }
        assert prices.time_range(0) == (1002, 1005)

    def test_a_time_before_all_is_found_where_nothing_is_left(
        self, clock: ManualClock, prices: Stream
    ) -> None:
        """Offsets of which no row is left have no time, not one before 1970."""
        prices.configure(keep_deletes_ms=1)
        append_prices(prices, 1, 1, name=None)
        for _ in range(2):
            prices.compact(0)
            clock.advance(10)
        assert offsets(prices) == []
        assert [prices.offset_at(0, time) for time in (-5, -1, 0)] == [2, 2, 2]
        append_prices(prices, 1)
        assert [prices.offset_at(0, time) for time in (-5, -1, 0, 1003)] == [2, 2, 2, 3]

    def test_sequences_are_known_when_their_rows_are_gone(
        self, timed: Bus, prices: Stream, tmp_path: Path
    ) -> None:
        """A repeated append is one also after a compaction."""
        append_prices(prices, 1, producer=ONE, sequence=1)
        append_prices(prices, 1, producer=ONE, sequence=2)
        prices.compact(0)
        with self.reopen(timed, tmp_path / "bus", self.options) as again:
            stream = again.stream("prices")
            for sequence in (1, 2):
                append_prices(stream, 1, producer=ONE, sequence=sequence)
            assert stream.ends() == [2]

    def test_what_cannot_be_compacted_is_refused(self, bus: Bus, stream: Stream) -> None:
        """A stream without a key, and one that was not made for it."""
        with pytest.raises(InvalidInputError, match="keeps the last record of each key, and has"):
            StreamSpec("keyless", 1, SCHEMA, compact=True)
        with pytest.raises(InvalidInputError, match="'events' is not compacted"):
            stream.compact(0)
        same = StreamSpec("events", 2, SCHEMA, "at", ("id",), compact=True)
        with pytest.raises(InvalidInputError, match="is not compacted, which it stays"):
            bus.create(same, exist_ok=True)
        assert stream.compacted() == [0, 0]
        stream.hold("job", [0, 0])
        assert stream.holds() == {}


class BusContract(
    AppendingContract,
    ReadingContract,
    ChangingContract,
    EvolutionContract,
    CompactionContract,
    FencingContract,
):
    """The contract of a bus; subclasses give ``open_bus`` and ``reopen``."""
