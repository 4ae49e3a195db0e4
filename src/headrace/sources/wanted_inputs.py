"""What stands for the streams that a graph reads: by its code, by the settings, by patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from headrace.bus.readable import connector_of
from headrace.config import Settings
from headrace.config.inputs import InputSettings, split_key
from headrace.config.loader import ON_COMMAND
from headrace.errors import InvalidInputError
from headrace.graph.operators import Input, JobGraph, is_pattern


def input_settings(graph: JobGraph, settings: Settings) -> dict[str, InputSettings]:
    """Return what stands for the streams that a graph reads: by its code, or by the settings.

    What the settings say counts. Files of settings may be those of several jobs; what is given on
    the command is for this one. Logs that match a pattern are there by their own names.

    Raises:
        InvalidInputError: what is given on the command is of no input.
        LogAwayError: it is not known what matches a pattern, for nobody answers.
    """
    return {name: given for name, (_, given) in wanted_inputs(graph, settings).items()}


def wanted_inputs(graph: JobGraph, settings: Settings) -> dict[str, tuple[Input, InputSettings]]:
    """Return what stands for streams, with the first input that reads each.

    Args:
        graph: of the job.
        settings: of the run.

    Raises:
        InvalidInputError: as of ``input_settings``.
        LogAwayError: the same.
    """
    inputs = [one for one in graph.operators if isinstance(one, Input)]
    names, read = {one.named for one in inputs}, {one.stream for one in inputs}
    asked = (split_key(key) for key, by in settings.sources.items() if by.startswith(ON_COMMAND))
    for name in (part[0] for part in asked if part is not None):
        is_there = name in names and not (is_pattern(name) and not settings.inputs[name].address)
        if not is_there:
            raise _not_known(graph.name, name, sorted(names))
    coded: dict[str, InputSettings] = {}
    first: dict[str, Input] = {}
    for one in inputs:
        if any(one.address != other.address for other in inputs if other.stream == one.stream):
            raise InvalidInputError(
                f"job {graph.name!r} reads {one.stream!r} from two places; give one of them "
                "another name=",
                job=graph.name,
            )
        first.setdefault(one.stream, one)
        if one.address:
            coded[one.stream] = InputSettings(address=one.address)
    given = coded | {name: one for name, one in settings.inputs.items() if name in read}
    found = {name: (first[name], one) for name, one in given.items() if not is_pattern(name)}
    for pattern, wanted in given.items():
        if is_pattern(pattern) and wanted.address:
            for name, log in _matching(graph.name, first[pattern], wanted.address).items():
                if name in found:
                    raise InvalidInputError(
                        f"job {graph.name!r} reads {name!r} twice, as it matches {pattern!r}, too; "
                        "narrow the pattern",
                        job=graph.name,
                    )
                found[name] = log
    return found


def _matching(job: str, operator: Input, address: str) -> dict[str, tuple[Input, InputSettings]]:
    """Return what matches the pattern of an input now."""
    connector = connector_of(address)
    for text in connector.mistakes(address):
        raise InvalidInputError(
            f"setting inputs.{operator.stream}.address: {text}", job=job, input=operator.name
        )
    return {
        name: (
            replace(operator, stream=name, pattern=operator.stream),
            InputSettings(address=one),
        )
        for name, one in connector.matching(address).items()
    }


def _not_known(job: str, name: str, names: Sequence[str]) -> InvalidInputError:
    if is_pattern(name):
        why = "which is a pattern: name one stream"
    else:
        near = get_close_matches(name, names, 1)
        why = f"did you mean {near[0]!r}? " if near else ""
        why += f"job {job!r} reads {', '.join(names) or 'no stream'}"
    return InvalidInputError(f"settings inputs.{name} are of no input; {why}", job=job)
