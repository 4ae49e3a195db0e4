"""Certificates and settings of a broker with TLS and logins, made for a test."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOGIN = "org.apache.kafka.common.security"
FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


class Certificates:
    """An authority, and what a server and a client have of it, as files.

    Args:
        folder: that they are written to.
        password: of the client's key.
    """

    def __init__(self, folder: Path, password: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        self._authority = (key, _signed("authority", key, None))
        self.authority = folder / "ca.pem"
        self.authority.write_bytes(_pem(self._authority[1]))
        self.server, self.client = folder / "server.pem", folder / "client.pem"
        own, certificate = self._made("server")
        self.server.write_bytes(_key(own, None) + _pem(certificate))
        own, certificate = self._made("client")
        self.client.write_bytes(_pem(certificate))
        self.client_key = folder / "client.key"
        self.client_key.write_bytes(_key(own, password))

    def _made(self, name: str) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        return key, _signed(name, key, self._authority)

    def properties(self, user: str, password: str) -> dict[str, str]:
        """Return the settings of a broker with ``SASL_SSL``, which asks clients for both."""
        name = "listener.name.sasl_ssl"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            f"{name}.ssl.client.auth": "required",
            f"{name}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{name}.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required "
            f'user_{user}="{password}";',
            f"{name}.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        }


def _signed(name: str, key: Any, by: tuple[Any, Any] | None) -> Any:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by[1].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(UNTIL)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(place, critical=False)
    )
    return made.sign(key if by is None else by[0], hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    return bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _key(key: Any, password: str | None) -> bytes:
    locked = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
