"""Events of Nexmark, the benchmark of an auction house: persons, auctions and bids as tables.

Of 50 events one is a person, three are auctions and 46 are bids; ids, popular sellers, auctions and
bidders, prices and how long an auction lasts are drawn as in the generator of Apache Beam that
Flink's version shares. Event ``n`` is the same however the events are cut, for a seed and a rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

ROUND = 50
"""After so many events the kinds begin again: a person, three auctions, then bids."""

AUCTIONS_FROM, BIDS_FROM = 1, 4
AUCTIONS = BIDS_FROM - AUCTIONS_FROM
FIRST_PERSON = FIRST_AUCTION = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE_PERSONS, OPEN_AUCTIONS = 1_000, 100
LEAD = 10
"""Bids and auctions name so many persons and auctions that are still to come."""

POPULAR_EVERY = 100
"""One person and one auction of so many is popular for a while."""

BLOCK = 200
"""Rounds that are drawn together, from a generator of their own."""

BEGIN_MS = 1_700_000_000_000

_TIME = pa.timestamp("us", "UTC")
PERSON = pa.schema(
    [
        *(("id", pa.int64()), ("name", pa.string()), ("emailAddress", pa.string())),
        *(("creditCard", pa.string()), ("city", pa.string()), ("state", pa.string())),
        *(("dateTime", _TIME), ("extra", pa.string())),
    ]
)
AUCTION = pa.schema(
    [
        *(("id", pa.int64()), ("itemName", pa.string()), ("description", pa.string())),
        *(("initialBid", pa.int64()), ("reserve", pa.int64()), ("dateTime", _TIME)),
        *(("expires", _TIME), ("seller", pa.int64()), ("category", pa.int64())),
        ("extra", pa.string()),
    ]
)
BID = pa.schema(
    [
        *(("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64())),
        *(("channel", pa.string()), ("url", pa.string())),
        *(("dateTime", _TIME), ("extra", pa.string())),
    ]
)
STREAMS = {"person": PERSON, "auction": AUCTION, "bid": BID}

QUERIES = Path(__file__).parent / "nexmark_sql"
"""``qN.sql`` is an app, ``duckdb/qN.sql`` the query in DuckDB that has the same results."""

CHANGING = {
    "q4": ("category",),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank_number"),
}
"""Queries whose results follow each other: the columns by which the last row counts."""

SIDE_INPUT = pa.table({"key": range(10_000), "value": [f"value {key}" for key in range(10_000)]})
"""What q13 joins with, as stream ``side_input``."""

_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_OTHER_CHANNELS = 10_000


class NexmarkEvents(NamedTuple):
    """Tables of events; the fields are named as the streams."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


def make_events(first: int, count: int, *, rate: int = 1_000, seed: int = 0) -> NexmarkEvents:
    """Return events by their numbers.

    Args:
        first: number of the first event; a multiple of 50.
        count: how many events; a multiple of 50.
        rate: events in a second of event time; event time has milliseconds, so up to 1,000 no two
            are at the same time.
        seed: for other values in the same order.

    Returns:
        A table of each kind, in the order of event time.
    """
    if first % ROUND or count % ROUND:
        raise ValueError(f"first {first} and count {count} must be multiples of {ROUND}")
    begin, end = first // ROUND, (first + count) // ROUND
    found = []
    for block in range(begin // BLOCK, -(-end // BLOCK)):
        low, high = max(begin, block * BLOCK), min(end, (block + 1) * BLOCK)
        tables = _Block(block, rate, seed).tables()
        per_round = (1, AUCTIONS, ROUND - BIDS_FROM)
        cut = [
            table.slice((low - block * BLOCK) * rows, (high - low) * rows)
            for table, rows in zip(tables, per_round, strict=True)
        ]
        found.append(cut)
    schemas = STREAMS.values()
    if not found:
        return NexmarkEvents(*(schema.empty_table() for schema in schemas))
    return NexmarkEvents(*(pa.concat_tables(parts) for parts in zip(*found, strict=True)))


def query_names() -> list[str]:
    """Return the names of all queries, in the order of their numbers."""
    return sorted((path.stem for path in QUERIES.glob("*.sql")), key=lambda name: int(name[1:]))


class _Block:
    """The events of ``BLOCK`` rounds."""

    def __init__(self, number: int, rate: int, seed: int) -> None:
        self._dice = np.random.default_rng((seed, number))
        self._rate = rate
        self._rounds = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.int64)

    def tables(self) -> NexmarkEvents:
        person = self._persons()
        auction = self._auctions()
        return NexmarkEvents(person, auction, self._bids())

    def _numbers(self, offsets: range) -> Ints:
        """Return the numbers of all events at these places of the rounds."""
        starts = np.repeat(self._rounds * ROUND, len(offsets))
        return starts + np.tile(np.array(offsets, dtype=np.int64), len(self._rounds))

    def _at_us(self, numbers: Ints) -> Ints:
        return BEGIN_MS * 1_000 + numbers * 1_000_000 // self._rate

    def _below(self, limit: int | Ints, count: int) -> Ints:
        return np.asarray(self._dice.integers(0, limit, count), dtype=np.int64)

    def _is_rare(self, one_of: int, count: int) -> npt.NDArray[np.bool_]:
        return np.equal(self._below(one_of, count), 0)

    def _letters(
        self, size: int, count: int, letters: str = "abcdefghijklmnopqrstuvwxyz"
    ) -> pa.Array:
        """Return texts of this size."""
        known = np.frombuffer(letters.encode(), dtype=np.uint8)
        drawn = known[self._dice.integers(0, len(known), size * count, dtype=np.uint8)]
        offsets = np.arange(0, size * count + 1, size, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(drawn)]
        return pa.Array.from_buffers(pa.string(), count, buffers)

    def _one_of(self, texts: tuple[str, ...], count: int) -> pa.Array:
        return pa.array(texts).take(pa.array(self._below(len(texts), count)))

    def _persons_near(self, rounds: Ints) -> Ints:
        """Return persons that are active after so many rounds, or soon will be."""
        known = rounds + 1
        active = np.minimum(known, ACTIVE_PERSONS)
        return FIRST_PERSON + known - active + self._below(active + LEAD, len(rounds))

    def _popular_or_near(self, rounds: Ints, beside: int) -> Ints:
        """Return for three of four the popular person, or the one so many beside it."""
        popular = FIRST_PERSON + rounds // POPULAR_EVERY * POPULAR_EVERY + beside
        is_rare = self._is_rare(4, len(rounds))
        return np.where(is_rare, self._persons_near(rounds), popular)

    def _prices(self, count: int) -> Ints:
        return np.round(10 ** (self._dice.random(count) * 6) * 100).astype(np.int64)

    def _persons(self) -> pa.Table:
        numbers = self._numbers(range(AUCTIONS_FROM))
        count = len(numbers)
        first, last = self._one_of(_FIRST_NAMES, count), self._one_of(_LAST_NAMES, count)
        mails = _joined(self._letters(7, count), "@", self._letters(5, count), ".com")
        digits = [self._letters(4, count, "0123456789") for _ in range(4)]
        cards = _joined(digits[0], " ", digits[1], " ", digits[2], " ", digits[3])
        columns = [
            *(pa.array(FIRST_PERSON + self._rounds), _joined(first, " ", last), mails, cards),
            *(self._one_of(_CITIES, count), self._one_of(_STATES, count)),
            *(pa.array(self._at_us(numbers), _TIME), self._letters(100, count)),
        ]
        return pa.Table.from_arrays(columns, schema=PERSON)

    def _auctions(self) -> pa.Table:
        numbers = self._numbers(range(AUCTIONS_FROM, BIDS_FROM))
        rounds, count = numbers // ROUND, len(numbers)
        ids = FIRST_AUCTION + rounds * AUCTIONS + numbers % ROUND - AUCTIONS_FROM
        at, bids = self._at_us(numbers), self._prices(count)
        ahead = self._at_us(numbers + OPEN_AUCTIONS * ROUND // AUCTIONS) - at
        lasts = 1_000 * (1 + self._below(np.maximum(ahead // 1_000 * 2, 1), count))
        columns = [
            *(pa.array(ids), self._letters(20, count), self._letters(100, count)),
            *(pa.array(bids), pa.array(bids + self._prices(count))),
            *(pa.array(at, _TIME), pa.array(at + lasts, _TIME)),
            pa.array(self._popular_or_near(rounds, 0)),
            pa.array(FIRST_CATEGORY + self._below(CATEGORIES, count)),
            self._letters(250, count),
        ]
        return pa.Table.from_arrays(columns, schema=AUCTION)

    def _bids(self) -> pa.Table:
        numbers = self._numbers(range(BIDS_FROM, ROUND))
        rounds, count = numbers // ROUND, len(numbers)
        last = rounds * AUCTIONS + AUCTIONS - 1
        popular = last // POPULAR_EVERY * POPULAR_EVERY
        oldest = np.maximum(last - OPEN_AUCTIONS, 0)
        near = oldest + self._below(last - oldest + 1 + LEAD, count)
        auctions = FIRST_AUCTION + np.where(self._is_rare(2, count), near, popular)
        channels, urls = self._channels(count)
        columns = [
            *(pa.array(auctions), pa.array(self._popular_or_near(rounds, 1))),
            *(pa.array(self._prices(count)), channels, urls),
            *(pa.array(self._at_us(numbers), _TIME), self._letters(30, count)),
        ]
        return pa.Table.from_arrays(columns, schema=BID)

    def _channels(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Return where bids come from: half from four channels, the others from many."""
        pages = [self._letters(5, count, "abcdefghijklmnopqrstuvwxyz_") for _ in range(3)]
        paths = _joined(pages[0], "/", pages[1], "/", pages[2])
        plain = _joined("https://www.nexmark.com/", paths, "/item.htm?query=1")
        number = self._below(_OTHER_CHANNELS, count)
        text = pa.array(number).cast(pa.string())
        marked = _joined(plain, "&channel_id=", text)
        has_mark = pa.array(~self._is_rare(10, count))
        is_known = pa.array(self._is_rare(2, count))
        other = pc.if_else(has_mark, marked, plain)
        channels = pc.if_else(is_known, self._one_of(_CHANNELS, count), _joined("channel-", text))
        return channels, pc.if_else(is_known, plain, other)


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
