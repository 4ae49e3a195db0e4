"""A process that shares a job: runs it as its argument says, and prints how that ended as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.spark.jobs import MAKERS, counting

import headrace as hr
from headrace.config import load_settings
from headrace.graph.jobs import Job


def older(folder: Path) -> Job:
    """The job ``counting`` as it was: its code could not take the third message of a key."""

    def fail() -> None:
        raise ValueError("the older code ran")

    return counting((3, 3), fail)


def main(order: dict[str, Any]) -> dict[str, Any]:
    job = {**MAKERS, "older": older}[order["job"]](Path(order["gates"]))
    settings = load_settings(None, order["sets"], {})

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        result = hr.run(job, settings, join=True, on_notice=tell)
    except hr.HeadraceError as error:
        return {"error": type(error).__name__, "message": str(error)}
    assert not {"pyspark", "py4j"} & set(sys.modules)
    return {
        "ended": result.state.ended,
        "interrupted": result.interrupted,
        "epochs": result.epochs,
        "rows": result.rows,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
