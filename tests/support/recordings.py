"""Recordings of epochs as files: read, changed and written again, with digests that hold."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.coordinator.operations import recording_archive
from headrace.coordinator.operations.recording_archive import (
    MANIFEST,
    Member,
    Recording,
    decode_recording,
    encode_recording,
)

__all__ = ["Change", "Member", "Recording", "bound_manifest", "forged"]

Change = Callable[[Recording], Recording]


def forged(
    whole: Path,
    change: Change,
    members: Callable[[str, bytes], bytes],
) -> Path:
    """Write a recording that says something else, beside another.

    Args:
        whole: the other.
        change: of what it says.
        members: gives the bytes of each file in it, by its name and what it held.
    """
    path, held = whole.with_name("forged"), {}
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        recording = decode_recording(source.read(MANIFEST), "whole")
        for name in recording.members:
            data = members(name, source.read(name))
            held[name] = Member(len(data), hashlib.blake2b(data, digest_size=16).hexdigest())
            target.writestr(name, data)
        recording = change(msgspec.structs.replace(recording, members=held))
        target.writestr(MANIFEST, encode_recording(recording))
    return path


def bound_manifest(patch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """Read no more than this of what a recording says of itself."""
    patch.setattr(recording_archive, "MANIFEST_BYTES", most_bytes)
