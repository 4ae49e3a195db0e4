"""The page on settings lists every setting, as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.support.homes import Settings, load_settings, setting_keys

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "settings.md"


def test_the_table_is_what_explain_says() -> None:
    told = [Settings().explain(key) for key in setting_keys()]
    expected = [f"| `{e.key}` | {e.type} | `{e.default}` | {e.description} |" for e in told]

    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]

    assert expected == rows


def test_the_example_loads(tmp_path: Path) -> None:
    example = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "job.toml"
    file.write_text(example)

    settings = load_settings(file, environ={})

    assert settings.job.tasks == tomllib.loads(example)["job"]["tasks"]
    assert settings.spark.conf == {"spark.executor.memory": "4g"}
