"""The jar of the catalog is the one of its sources; without it there is a warning."""

from __future__ import annotations

import hashlib
import zipfile

import pytest
from pyspark.sql import SparkSession
from tests.support.runs import World

from headrace.spark import java_classes
from headrace.spark.java_classes import JAR

pytestmark = pytest.mark.spark


def test_a_catalog_that_cannot_be_loaded_is_a_warning_with_its_cause(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "JAR", world.home / "none.jar")
    cause = r"\(java\.lang\.ClassNotFoundException: headrace\."
    with pytest.warns(UserWarning, match=cause) as told:
        java_classes.register_catalog(spark.newSession(), world.home)
    assert "use the option format('headrace')" in str(told[0].message)


def test_the_jar_is_made_of_the_sources() -> None:
    sources = b"".join(one.read_bytes() for one in sorted(JAR.parent.glob("*.java")))
    with zipfile.ZipFile(JAR) as jar:
        named = jar.read("SOURCE.sha256").decode()
    assert named == hashlib.sha256(sources).hexdigest(), "run make jar, and commit what it writes"
