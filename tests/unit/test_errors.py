"""Errors tell where they happened, survive the way to the driver, and have builtin parents."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from headrace import errors
from headrace.errors import (
    ClosedError,
    CorruptDataError,
    GraphError,
    HeadraceError,
    InternalError,
    InvalidInputError,
    NotOwnerError,
    UnavailableError,
    UserFunctionError,
)

BUILTIN = {
    InvalidInputError: ValueError,
    ClosedError: RuntimeError,
    InternalError: AssertionError,
    GraphError: InvalidInputError,
}


def kinds(root: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds(kind)


def test_fields_follow_the_message_unless_it_says_them() -> None:
    error = CorruptDataError("segment 'a' of epoch 3 is cut", segment="a", epoch=3, task=None)
    assert error.fields == {"segment": "a", "epoch": 3}
    assert str(error) == "segment 'a' of epoch 3 is cut"
    assert str(CorruptDataError("it is cut", epoch=3, task=1)) == "it is cut (epoch 3, task 1)"
    assert error.message == "segment 'a' of epoch 3 is cut"


@pytest.mark.parametrize(
    "kind",
    [
        HeadraceError,
        InvalidInputError,
        UnavailableError,
        NotOwnerError,
        CorruptDataError,
        ClosedError,
        InternalError,
        UserFunctionError,
    ],
)
def test_errors_travel_between_processes(kind: type[HeadraceError]) -> None:
    error = kind("it failed", stream="s", offset=7)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (back.message, back.fields) == ("it failed", {"stream": "s", "offset": 7})
    assert str(back) == str(error)
    assert isinstance(back, BUILTIN.get(kind, Exception))


def test_a_graph_error_keeps_all_mistakes() -> None:
    error = pickle.loads(pickle.dumps(GraphError("radar", ["one", "two"])))
    assert (error.job, error.problems) == ("radar", ("one", "two"))
    assert str(error) == "job 'radar' has 2 mistakes:\n  1. one\n  2. two"
    assert str(GraphError("radar", ["one"])).startswith("job 'radar' has 1 mistake:")


def test_codes_are_unlike_each_other() -> None:
    own = [kind for kind in kinds(HeadraceError) if "code" in vars(kind)]
    codes = [kind.code for kind in own]
    assert len(codes) == len(set(codes)), sorted(codes)


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    here = [kind.__name__ for kind in vars(errors).values() if isinstance(kind, type)]
    assert [name for name in here if name.endswith("Error") and name not in drawn] == []
