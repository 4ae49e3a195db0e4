"""What PostgreSQL sinks take of old data, and what they refuse."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import InvalidInputError

URL = "postgresql://db.example/shop"


def test_rows_that_the_live_job_deleted_do_not_come_back() -> None:
    sink = hr.sinks.postgres(URL, "orders", mode="upsert", key="id", delete_when="gone")
    with pytest.raises(InvalidInputError, match="those that the live job deleted"):
        sink.beneath()
    assert hr.sinks.postgres(URL, "orders", mode="upsert", key="id").beneath().keeps
    assert not hr.sinks.postgres(URL, "orders").beneath().keeps
