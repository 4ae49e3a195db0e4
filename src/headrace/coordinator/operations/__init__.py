"""What commands do to a job beside its epochs: set back, removed, saved, merged, recorded."""

from __future__ import annotations
