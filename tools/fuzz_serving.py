"""Looks for bytes that what `headrace serve` reads cannot take: `python tools/fuzz_serving.py`.

    pip install atheris
    python tools/fuzz_serving.py CORPUS -max_total_time=600

CORPUS is a folder, in which what reaches new code is kept; the options are those of libFuzzer. The
first byte of an input says in which pieces the others come. It fails where a session raises,
answers with what is no reply, gives something away before the password, or where the pieces change
what is answered.
"""

from __future__ import annotations

import sys

import atheris
import pyarrow as pa

with atheris.instrument_imports(include=["headrace.serving"]):
    from headrace.clock import SystemClock
    from headrace.serving.entries import MemoryEntries
    from headrace.serving.redis_session import RedisSession, ServerFacts
    from headrace.serving.resp import RequestLimits
    from headrace.serving.rows import ColumnRows, encode_rows
    from headrace.serving.table import ServedTable, Tables, TableVersion

CLOCK = SystemClock()
SECRET = b"Oslo"
LIMITS = RequestLimits(request_bytes=4096, arguments=64)
CHANGING = (b"INFO", b"SCAN", b"HR.")
"""Answers that have a time or a random number in them."""


def table() -> ServedTable:
    """Return a table of some rows."""
    shape = ColumnRows(
        pa.schema([("id", pa.string())]), pa.schema([("n", pa.int64()), ("city", pa.string())])
    )
    found = ServedTable("t", b"t:", shape, CLOCK)
    entries = MemoryEntries()
    ids = pa.array(["a", "b", "a c", "a\0b", ""])
    values = {"n": pa.array(range(5)), "city": pa.array([SECRET.decode(), None, "Rome", "", "x"])}
    entries.load(*encode_rows([ids], values))
    found.swap(entries, TableVersion(7, 0, "fuzz"))
    return found


TABLES = Tables([table()])


def answers(data: bytes, step: int, password: str) -> bytes:
    """Return what a new client is answered to data that comes in pieces of a size."""
    client = RedisSession(ServerFacts(TABLES, CLOCK, password, LIMITS), 1)
    found = b""
    for at in range(0, len(data), step):
        answer = client.feed(data[at : at + step])
        if answer and (answer[:1] not in b"+-:$*%_" or not answer.endswith(b"\r\n")):
            raise AssertionError(f"no reply: {answer!r}")
        found += answer
        if client.is_over:
            break
    return found


def one_input(data: bytes) -> None:
    """Try an input."""
    if not data:
        return
    step, rest = 1 + data[0] % 32, data[1:]
    whole, parts = answers(rest, max(1, len(rest)), ""), answers(rest, step, "")
    if not any(word in rest.upper() for word in CHANGING) and whole != parts:
        raise AssertionError(f"{whole!r} at once, {parts!r} in pieces of {step}")
    if SECRET in answers(rest, step, "of-the-fuzzer") and SECRET not in rest:
        raise AssertionError("answered without the password")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
