"""The dashboard and the rules are as generated, and ask only for metrics that a driver returns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import promql_parser as promql
import pytest
import yaml
from tests.docs.pages import ROOT
from tests.support.cli import ALL
from tests.support.homes import setting_keys
from tests.support.watching import TABLE

FOLDER = ROOT / "docs" / "monitoring"
DASHBOARD = json.loads((FOLDER / "headrace-dashboard.json").read_text())
(GROUP,) = yaml.safe_load((FOLDER / "headrace-rules.yml").read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PANELS += [panel for row in ROWS for panel in row["panels"]]
VARIABLES = {"$__rate_interval": "5m", "$job": "shop|carts"}

LABELS: dict[str, set[str]] = {"up": {"job", "instance"}}
for one in TABLE:
    if one.kind == "histogram":
        LABELS[f"{one.name}_bucket"] = {*one.all_labels, "le"}
    else:
        LABELS[one.shown] = {*one.all_labels}
VALUES = {
    "status": {"starting", "running", "paused", "stopping", "ended"},
    "what": {"in", "late", "dropped", "dead_letters"},
    "rank": {"1"},
}
"""What the values of some labels can be."""


def query(panel: dict[str, Any]) -> str:
    (target,) = panel["targets"]
    text: str = target["expr"]
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return text


def selected(found: Any) -> set[str]:
    """The labels that a selector's series have; its name and labels are of the table."""
    labels = LABELS[found.name]
    for matcher in found.matchers.matchers:
        assert matcher.name in labels, f"{found.name} has no label {matcher.name}"
        if matcher.name in VALUES:
            assert set(matcher.value.split("|")) <= VALUES[matcher.name]
    return labels


def labels_of(found: Any) -> set[str] | None:
    """The labels of what an expression returns; ``None``: a number.

    Prometheus drops without a word what does not match: here that fails.
    """
    match type(found).__name__:
        case "VectorSelector":
            return selected(found)
        case "MatrixSelector":
            return selected(found.vector_selector)
        case "NumberLiteral":
            return None
        case "ParenExpr":
            return labels_of(found.expr)
        case "Call":
            given = [made for arg in found.args if (made := labels_of(arg)) is not None]
            return (
                given[0] - ({"le"} if found.func.name == "histogram_quantile" else set())
                if (given)
                else None
            )
        case "AggregateExpr":
            of, kept = labels_of(found.expr), set(found.modifier.labels)
            assert of is not None
            assert kept <= of, f"{found.prettify()} keeps labels that are not there"
            return kept
        case "BinaryExpr":
            left, right = labels_of(found.lhs), labels_of(found.rhs)
            if left is None or right is None:
                return left or right
            matching = None if found.modifier is None else found.modifier.matching
            if matching is None:
                assert left == right, f"{found.prettify()} matches nothing: {left} and {right}"
            else:
                assert set(matching.labels) <= left & right
            return left
    raise AssertionError(f"no rule or panel needs {type(found).__name__}")


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bheadrace_\w+", text))


def test_the_files_are_as_they_would_be_written() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "monitoring.py", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    labels = labels_of(promql.parse(rule["expr"]))
    assert labels is not None
    annotations = rule["annotations"]
    used = re.findall(r"\$labels\.(\w+)", " ".join(annotations.values()))
    assert set(used) <= labels
    promql.parse_duration(rule.get("for", "1s"))
    assert rule["labels"] in [{"severity": word} for word in ("critical", "warning", "info")]
    said = annotations["description"]
    commands = re.findall(r"\bheadrace ((?:[a-z-]+ ?){1,2})", said)
    assert [words for words in commands if not words.startswith(tuple(ALL))] == []
    sections = {key.partition(".")[0] for key in setting_keys()}
    settings = [
        key for key in re.findall(r"\b\w+\.\w+\b", said) if key.partition(".")[0] in sections
    ]
    assert [key for key in settings if key not in setting_keys()] == []
    assert names_in(said) <= {one.shown for one in TABLE}


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    labels = labels_of(promql.parse(query(panel)))
    assert labels is not None
    (target,) = panel["targets"]
    legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert "job" in legend <= labels


def test_every_metric_has_a_panel() -> None:
    shown = names_in(" ".join(query(panel) for panel in PANELS))
    deprecated = {one.shown for one in TABLE if one.text.startswith("deprecated")}
    assert set(LABELS) - {"up"} - deprecated == shown


def test_panels_have_places_and_numbers_of_their_own() -> None:
    every = [*ROWS, *PANELS]
    assert len({panel["id"] for panel in every}) == len(every)
    for inner in [
        [p for p in PANELS if p in DASHBOARD["panels"]],
        *(row["panels"] for row in ROWS),
    ]:
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in inner]
        assert len(set(places)) == len(places)
        assert {x for x, _ in places} <= {0, 8, 16}


def test_rules_are_in_the_guide() -> None:
    page = (ROOT / "docs" / "guide" / "observation.md").read_text()
    assert [name for name in RULES if f"| `{name}` |" not in page] == []
