"""Sections of settings: what a field takes, by its type and its bounds, and what is said else."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from headrace.config.fields import Section, UnfitError, setting


@dataclass(frozen=True, kw_only=True)
class Inner(Section):
    """One inside another."""

    size: int = setting(2, least=1)


@dataclass(frozen=True, kw_only=True)
class Outer(Section):
    """One of each kind."""

    name: str = setting(min_length=1, pattern="^[a-z]+$")
    share: float = setting(0.5, above=0, most=1)
    slots: int | None = setting(None)
    is_on: bool = setting(False)
    place: Path = setting(Path("here"))
    order: Literal["even", "odd"] = setting("even")
    paths: tuple[str, ...] = setting(())
    options: dict[str, int] = setting(factory=dict)
    begin: str | None = setting(None, alias="from")
    inner: Inner = setting(Inner())

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.is_on and self.slots is None:
            raise ValueError("is_on needs slots")


FULL: dict[str, Any] = {
    "name": "shop",
    "share": 1,
    "slots": 3,
    "is_on": True,
    "place": "there",
    "order": "odd",
    "paths": ["a", "b"],
    "options": {"x": 1},
    "from": "now",
    "inner": {"size": 4},
}


def test_values_have_the_types_of_their_fields() -> None:
    made = Outer.of(FULL)
    assert (made.share, made.place, made.paths) == (1.0, Path("there"), ("a", "b"))
    assert isinstance(made.share, float)
    assert (made.begin, made.inner.size) == ("now", 4)
    assert made == Outer(
        name="shop", share=1, slots=3, is_on=True, place=Path("there"), order="odd",
        paths=("a", "b"), options={"x": 1}, begin="now", inner=Inner(size=4),
    )  # fmt: skip


def test_what_differs_from_the_defaults_makes_the_same_again() -> None:
    made = Outer.of(FULL)
    assert made.given() == FULL
    assert Outer.of(made.given()) == made
    assert Outer(name="shop", inner=Inner()).given() == {"name": "shop"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("slots", "3", 3),
        ("slots", " 3 ", 3),
        ("share", "0.25", 0.25),
        ("is_on", "False", False),
        ("is_on", "no", False),
        ("place", "a b", Path("a b")),
        ("from", " now", " now"),
    ],
)
def test_text_stands_for_values(name: str, text: str, expected: object) -> None:
    made = Outer.of({"name": "shop", name: text}, is_text=True)
    assert getattr(made, {"from": "begin"}.get(name, name)) == expected


@pytest.mark.parametrize(
    ("changes", "at", "reason"),
    [
        ({"slots": "3"}, "slots", "expected an integer"),
        ({"slots": True}, "slots", "expected an integer"),
        ({"slots": 1.5}, "slots", "expected an integer"),
        ({"is_on": 1}, "is_on", "expected true or false"),
        ({"share": "half"}, "share", "expected a number"),
        ({"share": 0}, "share", "it must be above 0"),
        ({"share": 1.5}, "share", "it must be at most 1"),
        ({"share": float("nan")}, "share", "it must be above 0"),
        ({"name": ""}, "name", "it must not be empty"),
        ({"name": "A"}, "name", "it must match"),
        ({"name": 3}, "name", "expected text"),
        ({"place": 3}, "place", "expected a path"),
        ({"order": "all"}, "order", "expected 'even' or 'odd'"),
        ({"paths": "a"}, "paths", "expected a list"),
        ({"paths": ["a", 3]}, "paths", "expected text"),
        ({"options": []}, "options", "expected a table"),
        ({"options": {"x": "y"}}, "options.x", "expected an integer"),
        ({"inner": {"size": 0}}, "inner.size", "it must be at least 1"),
        ({"inner": {"sizes": 1}}, "inner.sizes", "unknown"),
        ({"inner": 3}, "inner", "expected a table"),
        ({"begin": "now"}, "begin", "unknown"),
        ({"slots": None}, "", "is_on needs slots"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(
    changes: dict[str, Any], at: str, reason: str
) -> None:
    with pytest.raises(UnfitError) as caught:
        Outer.of({**FULL, **changes})
    assert ".".join(caught.value.at) == at
    assert reason in caught.value.reason


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(UnfitError, match="name: it is missing"):
        Outer.of({})


def test_what_is_said_does_not_show_the_value() -> None:
    for changes in ({"slots": "hunter2"}, {"name": "Hunter2"}, {"share": "hunter2"}):
        with pytest.raises(UnfitError) as caught:
            Outer.of({**FULL, **changes}, is_text=True)
        assert "unter2" not in "".join(traceback.format_exception(caught.value))
