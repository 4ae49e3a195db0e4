"""Typed settings: ``settings`` holds the tree, ``sources`` fills it and refuses mistakes."""

from headrace.config.explore import ExploreRule, ExploreSettings, UiSettings, Viewer
from headrace.config.inputs import FILE, InputSettings
from headrace.config.loader import load_settings, project_file
from headrace.config.sections import (
    EARLIEST,
    LATEST,
    AlertRule,
    BusSettings,
    Durability,
    StartPosition,
    WarehouseSettings,
    read_start,
)
from headrace.config.settings import (
    ControlSettings,
    EpochSettings,
    Explanation,
    JobSettings,
    PlacementSettings,
    Settings,
    SparkSettings,
    StandbySettings,
    StateSettings,
    StorageSettings,
    setting_keys,
)

__all__ = [
    "EARLIEST",
    "FILE",
    "LATEST",
    "AlertRule",
    "BusSettings",
    "ControlSettings",
    "Durability",
    "EpochSettings",
    "Explanation",
    "ExploreRule",
    "ExploreSettings",
    "InputSettings",
    "JobSettings",
    "PlacementSettings",
    "Settings",
    "SparkSettings",
    "StandbySettings",
    "StartPosition",
    "StateSettings",
    "StorageSettings",
    "UiSettings",
    "Viewer",
    "WarehouseSettings",
    "load_settings",
    "project_file",
    "read_start",
    "setting_keys",
]
