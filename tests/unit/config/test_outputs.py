"""Tables ``[outputs.NAME]``: from a file, the environment and ``--set``; what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load_settings
from headrace.errors import InvalidInputError

TOPIC = "kafka://host:9092/spending?key=customer"


def test_a_file_words_and_variables_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f'[outputs.totals]\naddress = "{TOPIC}"\n')
    found = load_settings(file, environ={}).outputs
    assert found == load_settings(None, [f"outputs.totals.address={TOPIC}"], environ={}).outputs
    environ = {"HEADRACE__OUTPUTS__TOTALS__ADDRESS": TOPIC}
    assert found == load_settings(None, environ=environ).outputs
    assert found["totals"].address == TOPIC


def test_the_address_of_a_stream_is_its_name_for_inputs_too() -> None:
    words = ["inputs.orders.address=file:sales", "outputs.shop.totals.address=file:spent"]
    settings = load_settings(None, words, environ={})
    assert settings.inputs["orders"].stream == "sales"
    assert settings.outputs["shop.totals"].address == "file:spent"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("outputs.x.adress=1", r"unknown setting outputs\.x\.adress; of an output there is"),
        ("outputs=3", "expected a table of settings"),
        ("outputs.x.address=totals", r"setting outputs\.x: address is no address; expected one"),
        ("outputs.x.address=", r"setting outputs\.x: address is no address; expected one"),
    ],
)
def test_a_mistake_names_the_output(word: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_settings(None, [word], environ={})
