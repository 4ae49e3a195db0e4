"""Rules of alerts: what may be written, and what is said of what may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.config import load_settings
from headrace.config.sections import AlertRule
from headrace.errors import InvalidInputError


def loaded(tmp_path: Path, text: str) -> tuple[AlertRule, ...]:
    file = tmp_path / "job.toml"
    file.write_text(text)
    return load_settings(file, environ={}).alerts.rules


def rule(**fields: object) -> str:
    return "[[alerts.rules]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in fields.items())


def test_rules_are_tables(tmp_path: Path) -> None:
    text = rule(name="late", kind="lag", above=100, **{"for": "5m"}) + rule(
        name="quiet", kind="no_output", to=["log", "stream"], **{"for": "1h30m"}
    )
    late, quiet = loaded(tmp_path, text)
    assert (late.name, late.kind, late.above, late.for_ms, late.to) == (
        *("late", "lag", 100, 300_000),
        None,
    )
    assert (quiet.for_ms, quiet.to) == (5_400_000, ("log", "stream"))
    assert [late.text, quiet.text] == ["lag above 100 rows for 5m", "no output for 1h30m"]


def test_the_command_line_takes_them_in_json() -> None:
    text = json.dumps([{"name": "loop", "kind": "restart_loop", "above": 3, "for": "10m"}])
    settings = load_settings(overrides=[f"alerts.rules={text}"], environ={})
    assert [one.text for one in settings.alerts.rules] == ["more than 3 starts within 10m"]
    told = settings.explain("alerts.rules")
    assert (told.type, told.value, told.default) == (
        *("list of tables", "loop: more than 3 starts within 10m"),
        "none",
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "lag"}, "rule 1: name is missing"),
        ({"name": "a b", "kind": "lag"}, r"rule 1 \(a b\): name is 'a b'"),
        ({"name": "a", "kind": "lags"}, r"rule 1 \(a\): kind is 'lags': .*'no_output'"),
        ({"name": "a", "kind": "lag"}, "kind lag needs above, a number of rows"),
        ({"name": "a", "kind": "lag", "above": -1}, "above is -1"),
        ({"name": "a", "kind": "lag", "above": "many"}, "above is 'many'"),
        ({"name": "a", "kind": "lag", "above": 1, "for": "soon"}, "for is 'soon'; expected a dur"),
        ({"name": "a", "kind": "lag", "abov": 1}, "unknown abov; expected name, kind, above, for"),
        ({"name": "a", "kind": "no_output"}, "kind no_output needs for, a duration such as"),
        ({"name": "a", "kind": "no_output", "above": 1, "for": "1m"}, "no_output has no above"),
        ({"name": "a", "kind": "restart_loop", "above": 1}, "restart_loop needs for"),
        ({"name": "a", "kind": "lag", "above": 1, "to": ["mail"]}, "to is 'mail'"),
        ({"name": "a", "kind": "lag", "above": 1, "to": []}, "to is empty"),
    ],
)
def test_a_mistake_is_told_with_its_rule(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as told:
        loaded(tmp_path, rule(**fields))
    assert "setting alerts.rules from" in told.value.message
    assert "value error" not in told.value.message


def test_two_rules_of_one_name_are_refused(tmp_path: Path) -> None:
    text = rule(name="a", kind="lag", above=1)
    with pytest.raises(InvalidInputError, match="two rules are called 'a'"):
        loaded(tmp_path, text + text)


@pytest.mark.parametrize("text", ["[alerts]\nrules = 3\n", '[alerts]\nrules = ["lag"]\n'])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="table"):
        loaded(tmp_path, text)


def test_json_that_is_none_is_told() -> None:
    with pytest.raises(InvalidInputError, match="it is no JSON"):
        load_settings(overrides=["alerts.rules=[{"], environ={})


@pytest.mark.parametrize("key", ["alerts.webhook", "tracing.endpoint"])
def test_an_address_that_is_none_is_told(key: str) -> None:
    with pytest.raises(InvalidInputError, match=f"setting {key} from --set"):
        load_settings(overrides=[f"{key}=pager"], environ={})
