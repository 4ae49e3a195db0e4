"""Processes are renewed host by host, each once, and an epoch runs between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.host_commands import RollingRestart
from headrace.errors import InternalError

HOSTS = st.lists(st.sampled_from("abcdef"), unique=True).map(tuple)


@given(hosts=HOSTS, rolling=st.booleans(), lost=st.lists(st.sampled_from("abcdef-"), max_size=20))
def test_every_host_that_stays_is_renewed_once(
    hosts: tuple[str, ...], rolling: bool, lost: list[str]
) -> None:
    restart, done = RollingRestart(hosts, rolling), list[str]()
    for gone in [*lost, *"-" * 20]:
        restart = restart.without({gone})
        restart.validate()
        if restart.is_over:
            break
        now = restart.next_hosts
        if now:
            assert len(now) == 1 or not rolling
            done += now
            restart = restart.after_restart()
            assert restart.cold == now
        else:
            restart = restart.after_epoch()
        restart.validate()
    assert restart.is_over
    assert done == [host for host in hosts if host in done]
    assert {*hosts} - {*done} <= {*lost}


def test_nothing_is_renewed_before_the_last_host_has_run() -> None:
    restart = RollingRestart(("a", "b"), is_rolling=True).after_restart()
    assert not restart.next_hosts
    assert not restart.is_over
    with pytest.raises(InternalError, match="nothing was to be renewed"):
        restart.after_restart()
    assert restart.after_epoch().next_hosts == ("b",)
