"""A disk that is full: a clear error, or a wait, and nothing lost once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.jobs import model
from tests.support.processes import end_group
from tests.support.runs import ROOT, Driver, World, run_driver, until

BOUNDED = ("job.bounded=true", "epoch.max_rows=100", "control.enabled=false")
PRIVATE = ["--mount"] if os.getuid() == 0 else ["--mount", "--user", "--map-root-user"]
CAN_MOUNT = subprocess.run(["unshare", *PRIVATE, "true"], check=False).returncode == 0
SIZE = 4 << 20


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


class SmallDisk:
    """A file system of a few MiB, which only processes that enter its namespace see."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, folder.name
        folder.mkdir(parents=True)
        mount = f'mount -t tmpfs -o size={SIZE} small "$1" && echo mounted && exec sleep 600'
        self._holder = subprocess.Popen(
            ["unshare", *PRIVATE, "sh", "-c", mount, "sh", str(folder)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"mounted\n"

    @property
    def inside(self) -> Path:
        """The way to it from the outside."""
        return Path(f"/proc/{self._holder.pid}/root{self._folder}")

    @property
    def command(self) -> list[str]:
        """What makes a program run where the disk is seen."""
        user = [] if os.getuid() == 0 else ["--user", "--preserve-credentials"]
        enter = ["nsenter", "--target", str(self._holder.pid), "--mount", *user]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(ROOT)]

    def fill(self) -> None:
        with (
            pytest.raises(OSError, match="No space left"),
            open(self.inside / "ballast", "wb", buffering=0) as file,
        ):
            file.writelines(b"x" * 1024 for _ in range(SIZE))

    def make_room(self) -> None:
        (self.inside / "ballast").unlink()

    def close(self) -> None:
        end_group(self._holder)


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path / "home" / getattr(request, "param", "jobs"))
    yield small
    small.close()


def way(disk: SmallDisk) -> Any:
    """Run a driver, and slots in processes of their own, where the disk is seen."""
    return {"way": "standalone", "command": disk.command}


if CAN_MOUNT:  # where nobody may mount, a worker of Spark's stands alone: tests/spark

    def test_a_disk_that_is_full(world: World, disk: SmallDisk) -> None:
        """The job's folder fills up in mid-epoch, under driver and workers alike."""
        world.feed(300)
        impatient = "state.disk_wait_s=0"
        with Driver("gated", world, *BOUNDED, impatient, **way(disk)) as driver:
            until(lambda: world.at_gate("count"), "a message at the gate", driver)
            disk.fill()
            world.open_gate("count")
            said = driver.wait()
        assert said["error"] == "DiskFullError", said
        assert "No space left" in said["message"]
        assert "jobs/counting/segment/" in said["message"]
        assert 0 < sum(said["rows"]) < 600
        assert len(world.rows("counts")) == sum(said["rows"])
        disk.make_room()
        said = run_driver("counting", world, *BOUNDED, **way(disk))
        assert said["ended"], said
        shutil.copytree(disk.inside, world.home / "jobs", dirs_exist_ok=True)
        assert model(world.log) == world.found()
        assert world.leftovers("counting") == []

    @pytest.mark.parametrize(
        ("disk", "durability"),
        [("jobs", "epoch"), ("state", "backup(10ms)"), ("jobs", "backup(10ms)")],
        indirect=["disk"],
    )
    def test_a_full_disk_is_waited_for(world: World, disk: SmallDisk, durability: str) -> None:
        """Of the job's storage, wherever it is, or of its copy: the same driver goes on."""
        world.feed(300)
        sets = (*BOUNDED, f"state.durability={durability}")
        with Driver("gated", world, *sets, **way(disk)) as driver:
            until(lambda: world.at_gate("count"), "a message at the gate", driver)
            disk.fill()
            world.open_gate("count")
            until(lambda: "No space left" in driver.story, "a word about the disk", driver)
            disk.make_room()
            said = driver.wait()
        assert said["ended"], said
        assert sum(said["rows"]) == 600
        shutil.copytree(disk.inside, world.home / disk.name, dirs_exist_ok=True)
        assert model(world.log) == world.found()
