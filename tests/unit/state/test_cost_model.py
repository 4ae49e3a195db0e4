"""The paper's cost model: its formula, its figure, and the two numbers that do not follow."""

from __future__ import annotations

import pytest

from headrace.state.compaction_policy import GB, KB, TB, CostModel, break_even_rate

MINUTE = 60.0


@pytest.mark.parametrize(
    ("state", "minutes", "entry", "expected"),
    [
        (100 * TB, 20, 10, 8.33e9),  # the paper says about 10 trillion
        (100 * TB, 20, KB, 83.3e6),
        (100 * TB, 10, 10, 16.7e9),
        (100 * TB, 90, 10, 1.85e9),
        (100 * TB, 90, KB, 18.5e6),
        (100 * GB, 20, 10, 8.33e6),  # as the paper: around 10 million
        (100 * GB, 20, KB, 83.3e3),
        (100 * GB, 90, KB, 18.5e3),
    ],
)
def test_the_break_even_is_that_of_the_formula(
    state: float, minutes: float, entry: float, expected: float
) -> None:
    assert break_even_rate(state, minutes * MINUTE, entry) == pytest.approx(expected, rel=0.01)


def test_100_gb_of_10_b_are_ten_billion_entries() -> None:
    """The paper says about 10 million."""
    assert 100 * GB / 10 == 10_000_000_000


def test_at_the_break_even_both_make_the_same_data() -> None:
    for interval in (1.0, 20 * MINUTE):
        rate = break_even_rate(100 * GB, interval, 10)
        model = CostModel(100 * GB, rate, 10)
        assert model.changelog_rate == pytest.approx(model.checkpoint_rate(interval))
        assert model.break_even_rate(interval) == pytest.approx(rate)
        assert model.break_even_interval_s == pytest.approx(interval)
        assert CostModel(100 * GB, rate * 0.99, 10).prefers_changelog(interval)
        assert not CostModel(100 * GB, rate * 1.01, 10).prefers_changelog(interval)


def test_the_papers_jobs_are_far_below_the_line_of_100_tb() -> None:
    """Ten times the largest of them: 10 million changes a second."""
    for entry in (10, KB):
        for minutes in (10, 20, 90):
            assert CostModel(100 * TB, 10e6, entry).prefers_changelog(minutes * MINUTE)
    assert not CostModel(100 * GB, 10e6, 10).prefers_changelog(20 * MINUTE)


def test_a_job_that_changed_nothing_has_no_break_even() -> None:
    model = CostModel(GB, 0.0, 0.0)
    assert (model.break_even_interval_s, model.break_even_rate(1.0)) == (None, None)
    assert model.prefers_changelog(1.0)
