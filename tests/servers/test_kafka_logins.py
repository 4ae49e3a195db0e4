"""A broker with TLS, clients' certificates and logins: settings pass, and secrets are hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.conftest import KEY_PASSWORD, PASSWORD, USER
from tests.servers.test_kafka_jobs import clicks, counting, feed, running_totals, sent
from tests.support.cli import headrace
from tests.support.kafka import KafkaServer, Topics, admin
from tests.support.runs import World
from tests.support.secured import Certificates

import headrace as hr
from headrace.errors import InvalidInputError

WRONG = "pw-that-is-wrong-99"
SECRETS = (PASSWORD, KEY_PASSWORD, WRONG)


def login(certificates: Certificates, **more: str) -> dict[str, str]:
    return {
        "protocol": "SASL_SSL",
        "security__protocol": "SASL_SSL",
        "ssl__ca__location": str(certificates.authority),
        "ssl__certificate__location": str(certificates.client),
        "ssl__key__location": str(certificates.client_key),
        "ssl__key__password": "env:HEADRACE_TEST_KEY_PASSWORD",
        "sasl__mechanism": "PLAIN",
        "sasl__username": USER,
        "sasl__password": "env:HEADRACE_TEST_PASSWORD",
        "socket__timeout__ms": "20000",
        **more,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_job_reads_and_writes_and_nobody_sees_its_secrets(
    kafka: KafkaServer,
    certificates: Certificates,
    mechanism: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One secret of the environment, one of a file; the input by settings, the others by code."""
    topics = Topics(kafka.address)
    theirs = f"in-{mechanism}"
    topics.create(theirs, 2)
    if mechanism != "PLAIN":
        add_scram(kafka, USER, PASSWORD)
    rows = clicks(0, 60)
    feed(topics, theirs, rows)
    monkeypatch.setenv("HEADRACE_TEST_KEY_PASSWORD", KEY_PASSWORD)
    place = tmp_path / "password"
    place.write_text(f"{PASSWORD}\n")
    own = login(certificates, sasl__mechanism=mechanism, sasl__password=f"file:{place}")
    target = kafka.url(f"out-{mechanism}", **own, key="user", partitions="3")
    sets = ("job.bounded=true", "control.enabled=false", "epoch.max_rows=40")
    home = tmp_path / "home"
    settings = World(home).settings(*sets, f"inputs.clicks.address={kafka.url(theirs, **own)}")
    between = kafka.url(f"between-{mechanism}", **own)
    result = hr.run(counting("clicks", target, via=between), settings)
    assert result.state.ended
    assert sent(topics, f"out-{mechanism}") == running_totals(rows)
    shown = [str(headrace(*words)) for words in listings(home)]
    texts = [*shown, *capfd.readouterr(), caplog.text]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != place]
    assert any(theirs.encode() in path.read_bytes() for path in files), "addresses are in them"
    for secret in SECRETS:
        assert not [text for text in texts if secret in text]
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def listings(home: Path) -> list[list[str]]:
    where = ["--home", str(home)]
    return [["jobs", "ls", *where], ["jobs", "describe", "counting", *where]]


def add_scram(server: KafkaServer, user: str, password: str) -> None:
    kind = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
    client = admin.AdminClient({"bootstrap.servers": server.address})
    change = admin.UserScramCredentialUpsertion(user, kind, password.encode())
    for one in client.alter_user_scram_credentials([change]).values():
        one.result(60)


@pytest.mark.parametrize("wrong", ["password", "authority"])
def test_a_login_that_is_refused_is_an_error_and_not_waited_for(
    kafka: KafkaServer,
    certificates: Certificates,
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a broker that is waited for; the secret is not in the message."""
    monkeypatch.setenv("HEADRACE_TEST_KEY_PASSWORD", KEY_PASSWORD)
    monkeypatch.setenv("HEADRACE_TEST_PASSWORD", WRONG if wrong == "password" else PASSWORD)
    own = login(certificates, socket__timeout__ms="5000")
    if wrong == "authority":
        own["ssl__ca__location"] = str(Certificates(tmp_path / "other", "x").authority)
    job = counting(kafka.url("never", **own), "totals")
    settings = World(tmp_path / "home").settings("job.bounded=true", "control.enabled=false")
    with pytest.raises(InvalidInputError, match="refuses this client") as caught:
        hr.run(job, settings)
    assert WRONG not in str(caught.value)
