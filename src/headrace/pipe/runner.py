"""Pipes at work: a thread for each partition feeds its client span by span, and restarts it.

``PartitionPipe`` is the loop over one partition, ``Pipe`` all of them with their threads. Steps of
a span and what is done about records that kill clients: decision 0045.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from headrace.bus import Bus, OffsetGoneError, Stream, StreamSpec
from headrace.bus.readable import NEVER
from headrace.cli.bus.tail import Tail
from headrace.clock import Clock
from headrace.errors import HeadraceError, InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.pipe.client import FORMATS, Client, ClientStopped, Encoder, UnfitRowError, raw_column
from headrace.pipe.consumer import ConsumerPlace, PartitionConsumer, StagedOutput
from headrace.plan.dead_letters import DEAD_SCHEMA, dead_stream
from headrace.runtime.dead_letters import to_record
from headrace.sources.text_rows import JsonRowReader, LineRowReader, RowChunk, TextRowReader

BLOCK_ROWS = 2000
MOST_OUTPUT_BYTES = 256 << 20
"""Output of one span, which is in memory until the span is acknowledged."""

LINE_BYTES = 50
"""What a line takes in memory besides its text, about."""

IDLE_S = 0.1
LOOK_S = 0.5
MOST_DELAY_S = 30.0
GONE_ADVICE = "or skip what is gone: --reset --from earliest"


class ClientFailedError(InvalidInputError):
    """A client failed again and again. Fix it, or the record that it fails on."""

    code = "HR118"
    move = "fix the client, or set such records aside with --on-poison dead-letter"


@dataclass(frozen=True)
class PipeOptions:
    """What a pipe does.

    Args:
        command: of each client, with its arguments.
        name: of the consumer.
        partitions: to read; ``None``: all, also those that are added.
        start: as ``bus tail`` takes it; where there is no checkpoint.
        until: as ``bus tail`` takes it; ``None``: forever.
        reset: forget checkpoints.
        every_rows: rows of a span at most; ``None``: without bound.
        every_bytes: bytes of a span after which it ends; ``None``: without bound.
        every_s: age of a span after which it ends.
        form: ``json``, ``raw`` or ``arrow``.
        column: that ``raw`` writes.
        ack: ``line``, or ``exit``: a client for each span.
        output: stream of what clients print; ``None``: it is printed.
        timeout_s: how long a client may read nothing, not answer, or not exit.
        restarts: of a client within a span.
        delay_s: before the first restart; doubles with each.
        sets_aside: records that kill clients, to dead letters.
        most_poison: records set aside one after the other.
    """

    command: Sequence[str]
    name: str
    partitions: Sequence[int] | None = None
    start: str = "earliest"
    until: str | None = None
    reset: bool = False
    every_rows: int | None = 1000
    every_bytes: int | None = None
    every_s: float = 5.0
    form: str = "json"
    column: str | None = None
    ack: Literal["line", "exit"] = "line"
    output: str | None = None
    timeout_s: float = 60.0
    restarts: int = 3
    delay_s: float = 0.5
    sets_aside: bool = False
    most_poison: int = 10


@dataclass
class PartitionResult:
    """What became of one partition: ``offset`` is the one to read next.

    ``is_ended`` says that nothing more is wanted of it, unless the pipe was stopped before.
    """

    partition: int
    offset: int = 0
    rows: int = 0
    checkpoints: int = 0
    restarts: int = 0
    dead_letters: int = 0
    output_rows: int = 0
    is_ended: bool = False


@dataclass(frozen=True)
class PipeHooks:
    """Where what clients say goes, by the partition; called by their threads.

    Args:
        output: takes lines of stdout, without an output stream.
        log: takes lines of stderr.
        notice: takes a sentence about the pipe.
    """

    output: Callable[[list[bytes]], None]
    log: Callable[[int, list[str]], None]
    notice: Callable[[str], None]


class _Output:
    """Makes rows of the lines that a client prints, for their stream."""

    def __init__(self, bus: Bus, name: str, form: str, partition: int) -> None:
        self._stream = stream = bus.stream(name)
        spec = stream.spec
        kind: type[TextRowReader] = LineRowReader if form == "raw" else JsonRowReader
        self._reader = kind("output", spec, None)
        self._count = stream.settings.partitions or spec.partitions
        self._partition = None if spec.key else partition
        self._is_raw = form == "raw"
        self._lines: list[bytes] = []
        self._bytes = 0

    def take(self, lines: list[bytes]) -> None:
        """Keep lines of the span.

        Raises:
            ClientStopped: they are too many; the client is to be killed.
        """
        self._lines += lines if self._is_raw else [line for line in lines if line.strip()]
        self._bytes += sum(map(len, lines)) + LINE_BYTES * len(lines)
        if self._bytes > MOST_OUTPUT_BYTES:
            raise ClientStopped(
                1,
                f"client printed more than {MOST_OUTPUT_BYTES:,} bytes in one span; end spans "
                "sooner, by --every-rows",
            )

    def clear(self) -> None:
        self._lines, self._bytes = [], 0

    def rows(self) -> pa.RecordBatch | None:
        """Return the rows since the last call.

        Raises:
            InvalidInputError: a line does not fit; says which.
        """
        lines = self._lines
        self.clear()
        if not lines:
            return None
        return self._reader.batch(RowChunk(lines, range(1, len(lines) + 1)))

    @property
    def has_lines(self) -> bool:
        """Say whether lines were printed since the last call of ``rows``."""
        return bool(self._lines)

    @property
    def place(self) -> StagedOutput:
        """Where rows go: by key, or in the order of the input's partition."""
        turn = None if self._partition is None else self._partition % self._count
        return StagedOutput(self._stream.spec.name, turn)


@dataclass(frozen=True)
class _Search:
    """A record is looked for that kills clients: up to an offset, spans have fewer rows."""

    rows: int
    upto: int


class PartitionPipe:
    """Feeds one partition to its clients, one after the other.

    Args:
        consumer: of the partition.
        bus: has its stream and those of outputs.
        options: of the pipe.
        hooks: for what clients say.
        stop: set when the pipe is to end after a last checkpoint.
        clock: for waiting.
    """

    def __init__(
        self,
        consumer: PartitionConsumer,
        bus: Bus,
        options: PipeOptions,
        hooks: PipeHooks,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._consumer, self._bus, self._options = consumer, bus, options
        self._hooks, self._stop, self._clock = hooks, stop, clock
        place = consumer.place
        self._stream, self._partition = place.stream, place.partition
        tail = Tail(self._stream, self._partition)
        self._until = tail.stop(options.until)
        spec = self._stream.spec
        column = raw_column(spec, options.column) if options.form == "raw" else ""
        self._new_encoder = partial(FORMATS[options.form], spec.schema, column)
        self._output = (
            _Output(bus, options.output, options.form, self._partition) if options.output else None
        )
        start = tail.places(options.start, "--from")[self._partition]
        self._at = consumer.open(start, reset=options.reset)
        self.result = PartitionResult(self._partition, self._at.offset)
        self._client: Client | None = None
        self._is_closed = False
        self._upto = self._at.offset
        self._sent = self._size = 0
        self._crashes = self._poisoned = 0
        self._has_acknowledged = False
        self._search: _Search | None = None

    def run(self) -> None:
        """Feed clients until the end, or until the pipe is stopped.

        Raises:
            ClientFailedError: clients fail after all restarts.
            HeadraceError: the bus or the disk does.
        """
        while not self._is_closed:
            try:
                self._live()
            except ClientStopped as stopped:
                if self._goes_on(stopped):
                    if self._stop.wait(self._delay_s()):
                        return
                    continue
            self.result.is_ended = not self._stop.is_set()
            return

    def kill(self) -> None:
        """End the client at once, from any thread; then ``run`` returns."""
        self._is_closed = True
        if (client := self._client) is not None:
            client.kill()

    def _live(self) -> None:
        """Feed one client, or with ``--ack exit`` one after the other, to the end."""
        with self._opened() as encoder:
            while self._span(encoder):
                pass
            if self._client is None:
                return
            ended = self._client.finish()
            if ended.code:
                self._hooks.notice(f"{self._where}: {ended.reason} at the end of its stdin")
            elif self._output is not None and self._output.has_lines:
                self._commit()  # what it printed at the end of its stdin

    @contextmanager
    def _opened(self) -> Iterator[Encoder]:
        encoder = self._new_encoder()
        try:
            if self._options.ack == "line":
                self._start(encoder)
            yield encoder
        finally:
            self._close_client()

    def _start(self, encoder: Encoder) -> Client:
        if self._output is not None:
            self._output.clear()
        options = self._options
        self._client = Client(
            options.command,
            {
                "HEADRACE_STREAM": self._stream.spec.name,
                "HEADRACE_PARTITION": str(self._partition),
                "HEADRACE_OFFSET": str(self._at.offset),
            },
            encoder,
            self._hooks.output if self._output is None else self._output.take,
            partial(self._hooks.log, self._partition),
            self._say_wait,
            options.timeout_s,
            self._clock,
        )
        if self._is_closed:
            self._client.kill()
        return self._client

    def _say_wait(self, line: str) -> None:
        """Say what a client should print, as long as none has ever printed it."""
        if not self._has_acknowledged:
            self._hooks.notice(
                f"{self._where}: waiting for the client to acknowledge, by the line {line} on its "
                "stdout; a command that knows nothing of checkpoints needs --ack exit"
            )

    def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _span(self, encoder: Encoder) -> bool:
        """Send the rows of one span and commit it; false if there is nothing more to do.

        Raises:
            ClientStopped: the client does not run any more; nothing is committed.
        """
        start = self._at.offset
        self._upto, self._sent, self._size = start, 0, 0
        try:
            self._fill(encoder)
            if not self._sent:
                return self._at.offset > start  # a record was set aside
            self._acknowledge(encoder)
        except ClientStopped as stopped:
            if self._options.ack == "line" or stopped.code:
                raise
            self._close_client()
        fault("pipe.acknowledged")
        self._commit()
        return True

    def _fill(self, encoder: Encoder) -> None:
        """Send rows until the span is full or due, or nothing more is to be read."""
        begun = self._clock.monotonic()
        while not self._is_full and not self._stop.is_set():
            known = self._stream.ends()
            ends = self._until(known)
            if self._sent and self._clock.monotonic() - begun >= self._options.every_s:
                return
            if self._upto < ends.offsets[self._partition]:
                if not self._sent:
                    begun = self._clock.monotonic()
                if not self._feed(encoder, ends.offsets[self._partition]):
                    return
            elif ends.is_reached:
                return
            else:
                wanted = [NEVER] * len(known)
                wanted[self._partition] = self._upto
                self._stream.wait_unless(wanted, IDLE_S, self._stop.is_set)
            if self._client is not None:
                self._client.poll()

    def _acknowledge(self, encoder: Encoder) -> None:
        """Wait until the client has acknowledged all rows of the span."""
        assert self._client is not None
        if self._options.ack == "line":
            self._client.ask(self._upto)
            self._has_acknowledged = True
            return
        self._client.send(encoder.end)
        raise self._client.finish()

    def _commit(self) -> None:
        rows = place = None
        if self._output is not None:
            try:
                rows, place = self._output.rows(), self._output.place
            except InvalidInputError as error:
                raise ClientStopped(
                    1, f"client printed what does not fit: {error.message}"
                ) from error
        self._at = self._consumer.commit(self._at, self._upto, rows, place)
        result = self.result
        result.offset = self._upto
        result.rows, result.checkpoints = result.rows + self._sent, result.checkpoints + 1
        result.output_rows += 0 if rows is None else rows.num_rows
        self._crashes = self._poisoned = 0
        if self._search is not None and self._upto >= self._search.upto:
            self._search = None

    @property
    def _is_full(self) -> bool:
        most = self._options.every_bytes
        return self._sent >= self._most_rows or (most is not None and self._size >= most)

    @property
    def _most_rows(self) -> int:
        rows = self._options.every_rows or NEVER
        return rows if self._search is None else min(rows, self._search.rows)

    def _feed(self, encoder: Encoder, end: int) -> bool:
        """Send what is there of a span; false if the span ends at a row that cannot be sent."""
        options = self._options
        most = None if options.every_rows is None else self._most_rows - self._sent
        found = self._stream.read(
            self._partition, self._upto, end, columns=encoder.columns, max_rows=most
        )
        for part in found:
            at, rows = 0, part.batch.num_rows
            while at < rows and not self._is_full and not self._stop.is_set():
                block = part.batch.slice(at, min(BLOCK_ROWS, self._most_rows - self._sent))
                left = None if options.every_bytes is None else options.every_bytes - self._size
                try:
                    data, taken = encoder.rows(block, left)
                except UnfitRowError as error:
                    if not self._sent:
                        self._set_aside(f"record cannot be written: {error}", 1)
                    return False
                if self._client is None:
                    self._start(encoder)
                assert self._client is not None
                if not self._sent:
                    data = encoder.begin(self._upto) + data
                at += taken
                self._sent, self._size = self._sent + taken, self._size + len(data)
                self._upto = int(part.offsets[at]) if at < rows else part.next_offset
                self._client.send(data)
            if at < rows:
                return True
            self._upto = part.next_offset
        return True

    def _goes_on(self, stopped: ClientStopped) -> bool:
        """Say whether another client is to be started, after one that did not commit its span.

        Raises:
            ClientFailedError: it failed too often.
        """
        if self._is_closed:
            return False
        if not stopped.code:
            left = f", {self._sent} rows are not acknowledged" if self._sent else ""
            self._hooks.notice(f"{self._where}: {stopped.reason}, which ends the partition{left}")
            return False
        self._crashes += 1
        if self._stop.is_set():
            self._hooks.notice(f"{self._where}: {stopped.reason}, while the pipe was stopped")
            return False
        self.result.restarts += 1
        if self._search is not None and self._sent > 1:
            self._narrow(stopped)
        elif self._crashes <= self._options.restarts:
            self._hooks.notice(
                f"{self._where}: {stopped.reason}; restart {self._crashes} of "
                f"{self._options.restarts} at offset {self._at.offset}"
            )
        elif not self._sent:
            raise self._failed(stopped, "before any record")
        else:
            if self._search is None:
                self._try_without_records(stopped)
            if self._sent > 1:
                self._narrow(stopped)
            else:
                self._set_aside(stopped.reason, stopped.code)
        return True

    def _narrow(self, stopped: ClientStopped) -> None:
        upto = self._upto if self._search is None else self._search.upto
        self._search, self._crashes = _Search(self._sent // 2, upto), 0
        self._hooks.notice(
            f"{self._where}: {stopped.reason}; looking for the record, {self._search.rows} at once"
        )

    def _try_without_records(self, stopped: ClientStopped) -> None:
        """Make sure that it is records that a client fails on.

        Raises:
            ClientFailedError: it fails on an empty span as well.
        """
        try:
            with self._opened() as encoder:
                client = self._client or self._start(encoder)
                client.send(encoder.begin(self._at.offset))
                if self._options.ack == "line":
                    client.ask(self._at.offset)
                else:
                    client.send(encoder.end)
                    raise client.finish()
        except ClientStopped as bare:
            if bare.code:
                also = "" if bare.reason == stopped.reason else f" ({bare.reason})"
                raise self._failed(stopped, f"also without any record{also}") from bare

    def _failed(self, stopped: ClientStopped, how: str) -> ClientFailedError:
        """Return the error of a client that is not restarted any more."""
        return self._error(
            f"{stopped.reason}, {how}, {self._crashes} times in a row: restarts end after "
            f"{self._options.restarts} (--restarts); its stderr is in logs/pipe-"
            f"{self._options.name}.log of the home: fix it, and run this again, which continues at",
            stopped.code,
        )

    def _set_aside(self, reason: str, code: int) -> None:
        """Make a dead letter of the record at the checkpoint, and continue behind it.

        Raises:
            ClientFailedError: that is not wanted, or was done too often in a row.
        """
        if not self._options.sets_aside:
            raise self._error(
                f"{reason}: because of one record; fix the client, or set such records aside with "
                "--on-poison dead-letter: it is at",
                code,
            )
        if self._poisoned >= self._options.most_poison:
            raise self._error(
                f"{reason}: {self._poisoned} records in a row were set aside, so it seems not to "
                "be them (--max-poison); fix the client, and send them again: headrace dlq "
                f"redrive {self._letters}; the next one is at",
                code,
            )
        after = self._letter(reason)
        self._at = self._consumer.commit(self._at, after)
        self._hooks.notice(
            f"{self._where}: {reason}; record at offset {self.result.offset} went to "
            f"{dead_stream(self._letters)}"
        )
        self.result.offset = after
        self.result.dead_letters += 1
        self._poisoned += 1
        self._crashes, self._search = 0, None

    def _letter(self, reason: str) -> int:
        """Append the dead letter of the record at the checkpoint; return the offset behind it."""
        found = self._stream.read(self._partition, self._at.offset, max_rows=1)
        part = next(part for part in found if part.batch.num_rows)
        offset = int(part.offsets[0])
        letter = {
            "at": self._clock.now_ms() * 1000,
            "job": self._letters,
            "epoch": self._at.number,
            "operator": "client",
            "code": ClientFailedError.code,
            "kind": "ClientFailedError",
            "message": reason,
            "stream": self._stream.spec.name,
            "partition": self._partition,
            "offset": offset,
            "is_original": True,
            "record": to_record(part.batch, 0),
        }
        spec = StreamSpec(dead_stream(self._letters), 1, DEAD_SCHEMA, "at")
        stream = self._bus.create(spec, exist_ok=True)
        row = pa.RecordBatch.from_pylist([letter], DEAD_SCHEMA)
        self._consumer.append_letter(self._at, stream, row)
        return offset + 1

    @property
    def _letters(self) -> str:
        """What stands for the job in dead letters: the consumer may have the name of a stream."""
        return f"{self._options.name}.pipe"

    @property
    def _where(self) -> str:
        return f"partition {self._partition}"

    def _error(self, message: str, code: int) -> ClientFailedError:
        name, offset = self._stream.spec.name, self._at.offset
        return ClientFailedError(
            f"{message} offset {offset} of partition {self._partition} of stream {name!r}",
            stream=name,
            partition=self._partition,
            offset=offset,
            exit_code=code,
        )

    def _delay_s(self) -> float:
        """Return how long to wait before a restart; a search does not wait."""
        if not self._crashes:
            return 0.0
        return float(min(MOST_DELAY_S, self._options.delay_s * 2 ** (self._crashes - 1)))


class Pipe:
    """All partitions of a pipe, each with its thread and its client.

    Args:
        bus: has the streams.
        stream: to read.
        home: has the checkpoints.
        options: of the pipe.
        hooks: for what clients say.
        clock: for waiting.

    Raises:
        NotOwnerError: another process reads one of the partitions under this name.
        InvalidInputError: an option does not fit the stream, or what it was read as before.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        home: Path,
        options: PipeOptions,
        hooks: PipeHooks,
        clock: Clock,
    ) -> None:
        self._bus, self._stream, self._home = bus, stream, home
        self._options, self._hooks, self._clock = options, hooks, clock
        self._files = Files()
        self._stopped = threading.Event()
        self._ended: queue.Queue[tuple[int, BaseException | None]] = queue.Queue()
        self._pipes: dict[int, PartitionPipe] = {}
        self._consumers: list[PartitionConsumer] = []
        self._threads: list[threading.Thread] = []
        wanted = options.partitions
        try:
            for partition in range(stream.spec.partitions) if wanted is None else wanted:
                self._open(partition, options)
        except BaseException:
            self._close()
            raise

    @property
    def offsets(self) -> dict[int, int]:
        """The offset of each partition that is acknowledged so far."""
        return {partition: pipe.result.offset for partition, pipe in sorted(self._pipes.items())}

    def stop(self) -> None:
        """Let each client acknowledge what it has, and end; from any thread or signal."""
        self._stopped.set()
        self._stream.wake()

    def run(self) -> list[PartitionResult]:
        """Feed clients until all partitions are at their end, or the pipe is stopped.

        Returns:
            What became of each partition.

        Raises:
            ClientFailedError: clients of a partition fail after all restarts; others were stopped.
            HeadraceError: the bus or the disk does.
            KeyboardInterrupt: it came while this waited; clients were killed.
        """
        error: BaseException | None = None
        try:
            for partition in list(self._pipes):
                self._begin(partition)
            running = set(self._pipes)
            while running:
                try:
                    partition, raised = self._ended.get(timeout=LOOK_S)
                except queue.Empty:
                    running |= self._follow()
                    continue
                running.discard(partition)
                if raised is not None:
                    error = error or raised
                    self.stop()
                    if not isinstance(raised, Exception):
                        break
        finally:
            self._close()
        if error is not None:
            raise error
        return [pipe.result for _, pipe in sorted(self._pipes.items())]

    def _open(self, partition: int, options: PipeOptions) -> None:
        place = ConsumerPlace(self._home, options.name, self._stream, partition)
        consumer = PartitionConsumer(place, self._bus, self._files, self._clock)
        self._consumers.append(consumer)
        self._pipes[partition] = PartitionPipe(
            consumer, self._bus, options, self._hooks, self._stopped, self._clock
        )

    def _begin(self, partition: int) -> None:
        thread = threading.Thread(
            target=self._run, args=(partition,), name=f"pipe-{partition}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _run(self, partition: int) -> None:
        raised: BaseException | None = None
        try:
            self._pipes[partition].run()
        except OffsetGoneError as error:
            error.also = GONE_ADVICE
            raised = error
        except BaseException as error:  # noqa: BLE001 - raised again by who runs all partitions
            raised = error
        self._ended.put((partition, raised))

    def _follow(self) -> set[int]:
        """Begin with partitions that were added, at their first rows; return them."""
        options = self._options
        if options.partitions is not None or options.until is not None or self._stopped.is_set():
            return set()
        with suppress(HeadraceError):  # the threads find what is wrong with the stream
            self._stream.ends()
        added = set(range(self._stream.spec.partitions)) - set(self._pipes)
        for partition in sorted(added):
            self._open(partition, replace(options, start="earliest", reset=False))
            self._begin(partition)
        return added

    def _close(self) -> None:
        for pipe in self._pipes.values():
            pipe.kill()
        self._stop_threads()
        for consumer in self._consumers:
            consumer.close()

    def _stop_threads(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()
