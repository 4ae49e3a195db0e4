"""Versions of an app: what was deployed, and how another text of it differs.

Each version is a file in ``HOME/sql/JOB``, named by its number. A savepoint ``before-vN`` has the
state that version N began with, so that the one before it can begin again from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config import Settings
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.operations.savepoint_format import savepoints_dir
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.plan.compatibility import changes
from headrace.plan.stages import JobPlan

ENDING = ".sql"


@dataclass(frozen=True)
class Review:
    """How a version differs from the one before it: operators of the plan, and old state.

    ``operators`` has a line for each that is added (``+``), removed (``-``) or changed (``~``).
    ``state`` says what the job's state does not fit; empty: the version can start with it.
    """

    version: int
    operators: tuple[str, ...]
    state: tuple[str, ...]
    has_state: bool


class AppVersions:
    """The versions of one app in a home."""

    def __init__(self, settings: Settings, job: str) -> None:
        self._settings, self.job, self._files = settings, job, Files()
        self._folder = Path(settings.home) / "sql" / job

    def numbers(self) -> list[int]:
        """Return the versions that were deployed, in their order."""
        if not self._folder.is_dir():
            return []
        names = [Path(name) for name in self._files.names(self._folder)]
        return sorted(int(n.stem) for n in names if n.suffix == ENDING and n.stem.isdigit())

    def path(self, version: int) -> Path:
        """Return the file of a version."""
        return self._folder / f"{version:04}{ENDING}"

    def add(self, text: str) -> int:
        """Store a text as the next version; return its number."""
        version = self.next_number()
        self._files.make_missing(self._folder)
        self._files.write_new(self.path(version), [text.encode()])
        return version

    def next_number(self) -> int:
        """Return the number of the next version."""
        return max(self.numbers(), default=0) + 1

    def has_state(self) -> bool:
        """Say whether the job has state, which a version begins with."""
        return bool(self._fingerprint())

    def has_savepoint(self, name: str) -> bool:
        """Say whether the job has a savepoint of a name."""
        return (savepoints_dir(self._settings, self.job) / name).is_dir()

    def before(self) -> int:
        """Return the version to go back to.

        Raises:
            InvalidInputError: there is none.
        """
        numbers = self.numbers()
        if len(numbers) < 2:
            raise InvalidInputError(
                f"app {self.job!r} has {len(numbers)} versions; there is none to go back to"
            )
        return numbers[-2]

    def review(self, plan: JobPlan, former: JobPlan | None) -> Review:
        """Compare a plan with that of the last version, and with the state that there is."""
        found, held = list[str](), self._fingerprint()
        new = described(plan)
        old = {} if former is None else described(former)
        for name in dict.fromkeys([*old, *new]):
            if name not in new:
                found.append(f"- {name}: {old[name]}")
            elif name not in old:
                found.append(f"+ {name}: {new[name]}")
            elif old[name] != new[name]:
                found.append(f"~ {name}: {old[name]} -> {new[name]}")
        number = self.next_number()
        fits = changes(held, plan.fingerprint) if held else []
        return Review(number, tuple(found), tuple(fits), bool(held))

    def _fingerprint(self) -> dict[str, str]:
        if not (self._settings.jobs_dir / self.job).is_dir():
            return {}
        states = [reader.state() for reader in part_readers(self._settings, self.job)]
        running = [state for state in states if not state.ended]
        return {name: text for state in running for name, text in state.fingerprint.items()}


def described(plan: JobPlan) -> dict[str, str]:
    """Return what each operator of a plan does, by its name."""
    return {
        operator.name: "; ".join(operator.describe())
        for stage in plan.stages
        for operator in stage.operators
    }
