"""Dead letters after the fact: the streams that hold them, and how their records go back."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.bus import Bus, Producer, Stream, StreamSpec
from headrace.errors import InvalidInputError
from headrace.plan.dead_letters import DEAD_SCHEMA, dead_stream
from headrace.records.evolution import with_defaults
from headrace.runtime.dead_letters import from_record

LETTER, PLACE = "letter", "place"
"""Columns that reading adds: a letter's own offset, and the partition that it is in."""


@dataclass
class RedriveResult:
    """What became of letters: by stream, how many records were appended or were there already.

    ``unknown`` letters have no record of a stream, such as those of totals; ``refused`` says why
    a stream did not take a record.
    """

    appended: dict[str, int] = field(default_factory=dict)
    there: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    refused: list[str] = field(default_factory=list)


def dead_letter_streams(bus: Bus) -> list[str]:
    """Return the streams that hold dead letters."""
    return [name for name in bus.names() if bus.stream(name).spec.schema.equals(DEAD_SCHEMA)]


def find_dead_letter_stream(bus: Bus, name: str) -> str:
    """Return the stream of dead letters that a name of a stream or of a job stands for.

    Raises:
        InvalidInputError: there is none; names those that are there.
    """
    known = dead_letter_streams(bus)
    for wanted in (name, dead_stream(name)):
        if wanted in known:
            return wanted
    near = difflib.get_close_matches(dead_stream(name), known, 3) or known[:10]
    there = f"did you mean {' or '.join(map(repr, near))}?" if near else "there are none at all;"
    raise InvalidInputError(
        f"no dead letters of {name!r}; {there} to see them: headrace dlq ls", stream=name
    )


def read_letters(stream: Stream, *, with_records: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield the letters of a stream, oldest first, with the columns ``letter`` and ``place``."""
    names = [name for name in DEAD_SCHEMA.names if with_records or name != "record"]
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin, columns=names):
            rows = part.batch.num_rows
            letters = pa.array(part.offsets)
            places = pa.array(np.full(rows, partition, np.int32))
            columns = [letters, places, *part.batch.columns]
            yield pa.RecordBatch.from_arrays(columns, names=[LETTER, PLACE, *names])


def redrive(
    bus: Bus, name: str, letters: Iterable[pa.RecordBatch], *, dry_run: bool = False
) -> RedriveResult:
    """Append the records of letters to the partitions that they came from.

    A record is appended once, however many letters an epoch wrote of it, and however often it is
    asked for and by whom: the producer of the append is made of the record's place and the epoch.

    Args:
        bus: of all the streams.
        name: stream of the letters.
        letters: from ``read_letters``, any part of them.
        dry_run: append nothing; all that could be is counted as appended.

    Raises:
        UnavailableError: the bus does not answer; call again.
    """
    done = RedriveResult()
    seen: set[tuple[str, Producer]] = set()
    for batch in letters:
        for letter in batch.to_pylist():
            if not letter["is_original"]:
                done.unknown += 1
                continue
            try:
                target = bus.stream(letter["stream"])
                record = _fitted(from_record(letter["record"]), target.spec)
                producer = _producer(name, letter)
                if dry_run:
                    place = letter["stream"], producer
                    is_new = place not in seen
                    seen.add(place)
                else:
                    is_new = _append(target, letter, record, producer)
            except InvalidInputError as error:
                done.refused.append(f"letter {letter[PLACE]}/{letter[LETTER]}: {error}")
                continue
            counts = done.appended if is_new else done.there
            counts[letter["stream"]] = counts.get(letter["stream"], 0) + 1
    return done


def _producer(name: str, letter: dict[str, object]) -> Producer:
    # One of its own for each record: letters may be redriven in any order, and a bus takes what
    # is not above the last sequence of a producer for a duplicate. Several letters may be of one
    # record, such as those of the rows that a flat_map made of it.
    lineage = f"{letter['job']}/{letter['epoch']}/{letter['at']}"
    return Producer(f"redrive/{name}/{letter['partition']}/{letter['offset']}", lineage)


def _append(
    target: Stream, letter: dict[str, object], record: pa.RecordBatch, producer: Producer
) -> bool:
    partition = int(str(letter["partition"]))
    return not target.append(partition, record, producer=producer, sequence=1).duplicate


def _fitted(record: pa.RecordBatch, spec: StreamSpec) -> pa.RecordBatch:
    """Columns that the stream was given since have their default, or null, in older records."""
    record = with_defaults(record, spec.schema, dict(spec.added))
    for column in spec.schema:
        if column.name not in record.schema.names:
            record = record.append_column(column.name, pa.nulls(record.num_rows, column.type))
    return record
