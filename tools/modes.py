"""Count where the modes of a job are known: files, branches, and what is carried for their sake.

A mode is something that most jobs do without, and its names are those of its own parts. A branch
is a condition that has one of them; what is carried is a parameter or a field of such a name. Both
belong into the files of the mode, which do not count, and behind a hook elsewhere:

    python tools/modes.py            # of this tree
    python tools/modes.py DIR        # of another one, such as an older commit
    python tools/modes.py --files    # with each file
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

CORE = ("plan", "runtime", "coordinator", "control", "sources", "bus", "standalone")
MODES = {
    "parts joined by the bus": (
        r"feeds|feed|feed_operators|internal_\w+|_?Internal\w+|JobGroup|group_state|part_folders|part_readers|"
        r"split_parts|PART|job_of|carriers?_\w+|\w+_carrier\w*|Carried\w*|is_durable|PartsError|"
        r"publish_marks|trim_internal\w*|JobGeneration|make_sender|waiting_columns|through_bus"
    ),
    "copies and durability": (
        r"_?copier|\w*Copier|Backup\w*|backup\w*|is_backup|copy_of|durability|Durability|"
        r"open_copier"
    ),
    "bounded inputs": (
        r"bounded|Bounded\w*|bounded_\w+|has_read_all|is_concluded|\w*bounded_run|"
        r"ReadOnlyStream|ExternalStream|external_streams|from_beginning|look_again|BoundedRun"
    ),
    "dead letters": (
        r"_?dead|dead_\w+|Dead(?!line)\w+|DEAD_\w+|\w+_dead_letters|_?letters|find_dead\w+|"
        r"letter_columns|make_guard|refused_to|on_error_text"
    ),
    "DataFrame inputs": (
        r"FrameSource|SettingsFrame|FRAME_(?!ROWS)\w+|frame_stream|with_dataframes|leave_dataframes|"
        r"\w*dataframes?|FrameSettings|input_dataframe"
    ),
}

OWN = {
    "coordinator/backup.py",
    "coordinator/bounded_runs.py",
    "coordinator/dataframe_inputs.py",
    "coordinator/file_copier.py",
    "coordinator/internal_streams.py",
    "coordinator/job_group.py",
    "coordinator/job_parts.py",
    "coordinator/operations/dead_letters.py",
    "bus/carried.py",
    "bus/read_only.py",
    "plan/dead_letters.py",
    "plan/parts.py",
    "runtime/dead_letters.py",
    "runtime/internal_stream.py",
    "sources/bounded_bus.py",
    "sources/file_streams.py",
}
"""What is a mode's own."""


class Uses:
    """What one file knows of a mode."""

    def __init__(self) -> None:
        self.names = self.branches = self.carried = 0


def _names(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def _conditions(tree: ast.Module) -> Iterator[ast.AST]:
    for one in ast.walk(tree):
        match one:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield test
            case ast.comprehension(ifs=ifs):
                yield from ifs
            case ast.Assert(test=test):
                yield test


def _carried(tree: ast.Module) -> Iterator[str]:
    """Yield the names of parameters, and of fields of classes and of ``self``."""
    for one in ast.walk(tree):
        match one:
            case ast.arg(arg=name):
                yield name
            case ast.ClassDef(body=body):
                for line in body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        yield line.target.id
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def uses_of(root: Path) -> dict[str, dict[str, Uses]]:
    """Return what each file knows, by mode and by the file's path."""
    found: dict[str, dict[str, Uses]] = {mode: defaultdict(Uses) for mode in MODES}
    for path in sorted(root.rglob("*.py")):
        tree, name = ast.parse(path.read_text()), str(path.relative_to(root))
        for mode, pattern in MODES.items():
            known = re.compile(pattern)
            names = sum(known.fullmatch(one) is not None for one in _names(tree))
            if not names:
                continue
            uses = found[mode][name]
            uses.names = names
            tests = list(_conditions(tree))
            uses.branches = sum(any(map(known.fullmatch, _names(test))) for test in tests)
            uses.carried = sum(known.fullmatch(one) is not None for one in _carried(tree))
    return found


def main(arguments: list[str]) -> None:
    """Print a line for each mode, of the whole package and of the layers that run a job."""
    rest = [one for one in arguments if not one.startswith("--")]
    root = Path(rest[0] if rest else Path(__file__).parent.parent) / "src" / "headrace"
    for mode, files in uses_of(root).items():
        core = {n: u for n, u in files.items() if n.partition("/")[0] in CORE and n not in OWN}
        inside = [one for one in core.values() if one.branches or one.carried]
        print(
            f"{mode:24} {len(files):3} files, {len(core):3} of the layers that run a job, "
            f"{len(inside):3} of them with {sum(one.branches for one in inside):3} branches and "
            f"{sum(one.carried for one in inside):3} fields or parameters"
        )
        if "--files" in arguments:
            for name, one in sorted(core.items(), key=lambda item: -item[1].branches):
                if one.branches or one.carried:
                    print(f"    {name:44} {one.branches:3} branches {one.carried:3} carried")


if __name__ == "__main__":
    main(sys.argv[1:])
