"""Bounds of the code that tests make small, so that few rows reach them; each by a plain name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = [
    "PLACES",
    "limit",
    "limited",
]

PLACES = {
    "answer_s": "headrace.cli.jobs.stop.STOP_ANSWER_S",
    "asked_s": "headrace.control.client.ASKED_S",
    "base_every": "headrace.coordinator.epoch_executor.BASE_EVERY",
    "chunk_rows": "headrace.runtime.source.CHUNK_ROWS",
    "combine_fold_rows": "headrace.runtime.exchange.FOLD_ROWS",
    "combine_held_rows": "headrace.runtime.exchange.HELD_ROWS",
    "combine_sample_rows": "headrace.runtime.exchange.SAMPLE_ROWS",
    "combine_worth": "headrace.runtime.exchange.MIN_REDUCTION",
    "copy_reach_s": "headrace.coordinator.backup.REACHABLE_S",
    "covered_files": "headrace.state.compaction.MOST_COVERED",
    "drain_answer_s": "headrace.cli.cluster.ANSWER_S",
    "exchange_frame_bytes": "headrace.runtime.exchange.FRAME_BYTES",
    "exchange_frame_rows": "headrace.runtime.exchange.FRAME_ROWS",
    "exchange_silence_s": "headrace.runtime.exchange_network.SILENCE_S",
    "flush_bytes": "headrace.state.restore.FLUSH_BYTES",
    "generate_keys": "headrace.runtime.processors.HELD_KEYS",
    "join_flush_rows": "headrace.runtime.stream_join.FLUSH_ROWS",
    "join_send_rows": "headrace.runtime.stream_join.SEND_ROWS",
    "kept_plans": "headrace.coordinator.job_storage.KEPT_PLANS",
    "letter_tries": "headrace.runtime.node.MOST_TRIES",
    "merge_chunk_rows": "headrace.state.compaction.CHUNK_ROWS",
    "merge_cost_bytes": "headrace.state.compaction_policy.FILE_COST_BYTES",
    "merge_fan_in": "headrace.state.compaction_policy.FAN_IN",
    "merge_part_rows": "headrace.coordinator.operations.compare.PART_ROWS",
    "merge_pending_bytes": "headrace.coordinator.operations.compare.PENDING_BYTES",
    "output_frame_rows": "headrace.runtime.outputs.FRAME_ROWS",
    "partial_take_rows": "headrace.runtime.windows.partial_table.TAKE_ROWS",
    "pipe_log_bytes": "headrace.pipe.client.LOG_BYTES",
    "pipe_output_bytes": "headrace.pipe.runner.MOST_OUTPUT_BYTES",
    "pipe_wait_s": "headrace.pipe.client.WAIT_S",
    "prune_margin": "headrace.coordinator.manifest_writer.PRUNE_MARGIN",
    "redis_batch_rows": "headrace.sinks.redis.BATCH_ROWS",
    "redis_in_flight": "headrace.sinks.redis.IN_FLIGHT",
    "release_s": "headrace.coordinator.leadership.RELEASE_S",
    "restore_bytes_s": "headrace.coordinator.membership.RESTORE_BYTES_S",
    "served_recent_keys": "headrace.serving.entries.RECENT_KEYS",
    "served_churn": "headrace.serving.entries.CHUNK_ROWS",
    "several_block_rows": "headrace.runtime.multi_input.BLOCK_ROWS",
    "sink_rows": "headrace.coordinator.operations.merge.EPOCH_ROWS",
    "snapshot_gain_bytes": "headrace.state.compaction_policy.MINIMUM_GAIN_BYTES",
    "stop_grace_s": "headrace.coordinator.job_run.STOP_GRACE_S",
    "sweep_every": "headrace.coordinator.coordinator.SWEEP_EVERY",
    "task_files": "headrace.coordinator.manifest.MAX_FILES",
    "table_wait_s": "headrace.warehouse.sink.WAIT_S",
    "table_changes": "headrace.warehouse.snapshot.MOST_CHANGES",
    "table_small_bytes": "headrace.warehouse.snapshot.SMALL_BYTES",
    "totals_flush_rows": "headrace.runtime.windows.window_node.FLUSH_ROWS",
    "totals_fold_rows": "headrace.runtime.windows.window_node.FOLD_ROWS",
}
"""What a test calls a bound, and the module that has it."""

MERGE_OFTEN: dict[str, float] = {
    "merge_cost_bytes": 400,
    "merge_fan_in": 2,
    "merge_chunk_rows": 5,
    "covered_files": 3,
}
"""Files are worth merging although they are tiny: in several levels, a few rows at a time."""


def limit(patch: pytest.MonkeyPatch, **bounds: float) -> None:
    """Set bounds until the patch is undone; names are keys of ``PLACES``."""
    for name, value in bounds.items():
        patch.setattr(PLACES[name], value)


@contextmanager
def limited(**bounds: Any) -> Iterator[None]:
    """Set bounds while a block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, **bounds)
        yield
