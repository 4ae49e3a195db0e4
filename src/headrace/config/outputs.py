"""What a job writes to in place of a stream: tables ``[outputs.NAME]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config.fields import Section, read_named, setting, split_named
from headrace.config.inputs import FILE

OUTPUTS = "outputs"
OUTPUT_FIELDS = ("address",)


@dataclass(frozen=True, kw_only=True)
class OutputSettings(Section):
    """Where an output goes, instead of to the stream or the log that the code names.

    Args:
        address: of a log, such as ``kafka://host:9092/topic``; or ``file:NAME``, a stream of the
            bus.
    """

    address: str = setting("")

    def check(self) -> None:
        """Refuse what is no address."""
        if "://" not in self.address and not self.address.startswith(FILE):
            raise ValueError(
                "address is no address; expected one such as kafka://host:9092/topic, or file:NAME"
            )


def split_output_key(key: str) -> tuple[str, str] | None:
    """Return output and field that a key of settings names; ``None``: it names none."""
    return split_named(OUTPUTS, key)


def read_outputs(given: Mapping[str, Mapping[str, Any]]) -> dict[str, OutputSettings]:
    """Return what is said of each output.

    Raises:
        InvalidInputError: something that cannot be; names the output.
    """
    return read_named(OutputSettings, OUTPUTS, given)
