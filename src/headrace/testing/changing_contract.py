"""What every bus must do when streams are changed, as tests; part of ``BusContract``."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bus import Appended, Bus, OffsetGoneError, Stream, StreamSettings, StreamSpec
from headrace.errors import ClosedError, InvalidInputError
from headrace.testing.bus_suite import ME, SCHEMA, SPEC, BusSuite, rows


class ChangingContract(BusSuite):
    """Trims, settings, numbers of partitions, aliases."""

    def test_a_trimmed_partition_begins_later(self, bus: Bus, tmp_path: Path) -> None:
        """Nothing from the offset on goes; who reads below is told what is kept."""
        stream = bus.create(SPEC)
        for first in (0, 3, 6):
            stream.append(0, rows(first, 3), producer=ME, sequence=first)
        (kept,) = stream.read(0, 0, 3)
        begin = stream.trim(0, 5)
        assert 0 <= begin <= 5
        assert [begin, 0] == stream.begins()
        assert [row["id"] for p in stream.read(0, 5) for row in p.batch.to_pylist()] == [5, 6, 7, 8]
        assert stream.trim(0, 9) == 9
        assert (stream.begins(), stream.ends()) == ([9, 0], [9, 0])
        assert None is stream.time_range(0)
        assert stream.offset_at(0, 0) == 9
        with pytest.raises(OffsetGoneError, match="offset 3 is gone, the oldest kept is 9") as gone:
            stream.read(0, 3)
        assert gone.value.fields == {"stream": "events", "partition": 0, "offset": 3, "begin": 9}
        assert rows(0, 3) == kept.batch
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            stream = again.stream("events")
            assert (stream.begins(), stream.ends()) == ([9, 0], [9, 0])
            assert Appended(9, 9, True) == stream.append(0, rows(9, 1), producer=ME, sequence=6)
            assert Appended(9, 11, False) == stream.append(0, rows(9, 2), producer=ME, sequence=9)
            assert [r["id"] for p in stream.read(0, 9) for r in p.batch.to_pylist()] == [9, 10]
            assert stream.offset_at(0, 0) == 9
            assert stream.time_range(0) == (1009, 1010)

    def test_a_trim_that_cannot_be_is_refused(self, stream: Stream) -> None:
        """Beyond the end there is nothing to drop."""
        stream.append(0, rows(0, 3))
        for wrong in (-1, 4):
            with pytest.raises(InvalidInputError, match=f"before offset {wrong}; expected 0 to 3"):
                stream.trim(0, wrong)
        assert stream.trim(0, 0) == stream.trim(0) == stream.trim(1, 0) == stream.trim(1) == 0

    def test_settings_of_a_stream_are_changed_for_good(self, bus: Bus, tmp_path: Path) -> None:
        """Each change keeps the other settings; what cannot be is refused."""
        stream = bus.create(SPEC)
        assert StreamSettings() == stream.settings
        assert StreamSettings(retain_ms=5) == stream.configure(retain_ms=5)
        both = StreamSettings(retain_ms=5, retain_bytes=7)
        assert both == stream.configure(retain_bytes=7) == stream.configure()
        with pytest.raises(InvalidInputError, match="retain_ms is 0; expected a whole number"):
            stream.configure(retain_ms=0)
        with pytest.raises(InvalidInputError, match=r"unknown stream settings \['keep'\]"):
            stream.configure(keep=3)
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert both == again.stream("events").settings
            assert StreamSettings() == again.stream("events").configure(
                retain_ms=None, retain_bytes=None
            )

    def test_partitions_are_added_and_rested(self, bus: Bus, tmp_path: Path) -> None:
        """New rows go to as many as the settings say, and all that there are can be read."""
        stream = bus.create(StreamSpec("plain", 2, SCHEMA))
        for number in range(4):
            stream.append_rows(rows(number, 1))
        assert stream.configure(partitions=4).partitions == stream.spec.partitions == 4
        assert (stream.ends(), stream.begins()) == ([2, 2, 0, 0], [0, 0, 0, 0])
        for number in range(4):
            stream.append_rows(rows(number, 1))
        assert stream.ends() == stream.wait([3, 3, 1], 0.0) == [3, 3, 1, 1]
        stream.configure(partitions=1)
        assert list(stream.append_rows(rows(9, 1))) == [0]
        assert stream.spec.partitions == 4
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            stream = again.stream("plain")
            assert stream.ends() == [4, 3, 1, 1]
            assert list(stream.append_rows(rows(9, 1))) == [0]
            for count in (1, 2, 4):
                same = StreamSpec("plain", count, SCHEMA)
                assert again.create(same, exist_ok=True).spec.partitions == 4
            with pytest.raises(InvalidInputError, match="another partitions: found 4, expected 3"):
                again.create(StreamSpec("plain", 3, SCHEMA), exist_ok=True)

    def test_a_repeated_append_goes_where_it_went(self, bus: Bus) -> None:
        """However many partitions there are by now."""
        stream = bus.create(StreamSpec("plain", 2, SCHEMA))
        for sequence in range(4):
            stream.append_rows(rows(sequence, 1), producer=ME, sequence=sequence)
        for count in (3, 1, 4):
            stream.configure(partitions=count)
            for sequence in range(4):
                answers = stream.append_rows(rows(sequence, 1), producer=ME, sequence=sequence)
                assert {p: a.duplicate for p, a in answers.items()} == {sequence % 2: True}
        assert list(stream.append_rows(rows(4, 1), producer=ME, sequence=7)) == [3]
        assert stream.ends() == [2, 2, 0, 1]

    def test_a_stream_with_a_key_keeps_its_partitions(self, stream: Stream) -> None:
        """Else rows of a key could be read in another order than they were appended."""
        with pytest.raises(InvalidInputError, match=r"its key \['id'\] in 2 partitions; with 3"):
            stream.configure(partitions=3)
        assert stream.configure(partitions=2, retain_ms=5).partitions == 2
        with pytest.raises(InvalidInputError, match="found 0 partitions, expected 1 to 65536"):
            stream.configure(partitions=0)

    def test_a_stream_is_removed_with_its_rows(self, bus: Bus, tmp_path: Path) -> None:
        """Another one of its name begins empty, and knows no producer; what was read stays."""
        first = bus.create(StreamSpec("events", 1, SCHEMA))
        first.append(0, rows(0, 3), producer=ME, sequence=5)
        (part,) = first.read(0, 0)
        bus.alias("now", "events")
        with pytest.raises(InvalidInputError, match="'events' is what alias 'now' stands for"):
            bus.remove("events")
        bus.unalias("now")
        bus.remove("events")
        assert bus.names() == []
        with pytest.raises(InvalidInputError, match="no stream 'events'"):
            bus.remove("events")
        with pytest.raises(ClosedError):
            first.append(0, rows(0, 1))
        again = bus.create(StreamSpec("events", 1, SCHEMA))
        assert again.ends() == [0]
        assert not again.append(0, rows(7, 1), producer=ME, sequence=5).duplicate
        assert part.batch.num_rows == 3
        with self.reopen(bus, tmp_path / "bus", self.options) as later:
            assert later.stream("events").ends() == [1]

    def test_an_alias_is_swapped_in_one_step(self, bus: Bus, tmp_path: Path) -> None:
        """Who opens it gets the stream that it stands for at that moment."""
        first, second = (bus.create(StreamSpec(name, 1, SCHEMA)) for name in ("v1", "v2"))
        assert None is bus.alias("now", "v1")
        held = bus.stream("now")
        held.append(0, rows(0, 1))
        assert bus.alias("now", "v2") == "v1"
        bus.stream("now").append(0, rows(1, 2))
        held.append(0, rows(3, 3))
        assert (first.ends(), second.ends()) == ([4], [2])
        assert bus.names() == ["v1", "v2"]
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert again.aliases() == {"now": "v2"}
            assert again.stream("now").spec.name == "v2"
            again.unalias("now")
            assert again.aliases() == {}
            with pytest.raises(InvalidInputError, match="no stream 'now'"):
                again.stream("now")

    def test_several_aliases_are_swapped_in_one_step(self, bus: Bus, tmp_path: Path) -> None:
        """All of them stand for other streams, or all for those of before."""
        for name in ("a1", "b1", "a2", "b2"):
            bus.create(StreamSpec(name, 1, SCHEMA))
        assert bus.swap({"a": "a1", "b": "b1"}) == {"a": None, "b": None}
        with pytest.raises(InvalidInputError, match="no stream 'b3'"):
            bus.swap({"a": "a2", "b": "b3"})
        assert bus.aliases() == {"a": "a1", "b": "b1"}
        assert bus.swap({"a": "a2", "b": "b2"}) == {"a": "a1", "b": "b1"}
        with self.reopen(bus, tmp_path / "bus", self.options) as again:
            assert again.aliases() == {"a": "a2", "b": "b2"}
            assert again.stream("b").spec.name == "b2"

    def test_an_alias_that_cannot_be_is_refused(self, bus: Bus) -> None:
        """A name is of a stream or an alias, and an alias stands for a stream."""
        bus.create(SPEC)
        bus.alias("now", "events")
        with pytest.raises(InvalidInputError, match="'now' is an alias of stream 'events'"):
            bus.create(StreamSpec("now", 1, SCHEMA))
        with pytest.raises(InvalidInputError, match="'events' is a stream and cannot be an alias"):
            bus.alias("events", "events")
        for wrong in ("now", "never"):
            with pytest.raises(InvalidInputError, match=f"no stream '{wrong}'"):
                bus.alias("later", wrong)
        with pytest.raises(InvalidInputError, match="cannot name a stream"):
            bus.alias("../now", "events")
        with pytest.raises(InvalidInputError, match=r"no alias 'later'; found \['now'\]"):
            bus.unalias("later")
        with pytest.raises(InvalidInputError, match="no stream 'no'; did you mean 'now'"):
            bus.stream("no")
