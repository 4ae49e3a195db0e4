"""A job whose driver is looked at and asked, and what lets it do what it is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.homes import Files

import headrace as hr
from headrace.testing import TestDriver

FILES = Files(sync=False)


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders", time="at").partition_by("user")
    orders.aggregate(spent=hr.agg.sum("n")).send_to(g.output("totals"))


@contextmanager
def served(driver: TestDriver) -> Iterator[None]:
    """Let the driver of each part do what it is asked, in another thread."""
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            for part in driver.parts:
                part.serve_requests()
            done.wait(0.005)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield
    finally:
        done.set()
        serving.join()
