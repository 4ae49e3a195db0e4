"""Two drivers of one job: the second is refused, or takes the job over, and the first stops."""

from __future__ import annotations

import fcntl
import signal

import pytest
from tests.support.jobs import counting, model
from tests.support.limits import limited
from tests.support.runs import Driver, World, on_spark, until

from headrace.errors import NotOwnerError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def freeze(driver: Driver, world: World) -> bool:
    """Freeze a driver; not while it appends, for then the stream stays locked until it wakes."""
    driver.process.send_signal(signal.SIGSTOP)
    for path in (world.home / "bus").rglob("lock"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                driver.process.send_signal(signal.SIGCONT)
                return False
    return True


@pytest.mark.soak
def test_a_driver_that_waits_for_input_is_taken_over(world: World) -> None:
    """It finds that by itself, and ends; nothing is doubled, and the story names both."""
    world.feed(100)
    with Driver("counting", world) as older:
        until(lambda: world.read_so_far("counting") == 200, "all to be read", older)
        named = f"already driven by process {older.process.pid} on this host"
        with pytest.raises(NotOwnerError, match=named):
            on_spark(counting(), world.settings())
        world.feed(50)
        until(lambda: world.read_so_far("counting") == 300, "the rest to be read", older)
        newer, _ = on_spark(counting(), world.settings("job.bounded=true"), takes_over=True)
        said = older.wait()
    assert newer.state.ended
    assert said["error"] == "NotOwnerError", older.story
    assert "taken over by a newer driver (generation" in said["message"]
    assert model(world.log) == world.found()
    told = [text for text in world.events("counting") if "is taken over from" in text]
    assert [f"process {older.process.pid} on" in text for text in told] == [True]
    ends = "the driver stopped: job 'counting' was taken over by a newer driver (generation "
    assert any(text.startswith(ends) for text in world.events("counting"))


def test_a_frozen_driver_is_taken_over_and_changes_nothing_when_it_wakes(world: World) -> None:
    """Its lock is taken away, and its lease; awake again it is refused."""
    world.feed(100)
    with Driver("counting", world) as older:
        until(lambda: world.read_so_far("counting") == 200, "all to be read", older)
        until(lambda: freeze(older, world), "the driver to be frozen between appends", older)
        try:
            world.feed(50)
            elsewhere = f"state.dir={world.home.parent / 'elsewhere'}"
            bounded = world.settings("job.bounded=true", elsewhere)
            with limited(release_s=1):
                newer, _ = on_spark(counting(), bounded, takes_over=True)
            found = world.found()
        finally:
            older.process.send_signal(signal.SIGCONT)
        said = older.wait()
    assert newer.state.ended
    assert said["error"] == "NotOwnerError", older.story
    assert model(world.log) == found == world.found()
    assert any("which did not stop" in text for text in world.events("counting"))
