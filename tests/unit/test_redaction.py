"""Text without secrets: those that look like some, and those that are known."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import InvalidInputError
from headrace.redaction import (
    SecretText,
    is_secret,
    redacted,
    remember,
    remember_setting,
    shown,
    without_login,
)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("at postgresql://me:hunter2@db/x: no", "at postgresql://me:***@db/x: no"),
        ("jdbc:x://db?user=me&password=hunter2&ssl=1", "jdbc:x://db?user=me&password=***&ssl=1"),
        ("spark.hadoop.fs.s3a.secret.key=hunter2 x", "spark.hadoop.fs.s3a.secret.key=*** x"),
        ('{"api_key": "hunter2", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("DB_PASS='hunter2' DB=x", "DB_PASS='***' DB=x"),
        ("redis://me:${PASSWORD}@host", "redis://me:${PASSWORD}@host"),
        ("password=${DB_PASSWORD}", "password=${DB_PASSWORD}"),
        ("http://host:8080/a?b=c", "http://host:8080/a?b=c"),
        ("a message(k=1, at=2): of stream 'x'", "a message(k=1, at=2): of stream 'x'"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, without: str) -> None:
    assert redacted(text) == without


def test_a_known_secret_is_hidden_wherever_it_stands() -> None:
    remember("s0-known/secret@x")
    assert redacted("said s0-known/secret@x, and s0-known%2Fsecret%40x") == "said ***, and ***"
    remember("w0rdy")
    assert (
        redacted("w0rdy is no part of w0rdyness, 'w0rdy'") == "*** is no part of w0rdyness, '***'"
    )
    remember("abc")
    assert redacted("abc is too short for a secret") == "abc is too short for a secret"


def test_a_setting_is_remembered_by_what_it_holds() -> None:
    remember_setting("alerts.webhook", "https://hooks.test/services/T0/h00kpath")
    assert redacted("POST /services/T0/h00kpath failed") == "POST /*** failed"
    remember_setting("spark.conf.x", {"y.secret": "sp4rksecret"})
    remember_setting("remote.url", "redis://me:with/sl4sh@and@host")
    assert redacted("sp4rksecret with/sl4sh@and") == "*** ***"


def test_an_error_has_no_secret_from_the_moment_it_is_made() -> None:
    error = InvalidInputError("no answer of redis://me:hunter2@host", store="x")
    assert "hunter2" not in str(error) + error.message + repr(error)
    assert "hunter2" not in str(pickle.loads(pickle.dumps(error)))


def test_settings_are_shown_without_secrets() -> None:
    assert shown("remote.url", "redis://me:pw@host") == "***"
    assert shown("spark.conf.spark.ssl.keyPassword", "x") == "***"
    assert shown("spark.conf.spark.cores.max", "4") == "4"
    assert shown("remote.url", "none") == "none"
    assert is_secret("DB_PASS")
    assert not is_secret("bypass.lane")


def test_an_address_with_a_secret_shows_none() -> None:
    address = SecretText.of("redis://me:p4ssw0rd@host/0?x=1")
    assert repr(address) == "'redis://me@host/0'"
    assert isinstance(address, str)
    assert address == "redis://me:p4ssw0rd@host/0?x=1"
    assert type(SecretText.of("redis://me:${P}@host")) is str
    assert without_login("unix:///run/redis.sock?password=x") == "unix:///run/redis.sock"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("rediss://:secret@host", "rediss://host"),
        ("redis://me:se@cret@host?password=x", "redis://me@host"),
        ("unix:///run/redis.sock?password=x", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert without_login(url) == shown
