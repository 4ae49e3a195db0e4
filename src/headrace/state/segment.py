"""The form of a segment, and its reader: what one slot attempt changed in one epoch, or a snapshot.

One file serves all tasks of a slot, so an epoch costs one fsync. It is a row of sections, one for
each (stage, task, store), each a row of frames (``records.frame``): either of the columns
``group``, ``key``, ``value`` (null deletes), sorted by key group, then key; or of a table's own
columns, sorted by cluster, then hash. Then come a JSON footer and a trailer of 20 bytes: the
footer's size, its xxh3 checksum, and ``HRSEG01``. The footer holds a digest over the frame headers
of each section, and these hold the checksums of their columns: so the trailer's checksum, kept in
the manifest, stands for every byte, though a reader verifies only what it reads. ``segment_writer``
writes; ``SegmentReader`` reads some key groups or all; ``open_runs`` maps a table's runs.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.errors import CorruptDataError, InternalError, InvalidInputError
from headrace.files import Files
from headrace.records.frame import Frame, iterate_frames, read_frame
from headrace.records.schema import CLUSTER, TableLayout, schema_from_text, schema_to_text
from headrace.records.xxh64 import UInt64s
from headrace.state.columns import ALL_HASHES, hash_range, numbers
from headrace.state.sorted_run import (
    LEAST_ROWS,
    RUN_BLOCK_ROWS,
    Block,
    BlockInfo,
    BloomFilter,
    SortedRun,
    block_info,
    check_schema,
)
from headrace.state.sorted_run import SCHEMA as FILTER_SCHEMA


class TableInfo(msgspec.Struct, frozen=True):
    """What the footer says about a table's section.

    ``schema`` is Arrow IPC in base64; ``key_groups`` how many the job has; ``pieces`` are in
    the order of their frames.
    """

    schema: str
    key_groups: int
    pieces: tuple[BlockInfo, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The key groups of the lowest and the highest hash."""
        low = min(piece.low_hash for piece in self.pieces)
        high = max(piece.high_hash for piece in self.pieces)
        return (low >> 32) * self.key_groups >> 32, (high >> 32) * self.key_groups >> 32

    def frame_of(self, piece: int) -> int:
        """Return the place of a piece's frame within the section."""
        return piece + sum(info.has_filter for info in self.pieces[:piece])


class BlockWriter:
    """Cuts the batches of a run into pieces and describes them.

    Args:
        schema: of all batches.
        key_groups: how many the job has.
        batches: sorted, each after the one before.
        origin: whose run it is, for errors.
    """

    def __init__(
        self, schema: pa.Schema, key_groups: int, batches: Iterable[pa.RecordBatch], origin: str
    ) -> None:
        self._schema, self._key_groups = schema, key_groups
        self._batches, self._origin = batches, origin
        # Rows that repeat are asked for by ranges of hashes, which no filter knows of.
        self._is_asked = not TableLayout.of(schema).repeats
        self._pieces: list[BlockInfo] = []

    def frames(self) -> Iterator[pa.RecordBatch]:
        """Yield what each frame holds."""
        for batch in self._batches:
            if not batch.schema.equals(self._schema):
                raise InternalError(f"{self._origin}: batches of a run differ in their columns")
            for begin in range(0, batch.num_rows, RUN_BLOCK_ROWS):
                piece = batch.slice(begin, RUN_BLOCK_ROWS)
                hashes = numbers(piece.column(0), np.uint64)
                has_filter = self._is_asked and len(hashes) >= LEAST_ROWS
                info = msgspec.structs.replace(block_info(piece), has_filter=has_filter)
                if self._pieces and info.first < self._pieces[-1].last:
                    raise InternalError(f"{self._origin}: batches of a run are out of order")
                self._pieces.append(info)
                yield piece
                if has_filter:
                    yield self._filter(piece, hashes).batch()

    def _filter(self, piece: pa.RecordBatch, hashes: UInt64s) -> BloomFilter:
        has_clusters = CLUSTER in self._schema.names
        clusters = numbers(piece.column(CLUSTER), np.int64) if has_clusters else None
        return BloomFilter.build(hashes, clusters)

    @property
    def rows(self) -> int:
        """How many rows were yielded so far."""
        return sum(info.rows for info in self._pieces)

    def finished(self) -> TableInfo:
        """Return what the footer says."""
        return TableInfo(schema_to_text(self._schema), self._key_groups, tuple(self._pieces))


FORMAT = 2
MAGIC = b"HRSEG01\n"
TRAILER = struct.Struct("<IQ8s")
SIZE = struct.Struct("<I")
SCHEMA = pa.schema([("group", pa.uint16()), ("key", pa.binary()), ("value", pa.binary())])
CHANGELOG: Literal["changelog"] = "changelog"
SNAPSHOT: Literal["snapshot"] = "snapshot"


class SegmentHeader(msgspec.Struct, frozen=True):
    """Whose state a file holds, and of which epoch.

    ``epoch`` is the one whose changes these are, or for a snapshot the one it stands at. A
    merged segment stands for several epochs, from ``first_epoch`` to ``epoch``; ``covers``
    lists the newest of them with the attempts that were committed then, rising.
    """

    kind: Literal["changelog", "snapshot"]
    job: str
    lineage: str
    generation: int
    epoch: int
    attempt: str
    first_epoch: int = -1
    covers: tuple[tuple[int, str], ...] = ()


class Section(msgspec.Struct, frozen=True):
    """One store of one task within a file.

    ``groups`` are the key groups present, rising; ``starts`` the row at which each begins;
    both are empty for a table, which has ``table``. ``digest`` is xxh3 of the headers of its
    frames, one after the other.
    """

    stage: str
    task: int
    store: str
    begin: int
    end: int
    rows: int
    groups: tuple[int, ...]
    starts: tuple[int, ...]
    digest: int
    table: TableInfo | None = None

    @property
    def first_group(self) -> int:
        """The lowest key group present."""
        return self.groups[0] if self.table is None else self.table.span[0]

    @property
    def last_group(self) -> int:
        """The highest key group present."""
        return self.groups[-1] if self.table is None else self.table.span[1]


class Footer(msgspec.Struct, frozen=True):
    """The JSON at the end of a file."""

    format: int
    header: SegmentHeader
    sections: tuple[Section, ...]


class SegmentInfo(NamedTuple):
    """A written file: what a commit record names."""

    path: Path
    bytes: int
    checksum: int
    sections: tuple[Section, ...]


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
    def info(self) -> SegmentInfo:
        """What its writer returned."""
        at = len(self._data) - TRAILER.size
        checksum = TRAILER.unpack_from(memoryview(self._data), at)[1]
        return SegmentInfo(self.path, len(self._data), checksum, self.sections)

    @property
    def header(self) -> SegmentHeader:
        """Whose state this is."""
        return self._footer.header

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in file order."""
        return self._footer.sections

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
        for keys, values in self.columns(store, groups):
            yield _to_list(keys), _to_list(values)

    def columns(
        self, store: str, groups: tuple[int, int] = ALL_GROUPS
    ) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        """Yield what ``read`` returns, frame by frame, as columns of the mapped file."""
        for section in self._entries(store, groups):
            for batch in self._rows(section, *groups):
                yield batch.column(1), batch.column(2)

    def keys(self, store: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.BinaryArray]:
        """Yield the full keys alone; values are neither read nor verified."""
        for section in self._entries(store, groups):
            for batch in self._rows(section, *groups, columns=[1]):
                yield batch.column(0)

    def _entries(self, store: str, groups: tuple[int, int]) -> list[Section]:
        return [s for s in self.sections_of(store, groups) if s.table is None]

    def tables(self, store: str, groups: tuple[int, int] = ALL_GROUPS) -> list[Section]:
        """Return the sections of a store that is a table, as ``sections_of`` does."""
        return [s for s in self.sections_of(store, groups) if s.table is not None]

    def sections_of(self, store: str, groups: tuple[int, int] = ALL_GROUPS) -> list[Section]:
        """Return the sections of a store that may have rows of a range of key groups.

        They rise by key group. A file may have those of hundreds of tasks; those of others are
        not looked at.
        """
        sections, firsts, lasts = self._by_store.get(store, ([], [], []))
        return sections[bisect_left(lasts, groups[0]) : bisect_left(firsts, groups[1])]

    @cached_property
    def _by_store(self) -> dict[str, tuple[list[Section], list[int], list[int]]]:
        """The sections of each store by their first key group, and the last one so far."""
        found: dict[str, list[Section]] = {}
        for section in self.sections:
            found.setdefault(section.store, []).append(section)
        indexed = {}
        for store, sections in found.items():
            ordered = sorted(sections, key=lambda s: s.first_group)
            lasts = list(accumulate((s.last_group for s in ordered), max))
            indexed[store] = ordered, [s.first_group for s in ordered], lasts
        return indexed

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
            for _ in self._rows(section, *ALL_GROUPS):
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


def open_runs(
    reader: SegmentReader,
    store: str,
    layout: TableLayout | None = None,
    groups: tuple[int, int] = ALL_GROUPS,
) -> list[SortedRun]:
    """Return a store's runs in a file: one for each task that wrote there.

    Args:
        reader: of the file.
        store: its name, unique within the job.
        layout: of the table; what the file says when ``None``.
        groups: the key groups that count, the first and the one after the last.

    Raises:
        CorruptDataError: the section is not as it was written.
        InvalidInputError: it has other columns than the layout.
    """
    found = [_open(reader, section, layout, groups) for section in reader.tables(store, groups)]
    return [run for run in found if run is not None]


def layout_of(section: Section) -> TableLayout:
    """Return the layout of the table that a section is of."""
    assert section.table is not None
    return _layout_from(section.table.schema)


@lru_cache(maxsize=256)  # most files of a store say the same
def _layout_from(text: str) -> TableLayout:
    return TableLayout.of(schema_from_text(text))


def _open(
    reader: SegmentReader,
    section: Section,
    layout: TableLayout | None,
    groups: tuple[int, int],
) -> SortedRun | None:
    info = section.table
    assert info is not None
    schema = schema_from_text(info.schema)
    if layout is None:
        layout = layout_of(section)
    check_schema(layout, schema, f"segment {reader.path} of epoch {reader.header.epoch}")
    wanted = ALL_HASHES
    if groups[0] > 0 or groups[1] < info.key_groups:
        wanted = hash_range(*groups, info.key_groups)
    pieces = [
        Block(
            layout,
            piece,
            partial(reader.piece, section, number),  # checksums say that it has these rows
            cache(partial(_filter_words, reader, section, number)) if piece.has_filter else None,
        )
        for number, piece in enumerate(info.pieces)
        if piece.low_hash <= wanted.last and piece.high_hash >= wanted.first
    ]
    if not pieces:
        return None
    if all(wanted.holds(piece.info.low_hash, piece.info.high_hash) for piece in pieces):
        wanted = ALL_HASHES
    rows = sum(piece.info.rows for piece in pieces)
    size = (section.end - section.begin) * rows // section.rows
    return SortedRun(layout, pieces, size, wanted)


def _filter_words(reader: SegmentReader, section: Section, number: int) -> UInt64s:
    return numbers(reader.filter_of(section, number).column(0), np.uint64)
