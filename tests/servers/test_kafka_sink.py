"""A topic as an epoch sink: the contract on a real broker, and what only topics have."""

from __future__ import annotations

import pytest
from tests.support.kafka import TopicSinkContract


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"sink{abs(hash(request.node.nodeid))}"


class TestTopicSink(TopicSinkContract):
    """Where the driver sends all of an epoch."""
