"""The wheel of this checkout, installed where nothing of it is on the path."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built(folder: Path) -> Path:
    """Build the wheel with what the development environment has, as ``make wheel`` does by pip."""
    options = ("--no-build-isolation", "--python", sys.executable, "--out-dir", folder)
    _uv("build", "--wheel", *options, ROOT)
    (wheel,) = folder.glob("headrace-*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder to work in that is not of the repository."""

    folder: Path
    work: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    @property
    def megabytes(self) -> float:
        """What its packages take, as `du -m` counts, without bytecode."""
        files = (path for path in self.site.rglob("*") if path.suffix != ".pyc")
        return sum(path.lstat().st_size for path in files if path.is_file()) / 2**20

    def variables(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "PY"))}
        return {**kept, "PATH": f"{self.programs}{os.pathsep}{kept['PATH']}"}

    def run(self, *words: str | Path, within_s: float = 90) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; its outputs and its code are returned."""
        return subprocess.run(
            [self.programs / words[0], *words[1:]],
            cwd=self.work,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    def done(self, *words: str | Path, within_s: float = 90) -> str:
        """Run what must succeed; return what it prints on stdout."""
        ran = self.run(*words, within_s=within_s)
        assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
        return ran.stdout


def made(folder: Path, python: str | Path = sys.executable) -> Environment:
    """Make an environment without packages."""
    environment = Environment(folder / "environment", folder / "work")
    environment.work.mkdir(parents=True)
    _uv("venv", "--python", python, environment.folder)
    return environment


def install(environment: Environment, *wanted: str | Path) -> Environment:
    """Install what is wanted, of the index; versions are those of the lock."""
    python, lock = environment.programs / "python", ROOT / "requirements.lock"
    _uv("pip", "install", "--python", python, "--constraint", lock, *wanted)
    return environment


def install_alone(environment: Environment, wheel: Path) -> Environment:
    """Install a wheel; its dependencies, and no source, are those of this process."""
    _uv("pip", "install", "--python", environment.programs / "python", "--no-deps", wheel)
    (environment.site / "here.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return environment


def _uv(*words: str | Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
