"""What is said to a driver that gets no executors."""

from __future__ import annotations

from headrace.spark.runner import no_executors


def test_a_driver_that_only_its_host_reaches_is_told_so() -> None:
    """One with an address of the network lacks workers, or cores."""
    alone = str(no_executors("spark://10.0.0.1:7077", "127.0.0.1"))
    assert "cannot reach this driver at 127.0.0.1: set spark.conf.spark.driver.host" in alone
    found = str(no_executors("spark://10.0.0.1:7077", "10.0.0.5"))
    assert "start a worker, or free its cores" in found
    assert "driver.host" not in found
