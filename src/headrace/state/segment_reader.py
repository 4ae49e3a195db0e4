"""Read a segment file: all of a store, or the key groups that a task owns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files
from headrace.records.frame import Frame, iterate_frames, read_frame
from headrace.records.schema import schema_from_text
from headrace.state.columnar.filters import SCHEMA as FILTER_SCHEMA
from headrace.state.segment import (
    FORMAT,
    MAGIC,
    SCHEMA,
    SIZE,
    TRAILER,
    Footer,
    Section,
    SegmentHeader,
)

ALL_GROUPS = (0, 1 << 16)

_footer_decoder = msgspec.json.Decoder(Footer)


class SegmentReader:
    """A mapped segment; the footer is verified at once, sections when they are read.

    Args:
        files: the file system.
        path: of the file.
        checksum: what the manifest says, if it is at hand; then another file of the same
            name is found out too.

    Raises:
        CorruptDataError: the file is missing, cut or damaged, or not the one expected.
    """

    def __init__(self, files: Files, path: Path, checksum: int | None = None) -> None:
        self.path = path
        self._data = _map(files, path)
        self._footer = self._read_footer(checksum)
        self.bytes_read = 0
        self._known: dict[int, list[Frame]] = {}
        self._verified: dict[int, list[Frame]] = {}

    @property
    def header(self) -> SegmentHeader:
        """Whose state this is."""
        return self._footer.header

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in file order."""
        return self._footer.sections

    def section(self, stage: str, task: int, store: str) -> Section | None:
        """Return the section of one store of one task, ``None`` when it changed nothing."""
        wanted = (stage, task, store)
        return next((s for s in self.sections if (s.stage, s.task, s.store) == wanted), None)

    def read(
        self, store: str, groups: tuple[int, int] = ALL_GROUPS
    ) -> tuple[list[bytes], list[bytes | None]]:
        """Return the changes of a store in a range of key groups, whichever task wrote them.

        Args:
            store: its name, unique within the job.
            groups: first key group and the one after the last.

        Returns:
            Full keys, rising, and their values.
        """
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for some_keys, some_values in self.batches(store, groups):
            keys += some_keys
            values += some_values
        return keys, values

    def batches(
        self, store: str, groups: tuple[int, int] = ALL_GROUPS
    ) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """Yield what ``read`` returns, frame by frame, so that a snapshot is not held whole."""
        low, high = groups
        for section in self._of_entries(store):
            if section.first_group < high and section.last_group >= low:
                yield from self._section_batches(section, low, high)

    def task_batches(
        self, stage: str, task: int, store: str
    ) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """Yield the changes of one store of one task, frame by frame; none is fine."""
        section = self.section(stage, task, store)
        if section is not None:
            yield from self._section_batches(section, *ALL_GROUPS)

    def columns(
        self, store: str, groups: tuple[int, int] = ALL_GROUPS
    ) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        """Yield what ``read`` returns, frame by frame, as columns of the mapped file."""
        low, high = groups
        for section in self._of_entries(store):
            if section.first_group < high and section.last_group >= low:
                yield from self._section_columns(section, low, high)

    def keys(self, store: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.BinaryArray]:
        """Yield the full keys alone; values are neither read nor verified."""
        low, high = groups
        for section in self._of_entries(store):
            if section.first_group < high and section.last_group >= low:
                for batch in self._rows(section, low, high, columns=[1]):
                    yield batch.column(0)

    def _of_entries(self, store: str) -> list[Section]:
        found = [s for s in self.sections if s.store == store and s.table is None]
        return sorted(found, key=lambda s: s.first_group)

    def tables(self, store: str) -> list[Section]:
        """Return the sections of a store that is a table, of each task that wrote one."""
        return [s for s in self.sections if s.store == store and s.table is not None]

    def piece(self, section: Section, number: int) -> pa.RecordBatch:
        """Return one piece of a table's section without copying it, once it is verified.

        Raises:
            CorruptDataError: bytes of it are not as they were written.
        """
        assert section.table is not None
        frame = section.table.frame_of(number)
        return self._table_frame(section, frame, schema_from_text(section.table.schema))

    def filter_of(self, section: Section, number: int) -> pa.RecordBatch:
        """Return the filter of one piece, once it is verified.

        Raises:
            CorruptDataError: bytes of it are not as they were written.
        """
        assert section.table is not None
        return self._table_frame(section, section.table.frame_of(number) + 1, FILTER_SCHEMA)

    def _table_frame(self, section: Section, number: int, schema: pa.Schema) -> pa.RecordBatch:
        frames = self._verified.get(section.begin)
        if frames is None:
            frames = self._verified[section.begin] = self._frames(section)
        if number >= len(frames):
            raise self._damaged(f"store {section.store!r} has {len(frames)} frames")
        frame = frames[number]
        self.bytes_read += frame.end - frame.position
        origin = f"segment {self.path} of epoch {self.header.epoch}"
        try:
            return read_frame(self._data, frame, schema, origin)
        except CorruptDataError as error:
            raise CorruptDataError(
                error.message, file=str(self.path), epoch=self.header.epoch
            ) from error

    def _section_batches(
        self, section: Section, low: int, high: int
    ) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        for keys, values in self._section_columns(section, low, high):
            yield _to_list(keys), _to_list(values)

    def _section_columns(
        self, section: Section, low: int, high: int
    ) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        for batch in self._rows(section, low, high):
            yield batch.column(1), batch.column(2)

    def _rows(
        self, section: Section, low: int, high: int, columns: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some key groups, frame by frame, of all columns or some."""
        starts = [*section.starts, section.rows]
        begin = starts[bisect_left(section.groups, low)]
        end = starts[bisect_left(section.groups, high)]
        at = 0
        for frame in self._frames(section):
            first, last = max(begin - at, 0), min(end - at, frame.rows)
            if first < last:
                self.bytes_read += (frame.end - frame.position) * (last - first) // frame.rows
                batch = read_frame(self._data, frame, SCHEMA, str(self.path), columns)
                if batch.num_rows != frame.rows:
                    raise self._damaged(f"found {batch.num_rows} rows, expected {frame.rows}")
                yield batch.slice(first, last - first)
            at += frame.rows

    def _frames(self, section: Section) -> list[Frame]:
        known = self._known.get(section.begin)
        if known is not None:
            return known
        frames = list(iterate_frames(self._data, section.begin, section.end, str(self.path)))
        digest = xxh3_64()
        view = memoryview(self._data)
        for frame in frames:
            digest.update(view[frame.position : frame.body])
        is_whole = section.table is not None or sum(f.rows for f in frames) == section.rows
        if digest.intdigest() != section.digest or not is_whole:
            raise self._damaged(f"the frames of store {section.store!r} are not those written")
        self._known[section.begin] = frames
        return frames

    def verify(self) -> None:
        """Read every section, so that damage anywhere in the file is found.

        Raises:
            CorruptDataError: any byte is not as it was written.
        """
        for section in self.sections:
            if section.table is not None:
                for number, piece in enumerate(section.table.pieces):
                    self.piece(section, number)
                    if piece.has_filter:
                        self.filter_of(section, number)
                continue
            for _ in self._section_batches(section, *ALL_GROUPS):
                pass

    def _read_footer(self, checksum: int | None) -> Footer:
        view = memoryview(self._data)
        at = len(view) - TRAILER.size
        if at < 0:
            raise self._damaged("it is shorter than a trailer")
        size, found, magic = TRAILER.unpack_from(view, at)
        if magic != MAGIC or size > at:
            raise self._damaged("it does not end with a trailer; it was cut, or is no segment")
        if xxh3_64_intdigest(view[at - size : at + SIZE.size]) != found:
            raise self._damaged("its footer does not match its checksum")
        if checksum is not None and checksum != found:
            raise self._damaged(f"found checksum {found:016x}, the manifest says {checksum:016x}")
        try:
            text = bytes(view[at - size : at])
            form = msgspec.json.decode(text)["format"]
            if form != FORMAT:
                raise InvalidInputError(
                    f"segment {self.path}: found format {form}, this version reads {FORMAT}; "
                    "use a version that wrote it"
                )
            footer = _footer_decoder.decode(text)
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise self._damaged("its footer does not have the right form") from error
        cuts = [0, *(section.end for section in footer.sections)]
        if cuts[:-1] != [section.begin for section in footer.sections] or cuts[-1] != at - size:
            raise self._damaged("its sections do not fill it")
        return footer

    def _damaged(self, reason: str) -> CorruptDataError:
        return CorruptDataError(f"segment {self.path} is damaged: {reason}", file=str(self.path))


def _map(files: Files, path: Path) -> pa.Buffer:
    try:
        return files.map(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptDataError(
            f"segment {path} cannot be mapped: {error}", file=str(path)
        ) from error


def _to_list(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values
