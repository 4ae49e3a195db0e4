"""A real S3 server holds the contracts of an object storage and of a commit log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.s3_server import S3Server
from tests.support.storages import new_name

from headrace.cloud.storage import CloudStorage
from headrace.objects import ObjectStorage
from headrace.testing.commit_log_contract import CommitLogContract
from headrace.testing.object_storage_contract import ObjectStorageContract


@pytest.fixture(autouse=True)
def found(s3: S3Server) -> S3Server:
    return s3


class TestCloudStorage(ObjectStorageContract):
    def open(self) -> ObjectStorage:
        return CloudStorage("s3", "tests")


class TestCommitLog(CommitLogContract):
    """Each process has a folder of its own; what they share is the bucket."""

    opener = "tests.support.logs:open_log"

    @pytest.fixture(autouse=True)
    def prefix(self, s3: S3Server) -> None:
        self.name = new_name()
        self.environment = s3.environment()

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "_remote" / "s3" / "tests" / self.name / "log")
