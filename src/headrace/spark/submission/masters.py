"""What each kind of Spark master takes, and what it has to be told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.errors import InvalidInputError

IMAGE, UPLOADS = "spark.kubernetes.container.image", "spark.kubernetes.file.upload.path"
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_URLS = re.compile(r"spark://[^/:]+:\d+(,[^/:]+:\d+)*|k8s://(https?://)?[^/]+(/.*)?|yarn")


class Kind(Enum):
    """A cluster manager of Spark."""

    STANDALONE = "spark"
    YARN = "yarn"
    KUBERNETES = "k8s"


@dataclass(frozen=True)
class Master:
    """Where a job is submitted to, and where its driver runs: ``client``, here, or ``cluster``."""

    url: str
    kind: Kind
    deploy_mode: str

    @property
    def is_here(self) -> bool:
        """Say whether the driver runs on this host."""
        return self.deploy_mode == "client"


def checked_master(
    url: str, deploy_mode: str, conf: Mapping[str, str], environ: Mapping[str, str]
) -> Master:
    """Return the master that a URL names.

    Args:
        url: as Spark names it.
        deploy_mode: ``client`` or ``cluster``.
        conf: settings of Spark.
        environ: of this process, in which ``spark-submit`` is going to run.

    Raises:
        InvalidInputError: it is none, or something is missing that it has to be told.
    """
    if url.startswith("local"):
        raise InvalidInputError(
            f"--master is {url!r}, which is this process; run the job with headrace run, or name a "
            "cluster: spark://host:7077, yarn or k8s://https://host:port"
        )
    if url.startswith("sc://"):
        raise InvalidInputError(
            f"--master is {url!r}: Headrace places its slots through SparkContext, which Spark "
            "Connect does not have; name the cluster behind it: spark://host:7077, yarn or k8s://"
        )
    if not _URLS.fullmatch(url):
        raise InvalidInputError(
            f"--master is {url!r}, which Spark does not know; expected spark://host:7077, yarn or "
            "k8s://https://host:port"
        )
    master = Master(url, Kind(url.partition(":")[0]), deploy_mode)
    if master.kind is Kind.STANDALONE and not master.is_here:
        raise InvalidInputError(
            "--deploy-mode cluster: a standalone master runs no Python drivers (Spark refuses it); "
            "leave it out, so that the driver runs here, or use YARN or Kubernetes"
        )
    if master.kind is Kind.YARN and not any(environ.get(name) for name in _HADOOP):
        raise InvalidInputError(
            "--master is 'yarn', and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set; name the "
            "folder with the configuration of the cluster in one of them"
        )
    if master.kind is Kind.KUBERNETES:
        _check_kubernetes(master, conf)
    return master


def _check_kubernetes(master: Master, conf: Mapping[str, str]) -> None:
    if IMAGE not in conf:
        raise InvalidInputError(
            f"--master is {master.url!r}, and the image of its containers is not known; give "
            f"--conf {IMAGE}=registry/image:tag, of an image with Spark and Python"
        )
    if not master.is_here and UPLOADS not in conf:
        raise InvalidInputError(
            f"--deploy-mode cluster on Kubernetes: the packed files have to be where the driver "
            f"finds them; give --conf {UPLOADS}=s3a://bucket/folder"
        )
