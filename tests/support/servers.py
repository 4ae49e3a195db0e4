"""Servers that stores and sinks live on, and what is looked at in them past the code under test."""

from tests.support.s3_server import S3Server

from headrace.records.keys import decode_key, encode_key
from headrace.sinks.postgres import resolved_url
from headrace.sinks.redis import compact_partials, read_partials
from headrace.testing.hdfs_server import HdfsServer
from headrace.testing.servers import PostgresServer, RedisServer, free_port, redis_binary
from headrace.testing.yarn_server import YarnServer

__all__ = [
    "HdfsServer",
    "PostgresServer",
    "RedisServer",
    "S3Server",
    "YarnServer",
    "compact_partials",
    "decode_key",
    "encode_key",
    "read_partials",
]
__all__ += ["free_port", "redis_binary", "resolved_url"]
