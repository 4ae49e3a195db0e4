"""Which kinds of values can be read as another kind, and what is said of the others."""

from __future__ import annotations

import decimal
import re
from typing import Any, Literal

import msgspec
import pytest

from headrace.state.value_types import describe, value_changes


def value_type(fields: list[Any], **options: Any) -> Any:
    """A struct that is always called the same, as one that was changed in its file."""
    return msgspec.defstruct("Visit", fields, **options)


CHOICES: dict[str, tuple[Any, Any, str]] = {
    "text of a form": (str, decimal.Decimal, "were str, are now Decimal: give what is new"),
    "fewer choices": (Literal["a", "b"], Literal["a"], r"could be \['b'\], and now cannot: keep"),
    "a choice": (int, Literal[5, 6], r"could be any int, and now only \[5, 6\]: let them"),
    "null as a choice": (Literal["a", None], Literal["a"], "could be null, and now cannot"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_values_that_are_some_of_a_kind_stay_so(case: str) -> None:
    """What may be stored may become more, as one more choice, and not less."""
    old, new, message = CHOICES[case]
    before, after = (describe(value_type([("seen", kind)])) for kind in (old, new))
    [found] = value_changes(before, after)
    assert re.search(f"values of field 'seen' {message}", found)
    assert value_changes(after, before) == []


def test_a_tag_and_unknown_fields_are_seen() -> None:
    fields: list[Any] = [("seen", int), ("note", str, "-")]
    tagged, other = (describe(value_type(fields, tag=tag)) for tag in ("a", "b"))
    assert value_changes(tagged, other) == ["its values have the tag 'a', not 'b': keep the tag"]
    plain, strict = (
        describe(value_type(fields[:count], forbid_unknown_fields=count == 1)) for count in (2, 1)
    )
    [found] = value_changes(plain, strict)
    assert "have fields ['note'], which forbid_unknown_fields does not let pass" in found
    assert value_changes(strict, plain) == []
