"""``headrace pipe`` with real clients: each record at least once and in order, output once."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace, refused
from tests.support.limits import limit
from tests.support.processes import Started, is_alive, kill, until

from headrace.bus import FileBus, Stream, StreamSpec
from headrace.testing import call_at, crash_at

SPEC = StreamSpec("orders", 1, pa.schema([("id", pa.int64()), ("user", pa.string())]))
COPY = StreamSpec("copy", 2, SPEC.schema)
TEE = ("tee", "-a", "seen")
"""Acknowledges by its echo, and keeps what it was sent, maybe after it acknowledged."""

ONCE = ("--until", "latest", "--restart-delay", "0.01")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with ten orders, in a folder where clients write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    with opened(tmp_path / "home") as bus:
        bus.create(SPEC)
        bus.create(COPY)
    add(tmp_path / "home", range(10))
    return tmp_path / "home"


def opened(home: Path) -> FileBus:
    return FileBus(home / "bus")


def add(home: Path, ids: range, partition: int = 0) -> None:
    rows = [{"id": number, "user": f"u{number}"} for number in ids]
    with opened(home) as bus:
        bus.stream("orders").append(partition, pa.RecordBatch.from_pylist(rows, SPEC.schema))


def values(stream: Stream, column: str) -> list[Any]:
    parts = [
        part.batch.column(column).to_pylist()
        for partition in range(stream.spec.partitions)
        for part in stream.read(partition, stream.begins()[partition])
    ]
    return [value for part in parts for value in part]


def in_stream(home: Path, name: str, column: str = "id") -> list[Any]:
    with opened(home) as bus:
        return values(bus.stream(name), column)


def seen() -> list[Any]:
    """What ``TEE`` was sent: ids of rows, and checkpoints as lists."""
    found = [json.loads(line) for line in Path("seen").read_text().splitlines()]
    return [one if isinstance(one, list) else one["id"] for one in found]


def seen_ids() -> list[int]:
    return [one for one in seen() if not isinstance(one, list)]


def pipe(*words: object, code: int = 0) -> str:
    """Run a pipe over the orders to their end; return what it says on stderr."""
    ran = headrace("pipe", "--stream", "orders", *words)
    assert ran.code == code, ran.err
    return ran.err


def at(home: Path, *words: str) -> list[int]:
    """The offset of each partition as ``--status`` shows it."""
    lines = done("pipe", "--stream", "orders", "--status", "--json", *words).splitlines()
    return [json.loads(line)["offset"] for line in lines]


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


KEEPER = shell('while read -r line; do echo "$line" >>seen; echo "$line"; done')
"""Does the same, but acknowledges only what it has kept."""


def loop(body: str) -> tuple[str, ...]:
    """A client that acknowledges, and does something for each row."""
    return shell(
        f"while read -r line; do case $line in '['*) echo \"$line\";; *) {body};; esac; done"
    )


def in_order_at_least_once(found: list[int], count: int) -> bool:
    """Say whether each restart goes back to a row that was there, and none was left out."""
    steps = pairwise(found)
    return [*dict.fromkeys(found)] == [*range(count)] and all(b <= a + 1 for a, b in steps)


def test_each_span_ends_with_a_request(home: Path) -> None:
    told = pipe("--every-rows", 4, *ONCE, "--", *TEE)

    first = [0, 1, 2, 3, ["checkpoint", 4]]
    assert seen() == [*first, 4, 5, 6, 7, ["checkpoint", 8], 8, 9, ["checkpoint", 10]]
    assert at(home) == [10]
    assert "partition 0: 10 rows, 3 checkpoints, up to 10" in told


def test_a_span_ends_after_bytes(home: Path) -> None:
    pipe("--every-bytes", 25, *ONCE, "--", *TEE)

    assert seen()[:5] == [0, 1, ["checkpoint", 2], 2, 3]  # 21 bytes each


def test_a_span_of_each_format_ends_after_bytes(home: Path) -> None:
    pipe("--format", "raw", "--every-bytes", 7, *ONCE, "--", *TEE)
    told = pipe(
        *("--name", "other", "--format", "arrow", "--every-bytes", 60, *ONCE),
        *("--", sys.executable, "-c", ARROW),
    )

    lines = Path("seen").read_text().splitlines()
    spans = [[*group] for is_row, group in groupby(lines, lambda line: line[0] == "u") if is_row]
    assert spans[:2] == [["u0", "u1", "u2"], ["u3", "u4", "u5"]]  # 3 bytes each
    batches = [json.loads(line) for line in told.splitlines() if line.startswith("[")]
    assert len(batches) > 1
    assert [number for batch in batches for number in batch] == [*range(10)]


def test_a_pipe_continues_at_its_checkpoint(home: Path) -> None:
    pipe("--until", 6, "--", *TEE)
    add(home, range(10, 12))
    pipe(*ONCE, "--from", "latest", "--", *TEE)
    pipe(*ONCE, "--name", "other", "--from", 11, "--", *TEE)
    pipe(*ONCE, "--reset", "--from", 10, "--", *TEE)

    assert seen_ids() == [*range(12), 11, 10, 11]
    assert at(home) == [12]
    assert at(home, "--name", "other") == [12]


def test_raw_lines_are_values(home: Path) -> None:
    with opened(home) as bus:
        rows = pa.RecordBatch.from_pylist([{"id": 10}, {"id": 11, "user": ""}], SPEC.schema)
        bus.stream("orders").append(0, rows)
    pipe("--format", "raw", "--every-rows", 9, *ONCE, "--", *TEE)

    lines = Path("seen").read_text().split("\n")
    assert [*lines[:9], *lines[10:13]] == [*(f"u{n}" for n in range(10)), "", ""]
    prefix, offset = lines[9].split(" ")
    assert (len(prefix), offset) == (len("checkpoint-") + 16, "9")
    assert lines[13:] == [f"{prefix} 12", ""]


ARROW = """
import sys, pyarrow as pa
while sys.stdin.buffer.peek(1):
    with pa.ipc.open_stream(sys.stdin.buffer) as reader:
        rows = reader.read_all()
        print(rows.column("id").to_pylist(), file=sys.stderr)
        print(reader.schema.metadata[b"headrace.checkpoint"].decode(), flush=True)
"""


def test_each_span_is_an_arrow_stream(home: Path) -> None:
    told = pipe("--format", "arrow", "--every-rows", 6, *ONCE, "--", sys.executable, "-c", ARROW)

    assert "[0, 1, 2, 3, 4, 5]\n[6, 7, 8, 9]\n" in told
    log = (home / "logs" / "pipe-orders.log").read_text()
    assert "partition 0: [6, 7, 8, 9]\n" in log


def test_exit_code_zero_acknowledges_a_span(home: Path) -> None:
    ran = headrace("pipe", "--stream", "orders", "--ack", "exit", "--every-rows", 4, *ONCE)
    assert "no command is given" in ran.err

    command = shell("wc -l; grep -o '.id.:4' || true")
    ran = headrace(
        "pipe", "--stream", "orders", "--ack", "exit", "--every-rows", 4, *ONCE, "--", *command
    )
    assert ran.out.split() == ["4", "4", "2"]
    assert at(home) == [10]


def test_a_client_of_one_span_that_fails_is_run_again(home: Path) -> None:
    script = "cat >>seen; [ $HEADRACE_OFFSET = 4 ] && [ ! -e again ] && touch again && exit 9; true"
    told = pipe("--ack", "exit", "--every-rows", 4, *ONCE, "--", *shell(script))

    assert seen() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9]
    assert "client exited with 9; restart 1 of 3 at offset 4" in told


def test_compacted_offsets_stay(home: Path) -> None:
    with opened(home) as bus:
        stream = bus.create(StreamSpec("latest", 1, SPEC.schema, key=("user",), compact=True))
        for number in range(6):
            rows = [{"id": number, "user": f"u{number % 3}"}]
            stream.append(0, pa.RecordBatch.from_pylist(rows, SPEC.schema))
        stream.compact(0)
    headrace("pipe", "--stream", "latest", "--every-rows", 2, *ONCE, "--", *TEE)

    assert seen() == [3, 4, ["checkpoint", 5], 5, ["checkpoint", 6]]


POINTS = ("pipe.acknowledged", "pipe.output_staged", "pipe.checkpointed", "pipe.appended")


@pytest.mark.parametrize("point", POINTS)
def test_output_is_once_whichever_step_the_pipe_dies_at(home: Path, point: str) -> None:
    words = ("pipe", "--stream", "orders", "--every-rows", 4, "--output", "copy", *ONCE)
    with crash_at(point, 2):
        headrace(*words, "--", *KEEPER)
    pipe(*words[3:], "--", *KEEPER)

    assert in_order_at_least_once(seen_ids(), 10)
    assert in_stream(home, "copy") == [*range(10)]
    assert [p for p in (home / "pipes" / "orders").iterdir() if p.suffix == ".out"][1:] == []


def test_output_is_that_of_the_try_which_was_committed(home: Path) -> None:
    """A client may print something else the second time, and at the end of its stdin."""
    script = """{ while read -r line; do case $line in
        '['*) [ -e died ] || { touch died; kill -9 $$; }; echo "$line";;
        *) printf '{"id":%s}\\n' $([ -e died ] && echo 2 || echo 1);; esac; done; echo '{"id":3}'; }
    """
    told = pipe("--output", "copy", "--every-rows", 5, *ONCE, "--", *shell(script))

    assert in_stream(home, "copy") == [*[2] * 10, 3]
    assert "client was killed by signal 9; restart 1 of 3 at offset 0" in told


def test_a_client_that_dies_gets_its_span_again(home: Path) -> None:
    script = """n=0; while read -r line; do echo "$line" | tee -a seen; n=$((n+1))
        [ $n = 7 ] && [ ! -e died ] && touch died && kill -9 $$; done; true"""
    pipe("--every-rows", 4, *ONCE, "--", *shell(script))

    assert seen_ids() == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9]


def test_a_client_that_exits_with_zero_wants_no_more(home: Path) -> None:
    told = pipe("--every-rows", 4, "--", "head", "-n", 5)

    assert "client exited with 0, which ends the partition" in told
    assert at(home) == [4]


def test_a_client_that_does_not_answer_is_killed(home: Path) -> None:
    told = pipe("--timeout", 0.1, "--restarts", 1, *ONCE, "--", "sleep", 60, code=124)

    assert "client did not acknowledge within 0.1 s: expected the line" in told
    assert "needs --ack exit; restart 1 of 1 at offset 0" in told
    assert "error HR118: " in told


def test_what_is_waited_for_is_said_until_a_client_has_acknowledged(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, pipe_wait_s=0.05)
    slow = "while read -r line; do case $line in '['*) sleep 0.3; echo \"$line\";; esac; done"
    told = pipe("--every-rows", 4, *ONCE, "--", *shell(slow))

    assert told.count("waiting for the client to acknowledge") == 1
    assert 'by the line ["checkpoint",4] on its stdout' in told
    assert "needs --ack exit" in told


def test_a_client_that_reads_nothing_is_killed(home: Path) -> None:
    with opened(home) as bus:
        rows = [{"id": 1, "user": "x" * 3_000_000}]
        bus.stream("orders").append(0, pa.RecordBatch.from_pylist(rows, SPEC.schema))
    told = pipe("--timeout", 0.1, "--restarts", 0, *ONCE, "--", "sleep", 60, code=124)

    assert "client read nothing for 0.1 s" in told


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo '[\"checkpoint\",99]'", "client acknowledged what was not asked for: ["),
        ("echo nonsense", "client printed what does not fit: output line 1: found nonsense"),
        ('echo \'{"id":"x"}\'', "column 'id': found \"x\", expected int64"),
    ],
)
def test_nonsense_on_stdout_is_a_failure(home: Path, body: str, problem: str) -> None:
    told = pipe("--output", "copy", "--restarts", 0, *ONCE, "--", *loop(body), code=1)

    assert problem in told
    assert in_stream(home, "copy") == []


def test_a_client_that_prints_without_end_is_stopped(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, pipe_output_bytes=1_000_000)
    endless = loop("case $line in *:6,*) exec yes '{\"id\":1}';; esac")
    told = pipe("--output", "copy", "--restarts", 0, *ONCE, "--", *endless, code=1)

    assert "client printed more than 1,000,000 bytes in one span" in told
    assert "it is at offset 6 of partition 0" in told
    assert in_stream(home, "copy") == []


POISON = loop('echo "$line" >>seen; case $line in *:6,*) exit 3;; esac')


def test_a_record_that_kills_clients_is_found(home: Path) -> None:
    told = pipe("--restarts", 1, *ONCE, "--", *POISON, code=3)

    assert "client exited with 3: because of one record" in told
    assert "it is at offset 6 of partition 0 of stream 'orders'" in told
    assert at(home) == [6]


def test_a_record_that_kills_clients_is_set_aside(home: Path) -> None:
    told = pipe("--restarts", 0, "--on-poison", "dead-letter", *ONCE, "--", *POISON)

    assert "record at offset 6 went to orders.pipe.dead" in told
    assert in_order_at_least_once(seen_ids(), 10)
    [letter] = done("dlq", "show", "orders.pipe", "--json").splitlines()
    assert json.loads(letter)["record"] == {"id": 6, "user": "u6"}
    done("dlq", "redrive", "orders.pipe")
    assert in_stream(home, "orders")[-1] == 6
    assert at(home) == [10]


def test_a_record_that_was_set_aside_keeps_its_bytes(home: Path) -> None:
    bad = b"\x00\xff{}\n'\"\\ \xf0\x9f"
    schema = pa.schema([("n", pa.int64()), ("data", pa.binary())])
    with opened(home) as bus:
        bus.create(StreamSpec("blobs", 1, schema))
        rows = [{"n": 0, "data": b"ok"}, {"n": 1, "data": bad}, {"n": 2, "data": None}]
        bus.stream("blobs").append(0, pa.RecordBatch.from_pylist(rows, schema))
    fails = loop("case $line in *:1,*) kill -9 $$;; esac")
    words = ("--restarts", 0, "--on-poison", "dead-letter", *ONCE, "--", *fails)
    assert headrace("pipe", "--stream", "blobs", *words).code == 0
    [letter] = done("dlq", "show", "blobs.pipe", "--json").splitlines()
    done("dlq", "redrive", "blobs.pipe")

    told = json.loads(letter)
    assert (told["offset"], told["code"]) == (1, "HR118")
    assert told["message"] == "client was killed by signal 9"
    assert in_stream(home, "blobs", "data") == [b"ok", bad, None, bad]


def test_a_letter_is_once_though_the_pipe_dies_behind_it(home: Path) -> None:
    words = ("--restarts", 0, "--on-poison", "dead-letter", "--every-rows", 1, *ONCE, "--", *POISON)
    with crash_at("bus.index_written", 1):
        headrace("pipe", "--stream", "orders", *words)
    pipe(*words)

    assert in_stream(home, "orders.pipe.dead", "offset") == [6]


def test_too_many_records_in_a_row_end_the_pipe(home: Path) -> None:
    words = ("--restarts", 0, "--on-poison", "dead-letter", "--max-poison", 2)
    told = pipe(*words, *ONCE, "--", *loop("exit 4"), code=4)

    assert "2 records in a row were set aside, so it seems not to be them" in told
    assert in_stream(home, "orders.pipe.dead", "offset") == [0, 1]


def test_a_value_of_several_lines_is_no_raw_line(home: Path) -> None:
    with opened(home) as bus:
        rows = [{"id": 10, "user": "a\nb"}, {"id": 11, "user": "c"}]
        bus.stream("orders").append(0, pa.RecordBatch.from_pylist(rows, SPEC.schema))
    told = pipe("--format", "raw", *ONCE, "--", *TEE, code=1)
    assert "has several lines, which --format json can express" in told
    pipe("--format", "raw", "--on-poison", "dead-letter", *ONCE, "--", *TEE)

    assert at(home) == [12]
    assert in_stream(home, "orders.pipe.dead", "offset") == [10]


def test_a_client_that_fails_without_records_is_not_blamed_on_one(home: Path) -> None:
    words = ("--restarts", 1, "--on-poison", "dead-letter", *ONCE)
    told = pipe(*words, "--", *shell("echo no such table >&2; exit 7"), code=7)

    assert "client exited with 7, also without any record, 2 times in a row" in told
    assert "no such table\n" in told


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 3", 3, "client exited with 3"),
        ("kill -9 $$", 137, "client was killed by signal 9"),
        ("kill -TERM $$", 143, "client was killed by signal 15"),
        ("exec ./nothing", 127, "client exited with 127"),
    ],
)
def test_the_code_is_that_of_the_client(home: Path, script: str, code: int, reason: str) -> None:
    assert reason in pipe("--restarts", 0, *ONCE, "--", *shell(script), code=code)
    assert at(home) == [0]


def test_the_log_has_what_clients_say_and_keeps_the_newest(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, pipe_log_bytes=400_000)
    says = loop("head -c 150000 /dev/zero | tr '\\0' e >&2; echo $line >&2")
    told = pipe(*ONCE, "--", *says)

    logs = home / "logs"
    newest, former = logs / "pipe-orders.log", logs / "pipe-orders.log.1"
    assert "partition 0: " in newest.read_text()
    assert '{"id":9,"user":"u9"}\n' in newest.read_text()
    assert '{"id":9,"user":"u9"}\n' in told
    assert max(newest.stat().st_size, former.stat().st_size) < 700_000
    assert newest.stat().st_mode & 0o077 == 0


def test_the_first_ctrl_c_ends_with_a_checkpoint(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = pipe("--", *loop("case $line in *:9,*) kill -INT $PPID;; esac"), code=130)

    assert at(home) == [10]
    assert "10 rows, 1 checkpoint" in told
    assert "waiting for a last checkpoint; Ctrl-C again kills clients" in capfd.readouterr().err


def test_the_second_ctrl_c_kills(home: Path) -> None:
    told = pipe("--", *loop("kill -INT $PPID; sleep 0.2; kill -INT $PPID; sleep 60"), code=130)

    assert at(home) == [0]
    assert "Traceback" not in told


def test_a_partition_that_is_added_gets_a_client(home: Path) -> None:
    def grow() -> None:
        done("bus", "configure", "orders", "--partitions", 2)
        add(home, range(10, 12), partition=1)

    ends = loop('case $line in *:11,*) kill -INT $PPID;; esac; echo "$line" >>seen')
    with call_at("pipe.checkpointed", grow):
        pipe("--every-rows", 10, "--", *ends, code=130)

    assert seen_ids() == [*range(12)]
    assert at(home) == [10, 2]


def test_a_pipe_that_is_killed_takes_its_client_with_it(home: Path) -> None:
    """Meanwhile no other reads its partition; then the next one continues."""
    started = Started(Path.cwd(), home)
    script = "echo $$ >client; cat >>seen; sleep 60"
    try:
        process = started.start("pipe", "--stream", "orders", "--", *shell(script))
        until(lambda: Path("client").exists(), "the client")
        holder = refused("pipe", "--stream", "orders", "--", "cat", code=4)
        kill(process.pid)
        until(lambda: not is_alive(int(Path("client").read_text())), "the end of the client")
    finally:
        started.end()
    pipe(*ONCE, "--", *TEE)

    assert f"is read by process {process.pid} on host {os.uname().nodename}" in holder
    assert seen_ids()[-10:] == [*range(10)]


def test_rows_that_are_gone_are_an_error(home: Path) -> None:
    pipe("--until", 2, "--", *TEE)
    with opened(home) as bus:
        bus.stream("orders").trim(0, 10)
    told = pipe(*ONCE, "--", *TEE, code=1)

    assert "error HR103: stream 'orders' partition 0: offset 2 is gone, the oldest kept" in told
    assert "next: or skip what is gone: --reset --from earliest" in told


def test_another_stream_of_the_name_is_refused(home: Path) -> None:
    pipe(*ONCE, "--", *TEE)
    with opened(home) as bus:
        bus.remove("orders")
        bus.create(SPEC)

    assert "error HR116: " in pipe(*ONCE, "--", *TEE, code=1)
    pipe(*ONCE, "--reset", "--", *TEE)
    assert at(home) == [0]
    told = refused("pipe", "--stream", "copy", "--name", "orders", "--", "cat")
    assert "consumer 'orders' reads stream 'orders', not 'copy'" in told


def test_a_damaged_checkpoint_is_an_error(home: Path) -> None:
    pipe(*ONCE, "--", *TEE)
    file = home / "pipes" / "orders" / "p-00000.json"
    file.write_bytes(file.read_bytes().replace(b"10", b"11"))

    assert "error HR400: " in pipe(*ONCE, "--", *TEE, code=5)


def test_what_is_done_is_shown_as_json(home: Path) -> None:
    ran = headrace("pipe", "--stream", "orders", "--json", *ONCE, "--", *loop("echo $line"))

    assert json.loads(ran.out) == {
        "partition": 0,
        "offset": 10,
        "rows": 10,
        "checkpoints": 1,
        "restarts": 0,
        "dead_letters": 0,
        "output_rows": 0,
        "is_ended": True,
    }
    assert '{"id":3,"user":"u3"}' in ran.err


def test_the_signal_handlers_are_as_before(home: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    pipe(*ONCE, "--", *TEE)

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
