"""A net under the tests: plants the faults of tools/mutants.toml, and sees which test catches each.

python tools/mutants.py check              says which faults no longer fit the code; ends with 1
python tools/mutants.py record [NAME ...]  runs tests once, and notes which reach which fault
python tools/mutants.py run [NAME ...]     plants one after the other; ends with 1 if one survives
python tools/mutants.py diff OLD NEW       what is caught by one result and not by another

--suites unit,sim     the folders below tests that count; default: all without Spark
--missing             record only for faults that no test is known to reach
--area AREA           only faults of an area
--out FILE            where ``run`` writes results, and goes on from what is there
--limit SECONDS       how long the tests of one fault may run; default 300
--tree PATH           another checkout; the list and the notes are its own, unless it has no list

Faults are planted in a copy of the tree, never in the tree itself. A fault is tried with the tests
that reach it, by the notes in .mutants/reach.json: cheap ones, those that reach little else and
those whose names are like its file's first, until one fails. Those that caught something are run
once more without any fault.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = Path(__file__).with_name("mutants_reach.py")
QUICK = "unit,contract,model,standalone,servers,sim,docs"
NOTES = Path(".mutants/reach.json")
FIRST_S = 8.0
"""So many seconds of tests are run at first; then more and more, for each start costs some."""

OVERHEAD_S = 0.03
FAR = 3.0
"""A test that is named after neither the folder nor the file of a fault has so much less chance."""

LEAST_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Mutant:
    """A fault: the text in a file that is changed to another, and what goes wrong then.

    ``at`` is text of the same file by which tests come that reach the fault, where the fault
    itself is in what is read once, at import.
    """

    name: str
    area: str
    file: str
    old: str
    new: str
    why: str
    at: str = ""

    def wrong(self, tree: Path) -> str:
        """Say what is wrong with it; empty: it can be planted."""
        try:
            text = (tree / self.file).read_text()
        except FileNotFoundError:
            return f"there is no {self.file}"
        for part in (self.old, self.at):
            if part and (found := text.count(part)) != 1:
                return f"{self.file} has this {found} times, expected once: {part!r}"
        try:
            compile(self.planted(text), self.file, "exec")
            self.line(text)
        except (SyntaxError, ValueError) as error:
            return f"{self.file}: {error}"
        return ""

    def planted(self, text: str) -> str:
        """Return the text of its file with the fault."""
        return text.replace(self.old, self.new)

    def nearness(self, test: str) -> int:
        """Return how near a test's file is to that of the fault, by their names: 0 to 2."""
        *folders, name = Path(self.file).with_suffix("").parts[1:]
        there = Path(test.partition("::")[0]).with_suffix("").parts
        is_named = name in there or there[-1] == f"test_{name}"
        return is_named + any(folder in there for folder in folders)

    def line(self, text: str) -> int:
        """Return the line before which a call tells that it is reached, from 0.

        Raises:
            ValueError: it is reached by the import alone, and has no ``at``.
        """
        begin = text.index(self.at or self.old)
        if not self.at:
            pairs = zip(self.old, self.new, strict=False)
            begin += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            begin += len(text[begin:]) - len(text[begin:].lstrip())
        at = text.count("\n", 0, begin) + 1
        found = 0
        for body in _bodies(text):
            for statement in body:
                first = min([statement.lineno, *_decorators(statement)])
                if first <= at <= (statement.end_lineno or first):
                    found = max(found, first)
        if not found:
            raise ValueError(f"{self.name} is reached at import: say by which text, at = ...")
        return found - 1


@cache
def _bodies(text: str) -> list[list[ast.stmt]]:
    """Return the bodies within functions before whose statements another one can be put."""
    found = []
    left: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while left:
        node, is_within = left.pop()
        is_within |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            body = getattr(node, name, None)
            if not isinstance(body, list) or not body:  # that of a lambda is no list
                continue
            left += ((one, is_within) for one in body)
            is_elif = name == "orelse" and isinstance(node, ast.If) and _is_elif(node)
            if is_within and not is_elif and name not in ("handlers", "cases"):
                found.append(body)
    return found


def _is_elif(node: ast.If) -> bool:
    return (
        len(node.orelse) == 1
        and isinstance(node.orelse[0], ast.If)
        and node.orelse[0].col_offset == node.col_offset
    )


def _decorators(statement: ast.stmt) -> list[int]:
    return [one.lineno for one in getattr(statement, "decorator_list", ())]


def mutants(tree: Path, names: Sequence[str] = (), area: str = "") -> list[Mutant]:
    """Return the faults of the list, or some of them."""
    path = tree / "tools" / "mutants.toml"
    path = path if path.exists() else ROOT / "tools" / "mutants.toml"
    found = [Mutant(**one) for one in tomllib.loads(path.read_text())["mutant"]]
    twice = [name for name, times in Counter(one.name for one in found).items() if times > 1]
    unknown = set(names) - {one.name for one in found}
    if twice or unknown:
        sys.exit(f"mutants: twice in the list: {twice}; not in it: {sorted(unknown)}")
    return [
        one for one in found if one.area == (area or one.area) and one.name in (names or [one.name])
    ]


def check(tree: Path, chosen: Sequence[Mutant]) -> None:
    """End with 1 where a fault does not fit the code any more."""
    wrong = [f"{one.name}: {said}" for one in chosen if (said := one.wrong(tree))]
    if wrong:
        sys.exit("\n".join(["mutants: these do not fit the code:", *wrong]))


class Copy:
    """A copy of a tree, with an environment in which its code is the one that is imported.

    Args:
        tree: to copy.
        folder: of the copy.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        self.root = folder / "tree"
        words = [
            "git",
            "-C",
            str(tree),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        listed = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (tree / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.root / name)
        shutil.copy2(PLUGIN, self.root / "src" / PLUGIN.name)
        self._environment = self.root / ".venv"
        self._copy_environment()
        self._ticks = count(1)

    def _copy_environment(self) -> None:
        """Make an environment that has the packages of this one, and the copied source before."""
        own, held = self._environment, Path(sys.prefix)
        packages = Path(
            "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
        )
        (own / packages).mkdir(parents=True)
        (own / "bin").mkdir()
        shutil.copy2(held / "pyvenv.cfg", own / "pyvenv.cfg")
        for name in ("python", "python3"):
            (own / "bin" / name).symlink_to(Path(sys.executable).resolve())
        script = (held / "bin" / "headrace").read_text().replace(str(held), str(own))
        (own / "bin" / "headrace").write_text(script)
        (own / "bin" / "headrace").chmod(0o755)
        (own / packages / "tree.pth").write_text(f"{self.root / 'src'}\n{held / packages}\n")
        for name in ("java-home", "jars", "spark.jsa", "bin/weed"):  # the last is the tests' S3
            if (held / name).exists():
                (own / name).symlink_to(held / name)

    def replace(self, file: str, text: str) -> None:
        """Change a file so that no compiled one passes for it."""
        path = self.root / file
        path.write_text(text)
        now = int(path.stat().st_mtime) + next(self._ticks)  # Python tells files apart by seconds
        os.utime(path, (now, now))
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """Plant a fault for a block."""
        before = (self.root / mutant.file).read_text()
        self.replace(mutant.file, mutant.planted(before))
        try:
            yield
        finally:
            self.replace(mutant.file, before)

    def pytest(
        self, words: Sequence[str], limit_s: float | None = None, **variables: str
    ) -> int | None:
        """Run pytest and return its exit code; ``None``: it did not end in time."""
        python = self._environment / "bin" / "python"
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "HYPOTHESIS_PROFILE": profile(),
            "SOAK": os.environ.get("SOAK", "none"),  # by chance nothing is caught
            "PYSPARK_PYTHON": str(python),
            **variables,
        }
        java = self._environment / "java-home"
        if java.exists():
            environment["JAVA_HOME"] = java.read_text().strip()
        options = ["-n", "0", "-q", "-p", "mutants_reach", "-p", "no:cacheprovider", "--color=no"]
        with (self.root / "pytest.log").open("ab") as log:
            ran = subprocess.Popen(
                [python, "-m", "pytest", *options, *words],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                return ran.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(ran.pid, signal.SIGKILL)  # what it started as well
                ran.wait()


@contextmanager
def copied(tree: Path) -> Iterator[Copy]:
    """Copy a tree for a block."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        yield Copy(tree, Path(folder))


def profile() -> str:
    """Return the profile of Hypothesis: CI's, unless said otherwise."""
    return os.environ.get("HYPOTHESIS_PROFILE", "ci")


def commit_of(tree: Path) -> str:
    """Return the commit that a tree is of, with a plus where it has changes."""
    words = [
        "git",
        "-C",
        str(tree),
        "describe",
        "--always",
        "--abbrev=7",
        "--dirty=+",
        "--exclude=*",
    ]
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip()


class Notes:
    """Which tests reach which faults, and how long each test takes.

    Args:
        tree: of the tests.
    """

    def __init__(self, tree: Path) -> None:
        self._path = tree / NOTES
        held = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.commit: str = held.get("commit", "")
        self.tests: dict[str, float] = held.get("tests", {})
        self.reach: dict[str, list[str]] = held.get("reach", {})

    def take(self, folder: Path, names: Sequence[str], commit: str) -> None:
        """Take over what a run has written down for faults with these names, and keep it."""
        lines = [json.loads(line) for line in (folder / "tests").read_text().splitlines()]
        fixtures = {one["number"]: one["fixture"] for one in lines if "fixture" in one}
        ran = {one["number"]: one for one in lines if "id" in one and one["outcome"] == "passed"}
        users = defaultdict(list)
        for one in ran.values():
            for shared in one["shared"]:
                users[shared].append(one["id"])
        found: dict[str, set[str]] = {name: set(self.reach.get(name, ())) for name in names}
        hits = folder / "hits"
        for line in hits.read_text().splitlines() if hits.exists() else ():
            test, place = json.loads(line)
            if test in ran:
                found[names[place]].add(ran[test]["id"])
            found[names[place]].update(users[fixtures[test]] if test in fixtures else ())
        self.reach |= {name: sorted(tests) for name, tests in found.items()}
        self.tests |= {one["id"]: round(one["seconds"], 3) for one in ran.values()}
        self.commit = commit
        self._path.parent.mkdir(exist_ok=True)
        held = {"commit": commit, "tests": self.tests, "reach": self.reach}
        self._path.write_text(json.dumps(held, indent=0))

    def choice(self, mutant: Mutant, suites: Sequence[str]) -> list[str]:
        """Return the tests that reach a fault, the most promising for their time first."""
        folders = tuple(f"tests/{suite}/" for suite in suites)
        others = Counter(test for tests in self.reach.values() for test in tests)
        mine = [test for test in self.reach.get(mutant.name, ()) if test.startswith(folders)]
        mine.sort(key=lambda test: (self.tests[test] + OVERHEAD_S) * others[test])
        alike: Counter[str] = Counter()  # what parameters before did not catch, others hardly do
        price = {}
        for test in mine:
            alike[function := test.partition("[")[0]] += 1
            cost = (self.tests[test] + OVERHEAD_S) * others[test] * alike[function]
            price[test] = cost * FAR ** -mutant.nearness(test)
        return sorted(mine, key=price.__getitem__)


def record(tree: Path, chosen: Sequence[Mutant], suites: Sequence[str], *, missing: bool) -> None:
    """Run the tests once with a call at each fault, suite by suite, and note who comes by."""
    for suite in suites:
        notes = Notes(tree)
        wanted = [one for one in chosen if not (missing and notes.reach.get(one.name))]
        if not wanted or not (tree / "tests" / suite).is_dir():
            continue
        with copied(tree) as copy:
            folder = copy.root / ".reach"
            folder.mkdir()
            (folder / "now").write_bytes(bytes(8))
            for file in {one.file for one in wanted}:
                lines = (copy.root / file).read_text().splitlines(keepends=True)
                text = "".join(lines)
                calls = sorted(
                    (one.line(text), n) for n, one in enumerate(wanted) if one.file == file
                )
                for line, number in reversed(calls):
                    indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
                    lines.insert(line, f"{indent}__import__('mutants_reach').hit({number})\n")
                copy.replace(file, "".join(lines))
            began = monotonic()
            ended = copy.pytest([f"tests/{suite}"], MUTANTS_RECORD="0")
            notes.take(folder, [one.name for one in wanted], commit_of(tree))
            reached = sum(bool(notes.reach[one.name]) for one in wanted)
            took = monotonic() - began
            print(f"{suite}: pytest ended with {ended} after {took:.0f} s; {reached} of "
                  f"{len(wanted)} faults are reached", flush=True)  # fmt: skip
            if ended not in (0, 1):
                shutil.copy2(copy.root / "pytest.log", tree / NOTES.parent / "pytest.log")


def tried(copy: Copy, tests: Sequence[str], notes: Notes, limit_s: float) -> dict[str, Any]:
    """Run tests until one fails, a few at first; return which one, and how it failed."""
    began, at, share_s = monotonic(), 0, FIRST_S
    report, chosen = copy.root / "failures", copy.root / "chosen"
    while at < len(tests):
        end, planned_s = at, 0.0
        while end < len(tests) and (end == at or planned_s < share_s):
            planned_s += notes.tests[tests[end]] + OVERHEAD_S
            end += 1
        left_s = limit_s - (monotonic() - began)
        if at and planned_s > left_s:
            return {"outcome": "undecided", "tests": at}
        longest_s = max(notes.tests[test] for test in tests[at:end])
        timeout_s = max(LEAST_TIMEOUT_S, 10 * longest_s)
        report.unlink(missing_ok=True)
        chosen.write_text("\n".join(tests[at:end]))
        words = ["-x", f"--timeout={timeout_s:.0f}", f"@{chosen}"]
        ended = copy.pytest(words, 4 * planned_s + 2 * timeout_s, MUTANTS_REPORT=str(report))
        if ended != 0:
            lines = report.read_text().splitlines() if report.exists() else []
            found = (
                json.loads(lines[0]) if lines else {"id": "", "said": f"pytest ended with {ended}"}
            )
            return {"outcome": "caught", "by": found["id"], "said": found["said"], "tests": end}
        at, share_s = end, 3 * share_s
    return {"outcome": "survived" if tests else "unreached", "tests": len(tests)}


def run(
    tree: Path, chosen: Sequence[Mutant], suites: Sequence[str], out: Path | None, limit_s: float
) -> int:
    """Plant faults one after the other; return how many survived."""
    notes = Notes(tree)
    if notes.commit != commit_of(tree):
        said = f"the notes are of {notes.commit or 'nothing'}, the tree is {commit_of(tree)}"
        print(f"mutants: {said}: record again where tests have changed", file=sys.stderr)
    held = json.loads(out.read_text()) if out is not None and out.exists() else {}
    results: dict[str, dict[str, Any]] = held.get("mutants", {})
    fresh = [one.name for one in chosen if one.name not in results]
    with copied(tree) as copy:
        for mutant in chosen:
            if mutant.name not in fresh:
                continue
            began = monotonic()
            with copy.with_fault(mutant):
                found = tried(copy, notes.choice(mutant, suites), notes, limit_s)
            took = round(monotonic() - began, 1)
            results[mutant.name] = {"area": mutant.area, **found, "seconds": took}
            print(f"{mutant.name}: {found['outcome']} after {took} s, {found['tests']} tests; "
                  f"{found.get('by', mutant.why)}", flush=True)  # fmt: skip
            _write(out, tree, suites, results)
        for name in _doubtful(copy, {name: results[name] for name in fresh}, notes):
            results[name]["outcome"] = "doubtful"
            print(f"{name}: {results[name]['by']} fails without it, too")
    _write(out, tree, suites, results)
    named = {one.name for one in chosen}
    left = sorted(name for name in named & results.keys() if results[name]["outcome"] != "caught")
    caught = len(named) - len(left)
    print(f"{caught} of {len(named)} faults were caught; not: {', '.join(left) or '-'}")
    return len(left)


def _doubtful(copy: Copy, results: Mapping[str, Mapping[str, Any]], notes: Notes) -> Iterable[str]:
    """Yield faults that were caught by tests which fail without any fault."""
    caught = {one["by"] for one in results.values() if one.get("by") in notes.tests}
    if not caught:
        return
    report, chosen = copy.root / "failures", copy.root / "chosen"
    report.unlink(missing_ok=True)
    chosen.write_text("\n".join(sorted(caught)))
    copy.pytest([f"@{chosen}"], MUTANTS_REPORT=str(report))
    lines = report.read_text().splitlines() if report.exists() else []
    failed = {json.loads(line)["id"] for line in lines}
    yield from (name for name, one in results.items() if one.get("by") in failed)


def _write(out: Path | None, tree: Path, suites: Sequence[str], results: Mapping[str, Any]) -> None:
    if out is not None:
        told = {"commit": commit_of(tree), "profile": profile(), "suites": list(suites)}
        out.write_text(json.dumps({**told, "mutants": dict(results)}, indent=1) + "\n")


def differ(old: Path, new: Path) -> int:
    """Print what one result catches and another does not; return how many these are."""
    before, after = (json.loads(path.read_text())["mutants"] for path in (old, new))
    lost = [
        name
        for name, one in before.items()
        if one["outcome"] == "caught" and after.get(name, {}).get("outcome") != "caught"
    ]
    for name in lost:
        now = after.get(name, {}).get("outcome", "not tried")
        print(f"{name}: was caught by {before[name]['by']}, now: {now}")
    print(f"{len(lost)} of {len(before)} faults are caught no more")
    return len(lost)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", choices=["check", "record", "run", "diff"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--suites", default=QUICK)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--area", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--tree", type=Path, default=ROOT)
    given = parser.parse_intermixed_args()
    suites, tree = given.suites.split(","), given.tree.resolve()
    if given.verb == "diff":
        sys.exit(min(1, differ(*map(Path, given.names))))
    chosen = mutants(tree, given.names, given.area)
    check(tree, chosen)
    if given.verb == "record":
        record(tree, chosen, suites, missing=given.missing)
    elif given.verb == "run":
        sys.exit(min(1, run(tree, chosen, suites, given.out, given.limit)))


if __name__ == "__main__":
    main()
