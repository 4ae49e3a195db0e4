"""Parameters of the soak suite."""

from __future__ import annotations

import pytest
from tests.support.soak import crossed, more


@pytest.mark.parametrize("asked", ["all", "tenth"])
def test_a_parameter_of_the_soak_suite_has_a_value_for_each_name(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK", asked)
    _, further = more(["a"], ["a", "b"])
    assert further.values == ("b",)
    quick, others = crossed([(7, 1), (40, 2)], ["bus", "exchange"])[:2], crossed([1, 2], [3, 4])[2:]
    assert quick == [((7, 1), "bus"), ((40, 2), "exchange")]
    assert [one.values for one in others] == [(1, 4), (2, 3)]
