"""Write a Grafana dashboard and Prometheus rules from the table of metrics, into docs/monitoring.

    python tools/monitoring.py            writes both files, and the table of rules in the guide
    python tools/monitoring.py --check    reports which are stale, and exits with 1 if any is

A metric that is added to the table gets a panel. The first row and the rules are chosen by hand,
below; ``metric`` and ``rate`` refuse a name or a label that the table does not have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from headrace.control.metrics import FAILURES, INPUTS, JOB, STAGES, STATUSES, TABLE, TASKS, Family

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "monitoring"
DASHBOARD, RULES = FOLDER / "headrace-dashboard.json", FOLDER / "headrace-rules.yml"
PAGE = ROOT / "docs" / "guide" / "observation.md"
BEGIN, END = "<!-- rules -->\n", "<!-- end of rules -->\n"
BY_NAME = {family.shown: family for family in TABLE}
ROWS = {"Job": JOB, "Hosts and tasks": FAILURES, "Stages": STAGES, "Tasks": TASKS, "Inputs": INPUTS}
UNITS = {"bytes": "bytes", "seconds": "s", "share": "percentunit"}
DEPRECATED = "deprecated: "
WIDTH, HEIGHT = 8, 7
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def metric(name: str, **labels: str) -> str:
    """Return a selector of a metric.

    Raises:
        KeyError: the table has no such metric, or label of it.
    """
    known = {*BY_NAME[name].all_labels}
    if unknown := [label for label in labels if label not in known]:
        raise KeyError(f"{name} has no label {unknown[0]}; expected one of {sorted(known)}")
    if name == "headrace_job_status" and labels.get("status", STATUSES[0]) not in STATUSES:
        raise KeyError(f"no status {labels['status']}; expected one of {STATUSES}")
    chosen = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{chosen}}}" if chosen else name


class Rule(NamedTuple):
    """An alert: its name, what is true while it fires, for how long first, and what to do."""

    name: str
    expression: str
    lasts: str
    severity: str
    when: str
    action: str


UNREAD = f"sum by (job) ({metric('headrace_input_lag_rows')})"
READ = f"sum by (job) (rate({metric('headrace_rows_total', what='in')}[5m]))"
RUNS = f"on (job) ({metric('headrace_job_status', status='running')} == 1)"
RULES_OF_OPERATORS = (
    Rule(
        "HeadraceDriverDown",
        'up{job="headrace"} == 0',
        "2m",
        "critical",
        "a driver does not answer",
        "look whether its process runs, and start it again: the job resumes at its last epoch",
    ),
    Rule(
        "HeadraceJobBehind",
        f"{UNREAD} / {READ} > 300",
        "10m",
        "warning",
        "reading what is unread takes more than 5 minutes at the current rate",
        "headrace jobs why, headrace jobs hot-keys: more slots, more tasks, or another key",
    ),
    Rule(
        "HeadraceNoEpoch",
        f"(time() - {metric('headrace_epoch_time_seconds')} > 300) "
        f"and on (job) ({UNREAD} > 0) and {RUNS}",
        "1m",
        "critical",
        "a job that runs and has unread rows committed no epoch for 5 minutes",
        "headrace jobs history --events and headrace jobs why: a lost host, a sink or a full disk",
    ),
    Rule(
        "HeadraceSlowEpochs",
        "histogram_quantile(0.95, sum by (job, part, le) "
        "(rate(headrace_epoch_seconds_bucket[10m]))) > 30",
        "10m",
        "warning",
        "one epoch of twenty takes more than 30 s",
        "headrace_epoch_step_seconds shows the step; epoch.max_rows makes epochs smaller",
    ),
    Rule(
        "HeadraceWatermarkHeld",
        f"(changes({metric('headrace_watermark_seconds')}[15m]) == 0) and on (job) ({READ} > 0)",
        "15m",
        "warning",
        "rows arrive, and event time of a stage stands still, so its windows stay open",
        "headrace jobs why names the partition; idle= on the input lets others pass it",
    ),
    Rule(
        "HeadraceDriverRestarts",
        f"changes({metric('headrace_job_start_time_seconds')}[15m]) > 3",
        "",
        "critical",
        "a driver was started more than 3 times in 15 minutes",
        "read the log of the driver; headrace jobs history --events has the last reasons",
    ),
    Rule(
        "HeadracePaused",
        f"{metric('headrace_job_status', status='paused')} == 1",
        "1h",
        "info",
        "a job has been paused for an hour",
        "headrace jobs resume",
    ),
    Rule(
        "HeadraceDeadLetters",
        f"increase({metric('headrace_rows_total', what='dead_letters')}[15m]) > 0",
        "",
        "warning",
        "rows were put into the stream of dead letters",
        "headrace dlq show prints each with its reason, and headrace dlq redrive sends them again",
    ),
    Rule(
        "HeadraceRowsDropped",
        f"increase({metric('headrace_rows_total', what='dropped')}[15m]) > 0",
        "",
        "warning",
        "rows that a function could not process were dropped",
        'on_error="dead_letter" keeps them',
    ),
    Rule(
        "HeadraceLateRows",
        f"sum by (job) (rate({metric('headrace_rows_total', what='late')}[15m])) / "
        f"sum by (job) (rate({metric('headrace_rows_total', what='in')}[15m])) > 0.01",
        "15m",
        "warning",
        "more than one row of a hundred is late",
        "out_of_orderness= of the input, or allowed_lateness= of the window, is too small",
    ),
    Rule(
        "HeadraceDiskAlmostFull",
        f"{metric('headrace_disk_free_bytes')} / {metric('headrace_disk_bytes')} < 0.1",
        "5m",
        "critical",
        "less than a tenth of a disk is free",
        "shorten the retention of streams, or lower state.keep_epochs",
    ),
    Rule(
        "HeadraceDiskFullSoon",
        f"predict_linear({metric('headrace_disk_free_bytes')}[6h], 86400) < 0",
        "1h",
        "warning",
        "at the rate of the last 6 hours, a disk is full within a day",
        "headrace_state_bytes by stage shows whether state grows: a ttl, or a larger disk",
    ),
    Rule(
        "HeadraceTasksUnassigned",
        f"increase({metric('headrace_tasks_unassigned_total')}[15m]) > 0",
        "",
        "warning",
        "tasks lost their host, and run on another one",
        "headrace jobs history --events names the host",
    ),
    Rule(
        "HeadraceNoStandbyForTask",
        f"increase({metric('headrace_failovers_impossible_total')}[15m]) > 0",
        "",
        "warning",
        "tasks lost their host, and restored their state without a standby",
        "more hosts, or more standbys: standby.copies",
    ),
    Rule(
        "HeadraceStandbysMissing",
        f"{metric('headrace_standbys_filled')} < {metric('headrace_standbys_wanted')}",
        "15m",
        "warning",
        "a stage has fewer filled standbys than wanted",
        "headrace jobs describe shows them: a host is missing, or they are still being filled",
    ),
    Rule(
        "HeadraceStandbyBehind",
        f"{metric('headrace_standby_behind_epochs')} > 50",
        "5m",
        "warning",
        "a standby lags more than 50 epochs",
        "its host is slow, or too small: headrace_standby_busy_seconds_total",
    ),
    Rule(
        "HeadraceCopyBehind",
        f"{metric('headrace_copy_behind_seconds')} > 300",
        "5m",
        "warning",
        "with state.durability=backup, the copy lags more than 5 minutes",
        "a lost host would take the job back by that much: look at the disk of job_dir",
    ),
    Rule(
        "HeadraceHotKey",
        f"{metric('headrace_hot_key_share', rank='1')} > 0.3",
        "15m",
        "info",
        "one key has more than 30 of 100 rows",
        "headrace jobs hot-keys names it: partition by a key with more values",
    ),
    Rule(
        "HeadraceOwnAlert",
        f"{metric('headrace_alert_firing')} == 1",
        "",
        "warning",
        "an alert rule of the job's settings fires",
        "headrace alerts ls",
    ),
)


def rules() -> str:
    """Return the rules file."""
    lines = [
        "# Made by tools/monitoring.py of the table of metrics.",
        "groups:",
        "  - name: headrace",
        "    rules:",
    ]
    for rule in RULES_OF_OPERATORS:
        text = f"Value {{{{ $value }}}}. What to do: {rule.action}."
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expression)}",
            *([f"        for: {rule.lasts}"] if rule.lasts else []),
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(f'{{{{ $labels.job }}}}: {rule.when}')}",
            f"          description: {json.dumps(text)}",
        ]
    return "\n".join(lines) + "\n"


def rules_table() -> str:
    """Return the page of the guide, with the table of rules."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    rows = "".join(
        f"| `{one.name}` | {one.severity} | {one.when} |\n" for one in RULES_OF_OPERATORS
    )
    return f"{head}{BEGIN}{rows}{END}{tail}"


class Panel(NamedTuple):
    """A panel of the dashboard: one query, and how it is shown."""

    title: str
    expression: str
    legend: str
    unit: str = "short"
    text: str = ""
    kind: str = "timeseries"


def panel(family: Family) -> Panel:
    """Return the panel of a metric: a gauge as it is, a counter and a histogram by their rate."""
    chosen = '{job=~"$job"}'
    legend = " ".join(f"{{{{{label}}}}}" for label in family.all_labels)
    word = family.name.rpartition("_")[2]
    unit = UNITS.get(word, "short")
    title = family.name.removeprefix("headrace_").replace("_", " ")
    title = title.removesuffix(" seconds").removesuffix(" bytes")
    if family.kind == "counter":
        expression = f"rate({family.shown}{chosen}[$__rate_interval])"
        unit = {"s": "percentunit", "bytes": "Bps"}.get(unit, "cps")
        return Panel(f"{title}, per second", expression, legend, unit, family.text)
    if family.kind == "histogram":
        labels = ", ".join((*family.all_labels, "le"))
        rate = f"rate({family.name}_bucket{chosen}[$__rate_interval])"
        expression = f"histogram_quantile(0.95, sum by ({labels}) ({rate}))"
        return Panel(f"{title}, 95 of 100", expression, legend, unit, family.text)
    if "since 1970" in family.text:  # as the time that has passed since
        expression = f"time() - {family.name}{chosen}"
        return Panel(f"{title}, ago", expression, legend, unit, family.text)
    return Panel(title, f"{family.name}{chosen}", legend, unit, family.text)


def overview() -> list[Panel]:
    """Return the first row: what an operator looks at first."""
    job = '{job=~"$job"}'
    rows_in = 'headrace_rows_total{job=~"$job",what="in"}'
    lost = 'headrace_rows_total{job=~"$job",what=~"late|dropped|dead_letters"}'
    return [
        Panel(
            "Status", 'headrace_job_status{job=~"$job"} == 1', "{{job}}: {{status}}", kind="stat"
        ),
        Panel("Unread rows", f"sum by (job) (headrace_input_lag_rows{job})", "{{job}}"),
        Panel(
            "Time to read them",
            f"sum by (job) (headrace_input_lag_rows{job}) / "
            f"sum by (job) (rate({rows_in}[$__rate_interval]))",
            "{{job}}",
            "s",
        ),
        Panel("Rows read", f"sum by (job) (rate({rows_in}[$__rate_interval]))", "{{job}}", "cps"),
        Panel(
            "Time since the last epoch",
            f"time() - headrace_epoch_time_seconds{job}",
            "{{job}}",
            "s",
        ),
        Panel(
            "Late, dropped and dead-letter rows",
            f"sum by (job, what) (rate({lost}[$__rate_interval]))",
            "{{job}} {{what}}",
            "cps",
        ),
        Panel("State of a job", f"sum by (job) (headrace_state_bytes{job})", "{{job}}", "bytes"),
        Panel(
            "Free disk",
            f"headrace_disk_free_bytes{job} / headrace_disk_bytes{job}",
            "{{job}} {{folder}}",
            "percentunit",
        ),
        Panel("Firing alerts", f"headrace_alert_firing{job} == 1", "{{job}} {{rule}}", kind="stat"),
    ]


def dashboard() -> str:
    """Return the dashboard, for Grafana 10 or later."""
    rows = {"Overview": overview()}
    for title, families in ROWS.items():
        rows[title] = [panel(one) for one in families if not one.text.startswith(DEPRECATED)]
    made: list[dict[str, Any]] = []
    top = 0
    for title, panels in rows.items():
        is_closed = title != "Overview"  # Grafana asks only for what is open
        drawn = [
            _drawn(one, number % 3, top + 1 + number // 3 * HEIGHT)
            for number, one in enumerate(panels)
        ]
        row = {
            "type": "row",
            "title": title,
            "collapsed": is_closed,
            "gridPos": {"h": 1, "w": 3 * WIDTH, "x": 0, "y": top},
            "panels": drawn if is_closed else [],
        }
        made += [row] if is_closed else [row, *drawn]
        top += 1 if is_closed else 1 + -(-len(panels) // 3) * HEIGHT
    for number, one in enumerate(_flat(made), 1):
        one["id"] = number
    whole = {
        "title": "Headrace",
        "uid": "headrace",
        "description": "Made by tools/monitoring.py of the table of metrics.",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": made,
    }
    return json.dumps(whole, indent=1) + "\n"


def _flat(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for panel in panels for one in (panel, *panel.get("panels", []))]


def _drawn(one: Panel, column: int, top: int) -> dict[str, Any]:
    return {
        "type": one.kind,
        "title": one.title[0].upper() + one.title[1:],
        "description": one.text,
        "datasource": DATASOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top},
        "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
        "options": {"textMode": "name"} if one.kind == "stat" else {},
        "targets": [
            {
                "refId": "A",
                "datasource": DATASOURCE,
                "expr": one.expression,
                "legendFormat": one.legend,
            }
        ],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "job",
            "type": "query",
            "datasource": DATASOURCE,
            "query": "label_values(headrace_epoch, job)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def written() -> dict[Path, str]:
    """Return the files as they have to be."""
    return {DASHBOARD: dashboard(), RULES: rules(), PAGE: rules_table()}


def main() -> None:
    """Write the files, or check them."""
    found = written()
    if "--check" not in sys.argv[1:]:
        for path, text in found.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return
    stale = [
        path.name
        for path, text in found.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if stale:
        raise SystemExit(f"run make docs: {', '.join(stale)} must be generated again")


if __name__ == "__main__":
    main()
