"""``headrace init``: a project with a job, a passing test, sample data and a notebook.

With ``--kafka`` its input and its output are topics, by the settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from headrace.cli.options import Json
from headrace.cli.output import show_json
from headrace.errors import InvalidInputError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_START_MS = 1_767_225_600_000  # 2026-01-01
BROKER = "localhost:9092"
"""Where a broker listens by default."""
_ROWS, _CUSTOMERS = 600, ("ada", "bob", "cy", "dot")

_JOB = '''"""$name: what each customer spends, minute by minute."""

import headrace as hr
$columns

@hr.job("$name")
def $module(g: hr.Graph) -> None:
    $read
    spending = orders.partition_by("customer").window(
        hr.tumbling("1m"),
        name="spending",
        orders=hr.agg.count(),
        cents=hr.agg.sum("cents"),
    )
    spending.send_to(g.output("spending"))
'''

_TEST = '''"""The job in one thread, without Spark."""

import pyarrow as pa
from $module import $module

from headrace.testing import TestDriver

COLUMNS = {"customer": pa.string(), "at": pa.int64(), "cents": pa.int64()}


def test_orders_are_summed_by_minute():
    with TestDriver($module) as driver:
        driver.create("orders", COLUMNS, time="at", key=["customer"])
        driver.feed("orders", [{"customer": "ada", "at": 1_000, "cents": 5}])
        driver.feed("orders", [{"customer": "ada", "at": 59_000, "cents": 7}])
        driver.feed("orders", [{"customer": "ada", "at": 60_000, "cents": -1}])
        driver.finish()
        rows = driver.output("spending")
    assert [(row["customer"], row["orders"], row["cents"]) for row in rows] == [("ada", 2, 12)]


def test_a_crash_changes_nothing():
    with TestDriver($module) as driver:
        driver.create("orders", COLUMNS, time="at", key=["customer"])
        driver.feed("orders", [{"customer": "ada", "at": 1_000, "cents": 5}])
        driver.advance_with_crash("commit.published")
        driver.finish()
        assert [row["cents"] for row in driver.output("spending")] == [5]
'''

_README = """# $name

| command | does |
|---|---|
| `headrace dev $module.py` | runs the job on `data/`, again whenever a file changes; no Spark |
| `pytest` | runs its test |
| `headrace bus append orders data/orders.jsonl --infer --time at --key customer` | fills a stream |
| `headrace run $module.py --bounded` | runs the job on Spark to the end of its input |
| `headrace bus tail spending` | shows what came of it |

`notebook.ipynb` runs the job on the sample data and looks at the result.
"""

_COLUMNS = """
ORDERS = {"customer": str, "at": int, "cents": int}
"""

_PLAIN = {
    "columns": "",
    "read": 'orders = g.input("orders", time="at", out_of_orderness="5s")'
    '.filter(hr.col("cents") > 0)',
}
_TOPICS = {
    "columns": _COLUMNS,
    "read": """sent = g.input("orders", schema=ORDERS, time="at", out_of_orderness="5s", idle="1s")
    orders = sent.filter(hr.col("cents") > 0)""",
}

_SETTINGS = """# Where the streams of the job are; without these lines they are streams of its home.
[inputs.orders]
address = "$kafka/orders?key=customer"

[outputs.spending]
address = "$kafka/spending?key=customer&partitions=4"
"""

_KAFKA_README = """# $name

A job from topic to topic. `pip install "headrace[kafka]"` has what it needs.

| command | does |
|---|---|
| `headrace dev $module.py` | runs the job on `data/`, again whenever a file changes; no broker |
| `pytest` | runs its test; no broker |

`notebook.ipynb` runs the job on the sample data and looks at the result.

## With a broker

Start one on this machine, in another terminal. `docker run --rm -p 9092:9092 apache/kafka` is the
shortest way. Without Docker, unpack a release of Kafka 4, and in its folder:

```sh
bin/kafka-storage.sh format --standalone -t "$$(bin/kafka-storage.sh random-uuid)" \\
    -c config/server.properties
bin/kafka-server-start.sh config/server.properties
```

Fill the topic `orders` with the sample data, and run the job. Ctrl-C stops it; it continues where
it was:

```sh
headrace bus append sample data/orders.jsonl --infer --time at --key customer
headrace bus mirror sample "$kafka/orders?key=customer&partitions=4" --until-end
headrace run $module.py --standalone
```

Look at the topic `spending`:

```sh
headrace bus mirror "$kafka/spending" seen --until-end \\
    --schema "customer:string,window_start:timestamp,orders:int64,cents:int64"
headrace bus tail seen
```

`headrace.toml` says where the topics are. Readers of `spending` set
`isolation.level=read_committed`, so that they see each result once.
"""

_CELLS = (
    ("markdown", "# $name\\n\\nThe job in one thread on the sample data, without Spark."),
    (
        "code",
        "import polars as pl\nfrom $module import $module\n\n"
        "from headrace.testing import TestDriver\n\n"
        'orders = pl.read_ndjson("data/orders.jsonl").to_arrow()\norders.slice(0, 5).to_pylist()',
    ),
    (
        "code",
        "with TestDriver($module) as driver:\n"
        '    driver.create("orders", orders.schema, time="at", key=["customer"])\n'
        '    driver.feed("orders", orders)\n    driver.finish()\n'
        '    spending = pl.DataFrame(driver.output("spending"))\nspending.head()',
    ),
    (
        "code",
        'spending.group_by("customer").agg(pl.col("orders", "cents").sum()).sort("customer")',
    ),
)


def write_project(folder: Path, kafka: str = "") -> list[Path]:
    """Write a project into a new folder; returns its files.

    Args:
        folder: its last part is the name of the project and of its job.
        kafka: host and port of a broker whose topics its job reads and writes; empty: none.

    Raises:
        InvalidInputError: it cannot be a name, or there is something in it already.
    """
    name = folder.name
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot name a project; begin with a letter, continue with letters, "
            "digits, '_' or '-', 50 characters at most"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInputError(f"{folder} is not empty; give another name")
    made = []
    for path, text in _files(name, kafka):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        made.append(target)
    return made


def module_of(name: str) -> str:
    """Return the name of the module that a project's job is in."""
    return name.replace("-", "_").lower() + "_job"


def _files(name: str, kafka: str) -> Iterator[tuple[str, str]]:
    names = {"name": name, "module": module_of(name), "kafka": f"kafka://{kafka}"}
    names |= _TOPICS if kafka else _PLAIN
    yield f"{names['module']}.py", Template(_JOB).substitute(names)
    yield f"test_{names['module']}.py", Template(_TEST).substitute(names)
    yield "README.md", Template(_KAFKA_README if kafka else _README).substitute(names)
    if kafka:
        yield "headrace.toml", Template(_SETTINGS).substitute(names)
    yield "notebook.ipynb", _notebook(names)
    yield "data/orders.jsonl", "".join(json.dumps(row) + "\n" for row in _orders())
    yield ".gitignore", ".headrace/\n__pycache__/\n"


def _orders() -> Iterator[dict[str, object]]:
    for number in range(_ROWS):
        customer = _CUSTOMERS[number * number % 7 % len(_CUSTOMERS)]
        cents = number * 7919 % 5000 - 50
        yield {"customer": customer, "at": _START_MS + number * 1000, "cents": cents}


def _notebook(names: dict[str, str]) -> str:
    cells = []
    for number, (kind, text) in enumerate(_CELLS):
        filled = Template(text.replace("\\n", "\n")).substitute(names)
        cell: dict[str, object] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": filled,
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1) + "\n"


def init(
    name: Annotated[
        Path,
        typer.Argument(
            metavar="NAME", help="Folder to create; also the job's name.", show_default=False
        ),
    ],
    kafka: Annotated[
        bool,
        typer.Option(
            "--kafka", help="The job reads and writes topics of a broker at localhost:9092."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a project: a job, a test that passes, sample data and a notebook.

    The folder `NAME` also gets a `README.md` with the next steps. It must not exist, or be empty.

    With `--kafka`, its `headrace.toml` has the addresses of topics for the input and the output,
    and its `README.md` says how to start a broker on this machine. The code is the same, and so
    are its test and `headrace dev`, which need no broker.

    Guide: ten-minutes, kafka.

    For example:

        headrace init shop
    """
    made = write_project(name, BROKER if kafka else "")
    module = module_of(name.name)
    if as_json:
        show_json({"folder": str(name), "job": f"{module}.py", "files": [str(p) for p in made]})
        return
    for path in made:
        typer.echo(f"made {path}")
    typer.echo(f"next: cd {name} && headrace dev {module}.py   (README.md has the rest)")
