"""Pipes on Spark: partitions are dealt to cores of executors, and clients run there.

A slot is one Spark task, which lasts as long as the partitions stay where they are. When an
executor is lost or more of them come, and when a partition is added, all slots stop at their next
checkpoint, and partitions are dealt again. Checkpoints are in the home, which all hosts have to
reach, so that a slot on another host continues where the lost one was. Decision 0045.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, chdir, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headrace.bus import Bus, BusOptions, OffsetGoneError, Stream, open_bus
from headrace.cli.bus.tail import Tail
from headrace.clock import Clock, Deadline, SystemClock
from headrace.closeable import running_beside
from headrace.config import Settings
from headrace.coordinator.slot_reports import slot_error
from headrace.errors import HeadraceError, NotOwnerError, UnavailableError
from headrace.files import Files
from headrace.pipe.client import ClientLog
from headrace.pipe.consumer import PIPES, ConsumerPlace, PartitionConsumer
from headrace.pipe.runner import GONE_ADVICE, PartitionResult, Pipe, PipeHooks, PipeOptions
from headrace.runtime.orders import SlotFailure, SlotReport
from headrace.runtime.slot import describe_failure
from headrace.spark.sessions import build_context, has_session
from headrace.spark.slot_rdd import (
    SPARK_ERRORS,
    Executor,
    SlotRDD,
    executors,
    first_line,
    runs_in_driver,
)

EXECUTORS_S = 60.0
SETTLE_S = 1.0
LOOK_S = 0.5
OWNER_S = 60.0
"""How long a process that was lost may still hold its partitions: it may be frozen for a while."""

MOST_FAILURES = 5


@dataclass(frozen=True)
class SlotTask:
    """What one slot does; travels with its Spark task.

    Args:
        slot: its number.
        home: with checkpoints and logs; all hosts reach it.
        bus: folder of the streams.
        bus_options: of it.
        stream: that is read.
        options: of the pipe, with the partitions of the slot.
        folder: where clients run, if the host has it.
        stop: a file; when it is there, the slot is to end.
    """

    slot: int
    home: str
    bus: str
    bus_options: BusOptions
    stream: str
    options: PipeOptions
    folder: str
    stop: str


class SlotResult(msgspec.Struct, frozen=True):
    """What became of the partitions of a slot, or the error that ended it."""

    slot: int
    partitions: list[PartitionResult]
    error: SlotFailure | None = None


def run_slot(tasks: Iterable[SlotTask]) -> Iterator[bytes]:
    """Run the task of a slot in a Python worker of Spark; yields its ``SlotResult`` as JSON."""
    for task in tasks:
        yield msgspec.json.encode(_result(task))


def _result(task: SlotTask) -> SlotResult:
    log = ClientLog(Path(task.home), f"{task.options.name}.slot-{task.slot}")

    def output(lines: list[bytes]) -> None:
        log.write(line.decode(errors="backslashreplace") for line in lines)

    def stderr(partition: int, lines: list[str]) -> None:
        log.write(f"partition {partition}: {line}" for line in lines)

    hooks = PipeHooks(output, stderr, lambda text: log.write([text]))
    stop = Path(task.stop)
    if stop.exists():  # placed after a slot was lost, while the others end
        return SlotResult(task.slot, [])
    try:
        with (
            chdir(task.folder) if os.path.isdir(task.folder) else nullcontext(),
            open_bus(Path(task.bus), task.bus_options, clock=SystemClock()) as bus,
        ):
            stream, home = bus.stream(task.stream), Path(task.home)
            pipe = Pipe(bus, stream, home, task.options, hooks, SystemClock())
            with _stopped_by(stop, pipe):
                return SlotResult(task.slot, pipe.run())
    except Exception as error:  # noqa: BLE001 - the one boundary between a slot and its driver
        with suppress(OSError):
            stop.touch()  # the others end as well
        return SlotResult(task.slot, [], describe_failure(error))


def _stopped_by(file: Path, pipe: Pipe) -> AbstractContextManager[None]:
    """Stop a pipe in a block as soon as a file is there."""

    def look(over: threading.Event) -> None:
        while not over.wait(LOOK_S):
            if file.exists():
                pipe.stop()
                return

    return running_beside("pipe-stop", look)


class SparkPipe:
    """All partitions of a pipe, on the executors of a Spark application.

    Starts Spark, or takes the session of this process. Call from the main thread.

    Args:
        bus: has the streams.
        stream: to read.
        settings: with home and Spark's settings.
        options: of the pipe; ``until="latest"`` is where the stream ends when partitions are dealt.
        master: of Spark.
        notice: takes a sentence about the pipe, from any thread.
        clock: for waiting.

    Raises:
        InvalidInputError: an option does not fit the stream, or what it was read as before.
        NotOwnerError: another process reads one of the partitions under this name.
        UnavailableError: Spark does not start.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        settings: Settings,
        options: PipeOptions,
        master: str,
        notice: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._bus, self._stream, self._settings = bus, stream, settings
        self._options, self._notice, self._clock = options, notice, clock
        self._files = Files()
        self._results: dict[int, PartitionResult] = {}
        self._asked = threading.Event()
        self._stop_file: Path | None = None
        self._failures = 0
        self._owner_wait = Deadline(clock, OWNER_S)
        self._open_new()
        name, log = f"headrace pipe {options.name}", settings.home / "logs" / "spark.log"
        self._keeps_session = has_session()
        self._context = build_context(master, name, log, settings.spark.conf, slots_only=True)

    def stop(self) -> None:
        """Let each client acknowledge what it has, and end; from any thread or signal."""
        self._asked.set()
        if (file := self._stop_file) is not None:
            file.touch()

    def run(self) -> list[PartitionResult]:
        """Feed clients until all partitions are at their end, or the pipe is stopped.

        Returns:
            What became of each partition. Rows of slots that were lost are not counted.

        Raises:
            ClientFailedError: clients of a partition fail after all restarts; others were stopped.
            HeadraceError: the bus, the disk or Spark does.
            KeyboardInterrupt: it came while this waited; clients were killed.
        """
        try:
            while True:
                slots = self._dealt()
                failed = self._round(slots)
                if failed is not None:
                    self._bear(failed)
                if self._asked.is_set() or not self._left:
                    return [one for _, one in sorted(self._results.items())]
                if failed is not None:
                    self._asked.wait(SETTLE_S)
                self._open_new()
        finally:
            self.close()

    def close(self) -> None:
        """End the Spark application, unless it was there before."""
        if self._stop_file is not None:
            self._stop_file.unlink(missing_ok=True)
        if not self._keeps_session:
            self._context.stop()

    @property
    def _left(self) -> list[int]:
        """Return the partitions that are not at their end."""
        return [partition for partition, one in self._results.items() if not one.is_ended]

    def _open_new(self) -> None:
        """Make sure of the checkpoints of partitions that are new to this pipe.

        So ``--from`` and ``--reset`` count once, however often slots begin.
        """
        options, is_first = self._options, not self._results
        chosen = options.partitions
        for partition in range(self._stream.spec.partitions) if chosen is None else chosen:
            if partition in self._results:
                continue
            start = options.start if is_first else "earliest"
            place = ConsumerPlace(self._settings.home, options.name, self._stream, partition)
            with PartitionConsumer(place, self._bus, self._files, self._clock) as consumer:
                first = Tail(self._stream, partition).places(start, "--from")[partition]
                at = consumer.open(first, reset=options.reset and is_first)
            self._results[partition] = PartitionResult(partition, at.offset)

    def _dealt(self) -> list[_Slot]:
        """Return slots: executors in turn, as long as they have cores, and partitions in turn."""
        found, left = self._executors(), self._left
        if runs_in_driver(str(self._context.master)):
            places = [found[0]] * self._context.defaultParallelism
        else:
            turns = range(max(executor.cores for executor in found))
            places = [one for turn in turns for one in found if one.cores > turn]
        used = places[: len(left)]
        slots = [_Slot(one, left[n :: len(used)]) for n, one in enumerate(used)]
        where = sorted((p, slot.executor.host) for slot in slots for p in slot.partitions)
        self._notice(
            f"consumer {self._options.name!r} on {self._context.master}, partition "
            + ", ".join(f"{partition} on {host}" for partition, host in where)
        )
        return slots

    def _executors(self) -> list[Executor]:
        """Wait for executors, and a moment longer for all of them to come."""
        deadline = Deadline(self._clock, EXECUTORS_S)
        found, since = executors(self._context), self._clock.monotonic()
        while not found or self._clock.monotonic() < since + SETTLE_S:
            if deadline.expired and not found:
                raise UnavailableError(
                    f"Spark master {self._context.master} has given no executors for "
                    f"{EXECUTORS_S:.0f} s; start a worker, or free its cores"
                )
            if self._asked.wait(SETTLE_S / 10) and found:
                break
            if (now := executors(self._context)) != found:
                found, since = now, self._clock.monotonic()
        return found

    def _round(self, slots: Sequence[_Slot]) -> HeadraceError | None:
        """Run slots until partitions have to be dealt again; return an error that ended one."""
        stop = self._settings.home / PIPES / self._options.name / f"stop-{self._clock.new_id()}"
        self._stop_file = stop
        if self._asked.is_set():
            stop.touch()
        tasks = {
            number: (self._task(number, slot.partitions, stop), [slot.executor.location])
            for number, slot in enumerate(slots)
        }
        group = f"headrace pipe {self._options.name}"
        self._context.setJobGroup(group, group, interruptOnCancel=False)
        begun = self._clock.monotonic()
        try:
            with self._watching(slots, stop):
                found = SlotRDD(self._context, tasks, run_slot).run(list(tasks))
        except SPARK_ERRORS as error:
            reason = f"Spark could not run slots {list(tasks)}: {first_line(error)}"
            return UnavailableError(f"{reason}; Spark's log file has more")
        except BaseException:
            with suppress(*SPARK_ERRORS):
                self._context.cancelJobGroup(group)
            raise
        finally:
            stop.unlink(missing_ok=True)
        if self._clock.monotonic() > begun + OWNER_S:
            self._failures = 0
        results = [_RESULT.decode(data) for data in found]
        for one in results:
            self._add(one.partitions)
        return _error_of([one.error for one in results if one.error is not None])

    def _task(self, number: int, partitions: Sequence[int], stop: Path) -> SlotTask:
        settings = self._settings
        return SlotTask(
            number,
            str(settings.home.absolute()),
            str(settings.bus_dir.absolute()),
            BusOptions.of(settings.bus),
            self._stream.spec.name,
            replace(self._options, partitions=tuple(partitions), start="earliest", reset=False),
            os.getcwd(),
            str(stop.absolute()),
        )

    def _add(self, partitions: Sequence[PartitionResult]) -> None:
        """Add what became of the partitions of a slot to what is known of them."""
        for found in partitions:
            known = self._results[found.partition]
            self._results[found.partition] = PartitionResult(
                found.partition,
                found.offset,
                known.rows + found.rows,
                known.checkpoints + found.checkpoints,
                known.restarts + found.restarts,
                known.dead_letters + found.dead_letters,
                known.output_rows + found.output_rows,
                found.is_ended,
            )

    def _bear(self, error: HeadraceError) -> None:
        """Let slots begin again after an error of a kind that passes.

        Raises:
            HeadraceError: it does not pass.
        """
        if isinstance(error, NotOwnerError) and not self._owner_wait.expired:
            self._notice(f"waiting: {error.message}")
            return
        self._failures += 1
        is_spark = type(error) is UnavailableError and "Spark" in error.message
        if not is_spark or self._failures > MOST_FAILURES or self._asked.is_set():
            raise error
        self._notice(f"{error.message}; partitions are dealt again")

    def _watching(self, slots: Sequence[_Slot], stop: Path) -> AbstractContextManager[None]:
        """Stop slots when executors or partitions have changed, while a block runs them."""

        def watch(over: threading.Event) -> None:
            with suppress(*SPARK_ERRORS):  # the session ends, and so does the block
                while not over.wait(LOOK_S):
                    if change := self._change(slots):
                        self._owner_wait = Deadline(self._clock, OWNER_S)
                        self._notice(f"{change}; partitions are dealt again")
                        stop.touch()
                        return

        return running_beside("pipe-watch", watch)

    def _change(self, slots: Sequence[_Slot]) -> str:
        """Say what has changed that partitions have to be dealt again for."""
        if self._options.partitions is None and self._options.until is None:
            with suppress(HeadraceError):  # slots find what is wrong with the stream
                self._stream.ends()
            if self._stream.spec.partitions > len(self._results):
                return "partitions were added"
        if runs_in_driver(str(self._context.master)):
            return ""
        alive = executors(self._context)
        gone = {one.executor for one in slots} - set(alive)
        if gone:
            return f"executor on {', '.join(sorted(one.host for one in gone))} is gone"
        if len(slots) < min(len(self._left), sum(one.cores for one in alive)):
            return "executors have come"
        return ""


_RESULT = msgspec.json.Decoder(SlotResult)


@dataclass(frozen=True)
class _Slot:
    """The partitions that one core reads."""

    executor: Executor
    partitions: Sequence[int]


def _error_of(failures: Sequence[SlotFailure]) -> HeadraceError | None:
    """Return the error to raise for slots that failed: one that stays before one that passes."""
    errors = [slot_error(SlotReport(0, "", "", 0, error=one)) for one in failures]
    errors.sort(key=lambda error: isinstance(error, NotOwnerError))
    for error in errors:
        if isinstance(error, OffsetGoneError):
            error.also = GONE_ADVICE
    return errors[0] if errors else None
