"""A partition of a bus in an object storage: an append is a conditional put of the next name.

An append at offset N is the object ``rows/<N>.seg``: its index entry, and behind that its frames.
Who creates it has appended; who finds the name taken reads what is there and tries behind it. All
else creates the next head of the index (``object_index``): a seal packs small appends into larger
objects, a trim begins later, a compaction replaces rows. Objects go after the head that no longer
names them.

A process that stood still may put an append under a name that others have packed and removed since.
So each append looks, after its put, for a newer head. Without one its name was free because the
partition ended there. Else the head says whether the append is in it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.bus.compaction import (
    CompactionStoppedError,
    CompactionWriter,
    WrittenCompaction,
    changed_meanwhile,
)
from headrace.bus.file_log import SegmentMapCache
from headrace.bus.index_table import (
    COMPACTED,
    ENTRY_BYTES,
    NO_PRODUCER,
    Entries,
    Entry,
    IndexView,
    LastAppend,
    entries_of,
)
from headrace.bus.log import (
    BusContext,
    CompactionRequest,
    FrameLocation,
    Log,
    OffsetGoneError,
    PendingAppend,
    SegmentReplacedError,
    expired_before,
    is_old,
    new_nonce,
    segment_name,
    trim_limit,
)
from headrace.bus.object_index import (
    PACKED,
    Head,
    IndexPart,
    PartHistory,
    from_offset,
    whole_entries,
    with_parts,
)
from headrace.bus.object_packing import Packer, append_name, object_name, object_names
from headrace.bus.object_stores import CompactionPinObjects
from headrace.bus.spec import Appended, Compacted, Fence, stream_removed
from headrace.bus.stream_stores import SettingsStore, StreamSettings
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Bytes, temporary_path
from headrace.objects import ObjectInfo
from headrace.remote import RemoteFile

SEAL_APPENDS = 64
"""So many appends lie each in an object of its own before they are packed."""
TRUST_S = 600.0
"""So long after it was the newest, the next name says whether a head still is; then a list."""
KEEP_HEADS_S = 3600.0
"""Heads stay so long after the next one: longer than ``TRUST_S``, by any clock."""
SLACK_S = 60.0
SWEEP_EVERY = 16
_WALKED = 3
_AT_ONCE = 8
_PARTS_HELD = 4


class ObjectLog(Log):
    """One partition, below a path that stands for a part of a bucket.

    Args:
        folder: of the partition.
        partition: its number.
        stream: name of its stream.
        parts: settings, time and files.
        maps: kept for all partitions of the bus.
        settings: of the stream.
        holds: of the stream's readers.
        run_soon: has something done that no append waits for.
    """

    def __init__(
        self,
        folder: Path,
        partition: int,
        stream: str,
        parts: BusContext,
        *,
        maps: SegmentMapCache,
        settings: SettingsStore,
        holds: CompactionPinObjects,
        run_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(stream, partition, parts, settings)
        self._folder, self._rows = folder, folder / "rows"
        self._heads, self._parts_at = folder / "heads", folder / "parts"
        self._clock, self._files = parts.clock, parts.files
        self._options, self._fences = parts.settings, parts.fences
        self._maps, self._holds, self._run_soon = maps, holds, run_soon
        self._process = os.getpid()
        self._begin()

    def _begin(self) -> None:
        self._lock, self._sealing = threading.RLock(), threading.Lock()
        self._compacting = threading.Lock()
        self._is_queued, self._seals = False, 0
        self._is_fresh, self._confirmed_s = True, float("-inf")
        self._loaded: dict[str, Entries] = {}
        self._install(Head())

    def _check_process(self) -> None:
        if self._process != os.getpid():  # a forked process has none of the threads
            self._process = os.getpid()
            self._begin()

    def _install(self, head: Head) -> None:
        history = PartHistory(head.parts, self._load)
        self._table = head.table(history)
        self._head, self._history = head, history if head.parts else None

    def _now(self) -> IndexView:
        return self._table.view(self._history, self._head.holder)

    def view(self) -> IndexView:
        """Return the index as it is now."""
        self._check_process()
        with self._lock:
            self._refresh()
            return self._now()

    def last(self, producer: bytes) -> LastAppend | None:
        """Return the last append of a producer, as of the last view."""
        return self._table.producers.last(producer)

    def data(self, entry: Entry) -> tuple[pa.Buffer, str]:
        """Return the object of an entry, which is fetched unless this host has it."""
        is_own = entry.kind != COMPACTED and not entry.flags & PACKED
        path = self._rows / object_name(entry)
        try:
            data = self._maps.get(path, entry.position + entry.length)
            if is_own and self._header(data[:ENTRY_BYTES].to_pybytes(), path).nonce != entry.nonce:
                raise CorruptDataError(f"{path} is of another append", file=str(path))
        except CorruptDataError:
            view = self.view()
            if entry.first_offset < view.begin:
                raise self.gone(entry.first_offset) from None
            if view.at(entry.first_offset) == entry:
                raise
            raise SegmentReplacedError from None
        return data, str(path)

    def _header(self, data: bytes, path: Path) -> Entry:
        found = whole_entries(data, str(path), self.partition)
        if len(found) != 1:
            raise CorruptDataError(f"{path} is damaged: it has no entry", file=str(path))
        return Entry.at(found, 0)

    def _load(self, part: IndexPart) -> Entries:
        path = self._parts_at / part.name
        if (held := self._loaded.get(part.name)) is not None:
            return held
        try:
            data = self._files.map(path).to_pybytes()
        except CorruptDataError:
            raise SegmentReplacedError from None
        entries = whole_entries(data, str(path), self.partition)
        self._loaded = dict([*self._loaded.items()][1 - _PARTS_HELD :]) | {part.name: entries}
        return entries

    def _refresh(self) -> None:
        """Read what others have appended and changed, up to one moment.

        What follows the last append is looked at before the next head is: where there is none, no
        name had been used before.
        """
        while True:
            self._follow()
            if not self._look_for_head():
                self._is_fresh = False
                return

    def _follow(self) -> None:
        walked = 0
        while (found := self._peek(self._table.next_offset)) is not None:
            self._extend([found])
            walked += 1
            if walked % _WALKED == 0:
                self._follow_listed()

    def _follow_listed(self) -> None:
        """Read many appends at once, by a list of names."""
        end, names = self._table.next_offset, self._files.names(self._rows)
        offsets = [int(name[:20]) for name in names if len(name) == len(append_name(0))]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(self._peek, [offset for offset in offsets if offset >= end])
            for entry in found:
                if entry is not None and entry.first_offset == self._table.next_offset:
                    self._extend([entry])

    def _extend(self, entries: Iterable[Entry]) -> None:
        self._table.extend(entries_of(entries), str(self._rows))

    def _peek(self, offset: int) -> Entry | None:
        """Return the entry of the append at an offset; ``None``: there is none."""
        path = self._rows / append_name(offset)
        far = RemoteFile(path)
        try:
            data = far.storage.get_range(far.name, 0, ENTRY_BYTES)
        except FileNotFoundError:
            return None
        entry = self._header(data, path)
        if entry.first_offset != offset:
            raise CorruptDataError(
                f"{path} is damaged: it is the append at {entry.first_offset}", file=str(path)
            )
        return entry

    def _look_for_head(self) -> bool:
        """Take over the newest head; False where this process has it already."""
        begun_s, number = self._uptime_s(), self._head.number
        if (
            begun_s - self._confirmed_s < TRUST_S
            and self._read_head(number + 1) is None
            and self._uptime_s() - self._confirmed_s < TRUST_S
        ):
            self._confirmed_s = begun_s
            return False
        broken = -1
        while True:
            names = self._files.names(self._heads)
            newest = int(names[-1]) if names else -1
            if newest < number:
                raise stream_removed(self.stream)
            if newest == number:
                self._confirmed_s = begun_s
                return False
            if (head := self._read_head(newest)) is None:
                continue  # there is a newer one by now
            try:
                self._install(head)
            except SegmentReplacedError:
                if newest == broken:
                    raise CorruptDataError(
                        f"{self._folder} has lost a part of its index that head {newest} names",
                        file=str(self._folder),
                    ) from None
                broken = newest
                continue
            self._confirmed_s = begun_s
            return True

    def _uptime_s(self) -> float:
        return self._clock.uptime()[1]

    def _head_path(self, number: int) -> Path:
        return self._heads / f"{number:012d}"

    def _read_head(self, number: int) -> Head | None:
        path = self._head_path(number)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return None
        return Head.decode(data, number, str(path), self.partition)

    def append(self, chunks: Sequence[Bytes], draft: PendingAppend) -> Appended:
        """Append frames in one step."""
        self._check_process()
        settings = self._settings.current()
        with self._lock:
            if self._is_fresh:
                self._refresh()
            while (answer := self._tried(chunks, draft)) is None:
                self._refresh()
            is_due = not self._is_queued and self._is_due(settings)
            if is_due:  # not written else: one that begins now has just taken it back
                self._is_queued = True
        if is_due:
            self._run_soon(self.seal)
        return answer

    def _tried(self, chunks: Sequence[Bytes], draft: PendingAppend) -> Appended | None:
        """Append behind all that is known; ``None``: somebody else has, look again."""
        self._fences.check(draft.fence)
        try:
            answer = draft.duplicate(self._now(), self._table.producers)
        except SegmentReplacedError:
            return None
        if answer is not None:
            return answer
        entry = self._entry(chunks, draft)
        path = self._rows / append_name(entry.first_offset)
        temporary = temporary_path(path)
        self._files.write_new(temporary, [entry.pack(), *chunks], durable=False)
        try:
            fault("bus.frame_written")
            if not RemoteFile(path).upload(temporary, new=True):
                return None
        finally:
            temporary.unlink(missing_ok=True)
        fault("bus.index_written")
        if self._look_for_head():
            self._refresh()
            return self._settled(entry, draft)
        self._extend([entry])
        return Appended(entry.first_offset, entry.next_offset, False)

    def _entry(self, chunks: Sequence[Bytes], draft: PendingAppend) -> Entry:
        length = sum(memoryview(chunk).nbytes for chunk in chunks)
        place = FrameLocation(self._table.next_offset, new_nonce(self._clock), ENTRY_BYTES, length)
        entry = draft.entry(place.segment, self.partition, place, self._clock.now_ms())
        if draft.job:
            return entry
        return entry._replace(span=int(self._clock.new_id(), 16) >> 2)  # to know it again

    def _settled(self, entry: Entry, draft: PendingAppend) -> Appended | None:
        """Say what became of an append during which others changed the partition."""
        first, found = entry.first_offset, self._found(entry.first_offset)
        is_kept = found is not None and found.kind != COMPACTED
        is_there = found is not None and _is_same(found, entry)
        if not is_kept and draft.producer != NO_PRODUCER:
            last = self._table.producers.last(draft.producer)
            is_there = last is not None and last.sequence >= draft.sequence
        elif not is_kept:
            raise UnavailableError(
                f"this process was frozen while others appended in {self._folder} and dropped old "
                "rows; nothing is known to be appended, try again"
            )
        if is_there:
            return Appended(first, entry.next_offset, False)
        RemoteFile(self._rows / append_name(first)).remove()  # nobody names it
        return None

    def _found(self, offset: int) -> Entry | None:
        while True:
            view = self._now()
            try:
                return view.at(offset) if offset >= view.begin else None
            except SegmentReplacedError:
                self._refresh()

    def _is_due(self, settings: StreamSettings) -> bool:
        tail = self._table.entries[len(self._head.entries) :]
        if not len(tail):
            return False
        if len(tail) >= min(SEAL_APPENDS, self._options.index_entries):
            return True
        limit = settings.retain_bytes
        is_much = limit is not None and int(tail["length"].sum()) * 8 >= limit
        return is_much or is_old(int(tail["appended_ms"][0]), settings, self._clock.now_ms())

    def seal(self) -> None:
        """Pack small appends together, drop what need not be kept, and write the next head.

        Somebody else's head that comes first makes this one void.
        """
        self._check_process()
        with self._sealing:
            self._is_queued = False
            if not self._compacting.acquire(blocking=False):
                return  # it reads what this would remove
            try:
                self._seal()
            except (SegmentReplacedError, OffsetGoneError):
                return  # others have done so
            finally:
                self._compacting.release()

    def _seal(self) -> None:
        settings = self._settings.current()
        with self._lock:
            self._refresh()
            view, before = self._now(), self._head
        begin = expired_before(view, settings, self._clock.now_ms())
        packer = Packer(self, self._rows)
        with ExitStack() as undo:
            undo.callback(packer.undo)
            entries = packer.packed(from_offset(view.entries, begin), settings)
            with self._lock:
                head = self._following(before, view, begin)._replace(entries=entries)
                if not self._publish(head, view):
                    return
            undo.pop_all()
        self._seals += 1
        if (self._seals - 1) % SWEEP_EVERY == 0:
            self._sweep()

    def _following(self, before: Head, view: IndexView, begin: int) -> Head:
        """Return the next head, whose entries are those of a view from an offset on."""
        return before._replace(
            number=before.number + 1,
            begin=begin,
            upto=view.next_offset,
            compacted=view.compacted,
            parts=tuple(part for part in before.parts if part.end > begin),
            entries=from_offset(view.entries, begin),
        )

    def _publish(self, head: Head, view: IndexView) -> bool:
        """Create a head, and remove the objects that only the one before it names.

        Args:
            head: the next one.
            view: what was known when it was made.
        """
        if head.number != self._head.number + 1:
            return False
        carried = entries_of(self._table.producers.carried(self.partition))
        head, part = with_parts(
            head._replace(carried=carried), self._options.index_entries, new_nonce(self._clock)
        )
        if part is not None:
            self._files.write_new(self._parts_at / part[0].name, [part[1].tobytes()])
        before, tail = self._head, from_offset(self._table.entries, head.upto)
        if head.parts:
            gone = object_names([*view.blocks(stop=head.begin), view.entries])
            gone -= object_names(view.blocks(head.begin, head.begin + 1))
            gone -= object_names([part[1]] if part is not None else [])
        else:
            gone = object_names(view.blocks())
        gone -= object_names([head.entries])
        if not self._files.publish(self._head_path(head.number), head.encode(self.partition)):
            return False
        self._install(head)
        if len(tail):
            self._table.extend(tail, str(self._rows))
        fault("trim.written")
        for name in sorted(gone):
            RemoteFile(self._rows / name).remove()
            fault("trim.segment_removed")
        for one in set(before.parts) - set(head.parts):
            RemoteFile(self._parts_at / one.name).remove()
        return True

    def trim(self, before_offset: int | None, fence: Fence | None) -> int:
        """Drop whole objects below an offset, or those that retention drops."""
        self._check_process()
        settings = self._settings.current()
        while True:
            with self._lock:
                self._refresh()
                self._fences.check(fence)
                view = self._now()
                try:
                    begin = trim_limit(view, before_offset, settings, self._clock.now_ms())
                    if begin <= view.begin or self._publish(
                        self._following(self._head, view, begin), view
                    ):
                        return self._table.begin
                except SegmentReplacedError:
                    continue

    def bar(self) -> None:
        """Let no compaction count that was about to: it would create the head that this does."""
        self._check_process()
        with self._lock:
            while True:
                self._refresh()
                view = self._now()
                try:
                    self._publish(self._following(self._head, view, view.begin), view)
                except SegmentReplacedError:
                    continue
                return

    def compact(self, order: CompactionRequest, limit: Callable[[IndexView], int]) -> Compacted:
        """Keep of the rows up to an offset only the last one of each key, in one step."""
        self._check_process()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (
            self._compacting,
            CompactionWriter(self, self._folder, order) as writer,
        ):
            draft = self._draft(writer, order, limit)
            while draft.entries and not self._replaced(draft, limit):
                pass
        return draft.outcome

    def _draft(
        self,
        writer: CompactionWriter,
        order: CompactionRequest,
        limit: Callable[[IndexView], int],
    ) -> WrittenCompaction:
        """Write a compaction, again where another process has packed what it was to read."""
        while True:
            before = self.view()
            try:
                return writer.draft(limit)
            except CompactionStoppedError:
                now = self.view()
                if order.stopped() or (now.begin, now.holder) != (before.begin, before.holder):
                    raise

    def _replaced(self, draft: WrittenCompaction, limit: Callable[[IndexView], int]) -> bool:
        """Let compacted entries count; False: another head came first, try again.

        Objects are put for each try: who has written the other head may remove older ones.

        Raises:
            CompactionStoppedError: a hold was set meanwhile, or the partition was trimmed or
                compacted by others; nothing has changed.
        """
        with ExitStack() as undo, self._holds.announced(self.partition):
            with self._lock:
                self._refresh()
                view, before = self._now(), self._head
            upto = draft.outcome.upto
            is_same = (view.begin, view.holder) == (draft.view.begin, draft.view.holder)
            if not is_same or limit(view) < upto:
                raise changed_meanwhile(self.stream)
            entries = self._put(draft, undo)
            fault("compact.segment_named")
            packed = entries_of(entries)
            try:
                rest = [packed, *view.blocks(upto)] if upto < view.next_offset else [packed]
            except SegmentReplacedError:
                return False
            with self._lock:
                head = self._following(before, view, view.begin)._replace(
                    compacted=upto,
                    holder=before.number + 1,
                    parts=(),
                    entries=np.concatenate(rest),
                )
                if not self._publish(head, view):
                    return False
            undo.pop_all()
        fault("compact.written")
        return True

    def _put(self, draft: WrittenCompaction, undo: ExitStack) -> list[Entry]:
        """Put the objects of a compaction under new names; return its entries with these."""
        nonces: dict[tuple[int, int], int] = {}
        for temporary, path in draft.files:
            segment, nonce = int(path.name[:20]), int(path.stem[21:], 16)
            nonces[segment, nonce] = own = new_nonce(self._clock)
            far = RemoteFile(self._rows / segment_name(segment, own))
            undo.callback(far.remove)
            far.storage.put_file(far.name, temporary)
        return [
            entry._replace(nonce=nonces.get((entry.segment, entry.nonce), entry.nonce))
            for entry in draft.entries
        ]

    def _sweep(self) -> None:
        """Remove objects that no head names any more, nor can: of processes that died."""
        with self._lock:
            view, head = self._now(), self._head
        heads = sorted(self._objects(self._heads))
        newest = next((one for one in heads if int(one.name[-12:]) == head.number), None)
        if newest is None:
            return  # somebody else sweeps
        for one, following in itertools.pairwise(heads):
            if following.written_s < newest.written_s - KEEP_HEADS_S:
                self._files.remove(self._heads / one.name[-12:])
        kept = object_names([view.entries, *view.blocks(head.begin, head.begin + 1)])
        kept |= {part.name for part in head.parts}
        for folder in (self._rows, self._parts_at):
            for one in self._objects(folder):
                name = one.name.rpartition("/")[2]
                offset, is_older = int(name[:20]), one.written_s < newest.written_s - SLACK_S
                is_known = offset < head.begin or head.first <= offset < head.upto
                if is_older and name not in kept and (is_known or folder == self._parts_at):
                    self._files.remove(folder / name)

    def _objects(self, folder: Path) -> Iterator[ObjectInfo]:
        """Yield the objects of a folder; one that probes the storage has a hidden name."""
        far = RemoteFile(folder)
        return (one for one in far.storage.objects(far.name) if "/." not in one.name)


def _is_same(found: Entry, entry: Entry) -> bool:
    """Say whether an entry is of an append, wherever its frames are by now."""
    one, other = (e._replace(flags=0, segment=0, nonce=0, position=0) for e in (found, entry))
    return one == other
