"""Typed settings: ``settings`` holds the tree, ``sources`` fills it and refuses mistakes."""

from headrace.config.loader import load_settings, project_file
from headrace.config.sections import BusSettings, WarehouseSettings
from headrace.config.settings import (
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
    "WarehouseSettings",
    "load_settings",
    "project_file",
    "setting_keys",
]
