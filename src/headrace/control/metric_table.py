"""Every metric: its name, what it is with its unit, and its labels. The guide has the same table.

Names are ``headrace_<what>_<unit>`` in base units, counters end in ``_total``; labels are names of
the job's own parts, never a key or a user.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Family(NamedTuple):
    """One metric; counters are named without their ``_total``."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that a query uses."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels, ``job`` first."""
        return ("job", *self.labels)


TASK = ("stage", "task")
PARTITION = ("input", "partition")

JOB = (
    Family("headrace_job_status", "gauge", "1 for the status that the job has", ("status",)),
    Family("headrace_job_start_time_seconds", "gauge", "when the driver began, s since 1970"),
    Family("headrace_job_generation", "gauge", "number of the reign that the last epoch is of"),
    Family("headrace_epoch", "gauge", "number of the last committed epoch"),
    Family("headrace_epoch_time_seconds", "gauge", "clock of the last epoch, s since 1970"),
    Family("headrace_lag_rows", "gauge", "rows that the last epoch left unread"),
    Family(
        "headrace_rows",
        "counter",
        "rows that all epochs counted: in, late, dropped, dead_letters and others",
        ("what",),
    ),
    Family("headrace_driver_epochs", "counter", "epochs of this driver"),
    Family("headrace_driver_busy_seconds", "counter", "time in epochs of this driver, s"),
    Family("headrace_driver_output_rows", "counter", "rows that left the job by this driver"),
    Family("headrace_epoch_seconds", "histogram", "how long epochs took, s", ("part",)),
    Family(
        "headrace_epoch_step_seconds",
        "histogram",
        "how long each step of epochs took, s",
        ("part", "step"),
    ),
    Family(
        "headrace_slot_step_seconds",
        "counter",
        "time of all slots in each of their steps, s",
        ("step",),
    ),
    Family("headrace_cache_reads", "counter", "stored values by where they were", ("found",)),
    Family("headrace_copy_behind_epochs", "gauge", "epochs that the copy is behind", ("part",)),
    Family("headrace_copy_behind_seconds", "gauge", "s that the copy is behind", ("part",)),
    Family("headrace_alert_firing", "gauge", "1 for a rule that fires, else 0", ("rule", "kind")),
    Family(
        "headrace_hot_key_share",
        "gauge",
        "part of the rows, 0 to 1, that the heaviest keys have lately, by rank",
        ("operator", "rank"),
    ),
)
FAILURES = (
    Family("headrace_tasks_moved", "counter", "tasks that left a host that was there"),
    Family("headrace_tasks_homeless", "counter", "tasks whose host was lost, and not back in time"),
    Family("headrace_tasks_interrupted", "counter", "tasks whose host was gone, for good or not"),
    Family("headrace_standbys_interrupted", "counter", "standbys whose host was, for good or not"),
    Family("headrace_active_failures", "counter", "tasks with standbys whose host was lost"),
    Family("headrace_standby_failures", "counter", "standbys whose host was lost"),
    Family("headrace_failovers", "counter", "tasks that went to a standby's host"),
    Family("headrace_failovers_impossible", "counter", "tasks that had no standby to go to"),
)
STAGES = (
    Family(
        "headrace_watermark_seconds", "gauge", "event time of a stage, s since 1970", ("stage",)
    ),
    Family("headrace_stage_tasks", "gauge", "tasks of a keyed stage", ("stage",)),
    Family("headrace_state_bytes", "gauge", "state of a stage, bytes, about", ("stage",)),
    Family("headrace_standbys", "gauge", "copies on other hosts", ("stage",)),
    Family("headrace_standbys_wanted", "gauge", "copies that there are to be", ("stage",)),
    Family("headrace_standbys_filled", "gauge", "copies that have all but a tail", ("stage",)),
    Family("headrace_standby_behind_epochs", "gauge", "epochs that the last is behind", ("stage",)),
    Family("headrace_standby_behind_bytes", "gauge", "bytes that the last is behind", ("stage",)),
    Family("headrace_standby_read_bytes", "counter", "changes that copies have read", ("stage",)),
    Family("headrace_standby_busy_seconds", "counter", "what copies have worked, s", ("stage",)),
    Family(
        "headrace_operator_rows",
        "counter",
        "rows that an operator received and sent",
        ("operator", "direction"),
    ),
    Family("headrace_sink_rows", "counter", "rows that were handed to a sink", ("sink",)),
)
TASKS = (
    Family("headrace_task_state_bytes", "gauge", "state of a task, bytes, about", TASK),
    Family("headrace_task_changelog_bytes", "gauge", "changes since its snapshot, bytes", TASK),
    Family("headrace_task_watermark_seconds", "gauge", "event time of a task, s since 1970", TASK),
    Family("headrace_task_last_epoch", "gauge", "last epoch that changed its state", TASK),
    Family("headrace_task_waiting_rows", "gauge", "rows that wait for asynchronous calls", TASK),
    Family(
        "headrace_task_standby_behind_epochs",
        "gauge",
        "epochs that a standby of a task is behind",
        (*TASK, "host"),
    ),
    Family(
        "headrace_store_bytes",
        "gauge",
        "live entries of a store, bytes, about, of tasks that ran under this driver",
        (*TASK, "store"),
    ),
)
INPUTS = (
    Family("headrace_input_next_offset", "gauge", "offset that is read next", PARTITION),
    Family("headrace_input_lag_rows", "gauge", "rows that lie before the job now", PARTITION),
    Family("headrace_input_time_seconds", "gauge", "highest event time, s since 1970", PARTITION),
)
TABLE = (*JOB, *FAILURES, *STAGES, *TASKS, *INPUTS)
