"""What every bus must do when columns of a stream change, as tests; part of ``BusContract``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import BusOptions, Producer, Stream, StreamSpec
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.records.frame import encode_frame
from headrace.testing.bus_suite import BusSuite

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


def append(stream: Stream, schema: pa.Schema, *rows: dict[str, Any]) -> None:
    """Append rows in one of the schemas of the stream."""
    stream.append(0, pa.RecordBatch.from_pylist(list(rows), schema))


class EvolutionContract(BusSuite):
    """How a stream gets columns, and wider ones; a base of ``BusContract``."""

    @pytest.fixture
    def visits(self, tmp_path: Path) -> Iterator[Stream]:
        """Create a stream with two rows, in a bus of its own."""
        with self.open_bus(tmp_path / "evolving", BusOptions()) as bus:
            stream = bus.create(VISITS)
            append(stream, CREATED, visit(1), visit(2))
            yield stream

    def test_older_rows_have_the_default_of_an_added_column(self, visits: Stream) -> None:
        """Null where none was given; new rows have what they brought."""
        visits.evolve(WIDER)
        visits.evolve(WIDEST, {"score": 0.5})
        append(visits, WIDEST, visit(3, note="x", score=2.0))

        older = [visit(n, note=None, score=0.5) for n in (1, 2)]
        assert [*older, visit(3, note="x", score=2.0)] == read(visits)
        assert visits.spec.schema.equals(WIDEST)
        assert visits.spec.added == (("note", None), ("score", 0.5))

    def test_columns_are_read_alone_and_in_any_order(self, visits: Stream) -> None:
        """An added column alone, one that is older alone, and both."""
        visits.evolve(WIDEST, {"score": 0.5})
        append(visits, WIDEST, visit(3, score=2.0))

        assert [{"score": value} for value in (0.5, 0.5, 2.0)] == read(visits, ["score"])
        assert [{"name": f"u{n}"} for n in (1, 2, 3)] == read(visits, ["name"])
        assert read(visits, ["score", "user"])[2:] == [{"score": 2.0, "user": 3}]
        (found,) = visits.read(0, 1, 2, columns=["note", "n"])
        assert (found.first_offset, found.batch.to_pylist()) == (1, [{"note": None, "n": 2}])
        assert found.batch.schema.field("n").type == pa.int64()

    def test_a_wider_type_is_that_of_all_rows(self, visits: Stream) -> None:
        """Narrow rows may be appended still."""
        visits.evolve(WIDER)
        append(visits, WIDER, visit(3) | {"n": 2**40})
        append(visits, CREATED, visit(4))

        assert [row["n"] for row in read(visits)] == [1, 2, 2**40, 4]
        assert all(part.batch.schema.equals(WIDER) for part in visits.read(0, 0))

    def test_rows_may_leave_out_added_columns_only(self, visits: Stream) -> None:
        """Whoever appends as before goes on; nobody may leave out more than that."""
        visits.evolve(WIDEST, {"score": 0.5})
        append(visits, CREATED, visit(3))
        visits.append_rows(pa.RecordBatch.from_pylist([visit(4)], CREATED))

        assert visit(3, note=None, score=0.5) == read(visits)[2]
        assert sum(visits.ends()) == 4
        with pytest.raises(InvalidInputError, match=r"missing \['name'\]"):
            append(visits, CREATED.remove(3), visit(4))

    def test_files_of_an_older_schema_are_appended(self, visits: Stream, tmp_path: Path) -> None:
        """A job that was planned before goes on with its outputs; frames tell their schema."""
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
            append(stream, CREATED, visit(1))
            stream.evolve(WIDEST, {"score": 0.5})
            append(stream, WIDEST, visit(2))
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
