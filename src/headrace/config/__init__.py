"""Typed settings: ``settings`` holds the tree, ``sources`` fills it and refuses mistakes."""

from headrace.config.settings import (
    BusSettings,
    EpochSettings,
    Explanation,
    JobSettings,
    PlacementSettings,
    Settings,
    SparkSettings,
    StandbySettings,
    StateSettings,
    setting_keys,
)
from headrace.config.sources import load_settings

__all__ = [
    "BusSettings",
    "EpochSettings",
    "Explanation",
    "JobSettings",
    "PlacementSettings",
    "Settings",
    "SparkSettings",
    "StandbySettings",
    "StateSettings",
    "load_settings",
    "setting_keys",
]
