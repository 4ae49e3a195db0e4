"""Looks for bytes that what `headrace serve` reads cannot take: `python tools/fuzz_serving.py`.

    pip install atheris
    python tools/fuzz_serving.py FOLDER -max_total_time=600
    mkdir SMALL
    python tools/fuzz_serving.py SMALL FOLDER -merge=1
    python tools/fuzz_serving.py keep SMALL

FOLDER gets the inputs that are kept, those of `tests/unit/serving/inputs.txt` first, and what
reaches new code; the options are those of libFuzzer. `-merge=1` brings into SMALL those inputs of
FOLDER that reach something which others of them do not. `keep` writes a folder to that file, which
a test replays. The first byte of an input says in which
pieces the others come. It fails where a session raises, answers with what is no reply, gives
something away before the password, or where the pieces change what is answered.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from hashlib import sha1
from pathlib import Path

import pyarrow as pa

atheris = None
with suppress(ImportError):  # a test replays inputs without it
    import atheris

with atheris.instrument_imports(include=["headrace.serving"]) if atheris else nullcontext():
    from headrace.clock import SystemClock
    from headrace.serving import redis_session
    from headrace.serving.entries import MemoryEntries
    from headrace.serving.redis_session import RedisSession, ServerFacts
    from headrace.serving.resp import RequestLimits
    from headrace.serving.rows import ColumnRows, encode_rows
    from headrace.serving.table import ServedTable, Tables, TableVersion

INPUTS = Path(__file__).parent.parent / "tests" / "unit" / "serving" / "inputs.txt"
CLOCK = SystemClock()
redis_session.FEW_BYTES = 0  # short inputs take the way of long ones, too
SECRET, PASSWORD = b"Oslo", b"of-the-fuzzer"
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
    is_known = SECRET in rest or PASSWORD in rest  # it may find the password
    if not is_known and SECRET in answers(rest, step, PASSWORD.decode()):
        raise AssertionError("answered without the password")


def kept_inputs() -> list[bytes]:
    """Return the inputs that are kept."""
    return [bytes.fromhex(line) for line in INPUTS.read_text().split()]


def keep(folder: Path) -> None:
    """Keep the inputs of a folder, the short ones first."""
    found = sorted({one.read_bytes() for one in folder.iterdir()}, key=lambda one: (len(one), one))
    INPUTS.write_text("".join(f"{one.hex()}\n" for one in found if one))


def main() -> None:
    """Fuzz, or keep."""
    if sys.argv[1:2] == ["keep"]:
        keep(Path(sys.argv[2]))
        return
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    is_merge = any(word.startswith("-merge") for word in sys.argv)
    for data in () if is_merge else kept_inputs():
        (folder / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    # libFuzzer runs these words again, in a shell, where it merges.
    atheris.Setup([f"{sys.executable} {sys.argv[0]}", *sys.argv[1:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
