"""What is wrong with a command is told in one message, with a code; nothing else is printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import ALL, headrace

SOURCE = Path(__file__).parents[3] / "src"
MISTAKES = [
    ("init 1st", "'1st' cannot name a project; begin with a letter"),
    ("init data.d", "'data.d' cannot name a project"),
    ("dev shop_jbo.py --once", "no file shop_jbo.py; did you mean shop_job.py?"),
    ("dev shop_job.py --once", "no sample data of stream 'orders'; expected data/orders.jsonl"),
    ("dev shop_job.py --once --data orders=x.csv", "no file x.csv; check --data"),
    ("run shop_jbo.py", "no file shop_jbo.py; did you mean shop_job.py?"),
    ("run shop_job.py:other", "has no job 'other'; expected shop_job.py:shop"),
    ("run shop_job.py --set job.taks=3", "unknown setting job.taks; did you mean job.tasks?"),
    ("run shop_job.py --set job.tasks=many", "found 'many', expected integer"),
    ("run shop_job.py --set tasks", "--set tasks: expected section.key=value"),
    ("run shop_job.py --config none.toml", "none.toml does not exist; name another"),
    ("run shop_job.py --master nonsense", "spark.master is 'nonsense', which Spark does not know"),
    ("run shop_job.py --standalone --master local", "--standalone runs the job without Spark"),
    ("run shop_job.py --join --takeover", "--takeover is for jobs on Spark: processes that share"),
    ("run shop_job.py --join --standby", "--standby is for jobs on Spark: processes that share a"),
    ("run shop_job.py --takeover --standby", "--takeover fences the driver now, and --standby"),
    ("run shop_job.py --supervise --master no --standalone", "--standalone runs the job without"),
    ("run shop_job.py --join --loop query", "--join runs the job without Spark, and --loop is"),
    (
        "run shop_job.py --join --set 'state.durability=backup(30s)'",
        "processes that share a job need state.durability=epoch",
    ),
    ("submit shop_job.py --master local[2]", "run the job with headrace run, or name a cluster"),
    ("submit shop_job.py --master spark://h:1 --deploy-mode cluster", "runs no Python drivers"),
    ("submit shop_jbo.py --master spark://h:7077", "did you mean shop_job.py?"),
    ("submit shop_job.py --master spark://h:7077 --conf job.tasks=2", "settings of Headrace go by"),
    (
        "submit shop_job.py --master spark://h:7077 --environment no.tar",
        "--environment: no file no.tar; name an",
    ),
    ("jobs top shop", "no driver of job 'shop' answers"),
    ("jobs pause shop", "no driver of job 'shop' answers"),
    ("jobs resume shop", "no driver of job 'shop' answers"),
    ("jobs history shp", "no committed epoch of job 'shp'"),
    ("jobs history shop --since soon", "--since 'soon' cannot be read; expected a time such as"),
    ("jobs hot-keys shp", "no committed epoch of job 'shp'"),
    ("jobs accept-clock shp", "no committed epoch of job 'shp'"),
    ("alerts ls shp", "no committed epoch of job 'shp'"),
    ("alerts test --rule late", "no rule 'late' in alerts.rules; found none"),
    ("alerts test --set alerts.webhook=pager", "setting alerts.webhook from --set"),
    ("jobs history shop --last soon", "--last is 'soon'; expected a duration"),
    ("cluster ls", "start one with: headrace cluster up --workers 3"),
    ("cluster kill 0", "no cluster in"),
    ("cluster start 0", "no cluster in"),
    ("cluster down", "no cluster in"),
    ("cluster drain 127.0.0.2", "no host called '127.0.0.2'; the job's hosts are: "),
    ("cluster drain nowhere --job shop", "no host called 'nowhere'; the job's hosts are: "),
    ("jobs restart shop", "job 'shop' does not run; its status is stopped"),
    ("cluster up --workers 0", None),
    ("explain nope:job", "no module 'nope'; the working directory has shop_job"),
    ("bus create a/b --schema a:int64", "'a/b' cannot name a stream"),
    ("bus create new --schema a:int65", "unknown type 'int65'; did you mean int64?"),
    ("bus create new --schema 'a:int64 b:int64'", "expected a comma between columns"),
    ("bus tail orders --where 'user = ada'", "if it is a text, write 'ada'"),
    ("bus create new --schema a:int64 --time b", "event-time column 'b' is not in the schema"),
    ("bus create new --schema a:int64 --key b", "key column 'b' is not in the schema"),
    ("bus create new --like none.parquet", "--like: no file none.parquet; check the path"),
    ("bus create orders --schema a:int64", "stream 'orders' exists"),
    ("bus append order orders.jsonl", "no stream 'order'; did you mean 'orders'?"),
    ("bus append visits orders.jsonl", 'column:type,...", or append with --infer'),
    ("bus append orders none.jsonl", "no file none.jsonl; check the path"),
    ("bus append orders bad.jsonl", "bad.jsonl line 2: column 'n': found \"x\", expected int64"),
    (
        "bus append orders bytes.csv",
        "bytes.csv line 1: found the byte 0xff, expected text in UTF-8",
    ),
    ("bus append orders orders.txt", "the format of .txt is unknown; give --format"),
    ("bus append orders orders.jsonl --partition 7", "has no partition 7; expected 0 to 0"),
    ("bus append new bad.parquet --infer", "bad.parquet cannot be read as Parquet"),
    ("bus tail order", "no stream 'order'; did you mean 'orders'?"),
    ("bus tail orders --from yesterday", "--from 'yesterday' cannot be read"),
    ("bus tail orders --partition 9", "has no partition 9; expected 0 to 0"),
    ("bus tail orders --where 'm > 3'", "--where:1:1: no column 'm'; expected "),
    ("bus tail orders --where 'n >>> 1'", "--where:1:5: this is no SQL that is known here"),
    ("bus tail orders --where 'n > 1; n'", "--where:1:1: expected one expression"),
    ("bus tail orders --where 'sum(n) > 1'", "the aggregate sum cannot be used here"),
    ("bus describe order", "no stream 'order'; did you mean 'orders'?"),
    ("bus trim orders --before whenever", "--before 'whenever' cannot be read"),
    ("bus compact orders", "stream 'orders' is not compacted"),
    ("bus offload orders", "bus.offload_address is not set, so there is nowhere"),
    ("bus alias bought order", "no stream 'order'; did you mean 'orders'?"),
    ("bus alias bought --remove", "no alias 'bought'"),
    ("bus configure orders --retain soon", "--retain is 'soon'; expected a duration"),
    ("bus ls --set a=b", None),
    ("bus mirror orders orders", "a mirror of 'orders' to itself never ends; name another"),
    ("pipe --stream order cat", "no stream 'order'; did you mean 'orders'?"),
    ("pipe --stream orders", "no command is given for the clients"),
    ("pipe --stream orders nocat", "no command 'nocat'; check its name and PATH"),
    ("pipe --stream orders --name a/b cat", "'a/b' cannot name a stream"),
    ("pipe --stream orders --from soon cat", "--from 'soon' cannot be read"),
    ("pipe --stream orders --partition 7 cat", "has no partition 7; expected 0 to 0"),
    ("pipe --stream orders --column n --format raw cat", "found n, expected user; name it with"),
    ("pipe --stream orders --output spnt cat", "no stream 'spnt'; did you mean"),
    ("pipe --stream orders --ack never cat", None),
    ("pipe --stream orders --master nowhere cat", "spark.master is 'nowhere', which Spark does"),
    ("sql check none.sql", "cannot read the SQL app none.sql"),
    ("sql deploy none.sql", "cannot read the SQL app none.sql"),
    ("sql deploy none.sql --rollback", "cannot read the SQL app none.sql"),
    ("sql explain none.sql", "cannot read the SQL app none.sql"),
    ("sql run none.sql --standalone", "cannot read the SQL app none.sql"),
    ("serve", "nothing is given to serve; give --job JOB:STORE"),
    ("serve --job shop", "expected JOB:STORE, such as --job orders:totals"),
    ("serve --job shop:spnt", "no store 'spnt'"),
    ("serve --stream order", "no stream 'order'; did you mean 'orders'?"),
    ("serve --stream orders --key no", "has no columns ['no']"),
    ("serve --stream orders --key user --groups 9", "expected FIRST-LAST, such as 0-255"),
    ("serve --stream orders --key user --host 0.0.0.0", "without a password; give"),
    ("serve --stream orders --key user --processes 2 --http 0", "--http is for one process"),
    ("serve --table vists --key user", "no table 'vists'"),
    ("serve --stream orders --keep tape", None),
    ("explore", 'give one query, such as headrace explore "select count(*) from clicks"'),
    ("explore 'select * from orders' --csv --json", "--csv and --json are two forms of one answer"),
    ("explore 'select * from order'", "no stream 'order' is kept to explore; did you mean"),
    ("explore 'drop table orders'", "expected one query: SELECT ... FROM ..."),
    ("explore 'select 1' --set explore.keep=long", "setting explore.keep from --set"),
    ("ui --host 0.0.0.0", "ui.token_file is not set; write a token into a file"),
    ("ui --set ui.token_file=missing.token", "cannot be read"),
    ("sql serve none.sql", "cannot read the SQL app none.sql"),
    ("sql test none.sql", "cannot read the SQL app none.sql"),
    ("sql query none.sql 'select 1'", "cannot read the SQL app none.sql"),
    ("sql query none.sql 'select 1' --windows open", None),
    ("warehouse describe visit", "no table 'visit' in warehouse"),
    ("warehouse describe visits --days May", "found days 'May', expected a day such as"),
    ("warehouse compact visit", "did you mean 'visits'?"),
    ("warehouse sql 'select x from visits'", "DuckDB: Binder Error"),
    ("warehouse sql 'select 1 from visit'", "DuckDB: Catalog Error"),
    ("warehouse sql 'select 1' --engine hive", None),
    ("warehouse ls --set a=b", "unknown setting a"),
    ("state ls shp", "no committed epoch of job 'shp'"),
    ("state ls shop --epoch 99", "epoch 99 of job 'shop' is not committed; the newest is 2"),
    ("state get shop spnt ann", "job 'shop' has no store 'spnt'; it has spent"),
    ("state get shop spent zoe", "store 'spent' has nothing for key zoe at epoch 2"),
    ("state get shop spent a b", "found a key of 2, expected 1: user (string)"),
    ("state scan shop spent --where 'm > 3'", "--where:1:1: no column 'm'"),
    ("state scan shop spent --prefix a --from b", "give either --prefix, or --from and --before"),
    ("state diff shop spent 1 99", "epoch 99 of job 'shop' is not committed"),
    ("state export shop spent --out none/x.parquet", "no folder"),
    ("state plan shp", "no committed epoch of job 'shp'"),
    ("jobs ls --home shop_job.py", None),
    ("jobs describe shp", "found shop: check the name and --home"),
    ("jobs why shp", "no committed epoch of job 'shp'"),
    ("jobs replay shop --epoch 99", "epoch 99 of job 'shop' is not there yet"),
    ("jobs stop shop", "job 'shop' does not run; its status is stopped"),
    ("jobs savepoint shp", "no committed epoch of job 'shp'"),
    ("jobs savepoints shop --delete none", "does not exist; expected a folder with"),
    ("run shop_job.py --from-savepoint none", "no savepoint 'none'"),
    ("jobs compare shop shp", "no committed epoch of job 'shp'"),
    ("jobs swap shop shop", "have no outputs to compare: both send to"),
    ("run shop_job.py --output-suffix a/b", "'a/b' cannot name a stream"),
    ("jobs merge shop shop", "job 'shop' has not ended, so not all of its results are there"),
    ("backfill shop_job.py --from noon", "--from 'noon' cannot be read; expected a time"),
    ("backfill shop_job.py --from 2013-01-01", "has event times to choose by; read them whole"),
    ("backfill shop_job.py --from 2013-01-01 --blocking --merge", "it takes no --to, --name and"),
    ("backfill shop_job.py --from 2013-01-01 --executors 2 --master local[2]", "has no executors"),
    ("jobs reset shop --from then", "--from 'then' cannot be read"),
    ("jobs reset shop --offset orders/0=x", "expected INPUT/PARTITION=N, such as orders/0=1000"),
    ("jobs rewind shop --to 99", "epoch 99 of job 'shop' is not committed"),
    ("jobs rewind shop --to monday", "expected an epoch, -5, or a time such as"),
    ("jobs accept-streams shop", "job 'shop' has read no other streams than those that there are"),
    ("jobs delete shop", "would be deleted with all of its state; add --yes"),
    ("jobs rescale shop --tasks 9999", "found 9999 tasks, expected 1 to 64"),
    ("jobs rescale shop --tasks 3 --stage none", "has no keyed stage 'none'"),
    ("dlq ls --what", None),
    ("dlq show shp", "no dead letters of 'shp'; did you mean 'shop.dead'?"),
    ("dlq redrive shp", "no dead letters of 'shp'; did you mean 'shop.dead'?"),
    ("config explain job.taks", "unknown setting job.taks; did you mean job.tasks?"),
    ("config ls --set a=b", "unknown setting a; known are home and those of alerts"),
    ("doctor --config none.toml", "none.toml does not exist"),
    ("bench readwrite --store x", None),
    ("bench idle --epochs 1", None),
    ("bench tasks --few 0", None),
    ("bench stores --workload x", None),
    ("demo --mode x", None),
    ("version --jso", None),
]
"""Each with a part of its message; ``None``: wrong usage, which the command line tells itself."""


def test_every_command_has_a_case() -> None:
    tried = [words for words, _ in MISTAKES]
    assert [name for name in ALL if not any(words.startswith(name) for words in tried)] == []


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_message(words: str, told: str | None, shop: Path) -> None:
    (shop / "bad.jsonl").write_text('{"user": "cat", "n": 1}\n{"user": "cat", "n": "x"}\n')
    (shop / "bytes.csv").write_bytes(b"\xff\xfe\x00\n")
    (shop / "bad.parquet").write_bytes(b"PAR1")

    ran = headrace(*shlex.split(words))

    assert (ran.code, ran.out) == (1 if told else 2, "")
    assert "Traceback" not in ran.err
    assert "HR900" not in ran.err
    if told:
        first, *others = ran.err.splitlines()
        assert first.startswith("error HR1")
        assert told in first
        assert all(line.startswith(("next: ", "details: ", "  ")) for line in others)


@pytest.mark.parametrize("words", ["bus create s --schema a:int64", "demo --mode bounded"])
def test_a_home_that_cannot_be_made_is_told(words: str) -> None:
    ran = headrace(*words.split(), "--home", "/proc/none")

    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("error HR200: /proc/none")
    assert "cannot be used: no such file or directory; check that path" in ran.err


def test_java_that_does_not_start_is_told(shop: Path) -> None:
    java = shop / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this is no Java >&2\nexit 1\n")
    java.chmod(0o755)
    words = ["-m", "headrace.cli.main", "run", "shop_job.py", "--master", "local[1]"]
    env = {**os.environ, "JAVA_HOME": str(shop), "PYTHONPATH": str(SOURCE)}

    ran = subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout) == (3, "")
    assert "error HR200: Spark did not start with master 'local[1]'" in ran.stderr
    assert "headrace doctor looks whether Java is as it must be" in ran.stderr
    log = shop / ".headrace" / "jobs" / "shop" / "logs" / "spark.log"
    assert "this is no Java" in log.read_text()
