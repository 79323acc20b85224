"""Certificates for tests, made by `cryptography`: an authority, what it issues, and its list of revoked certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import pathlib
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
DAY = dt.timedelta(days=1)


def new_key(kind: str = "P-256") -> Key:
    """`P-256`, `secp256k1` (no TLS client takes it), `rsa`, `ed25519`."""
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key({"P-256": ec.SECP256R1, "secp256k1": ec.SECP256K1}[kind]())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A root certificate with its key. `cert`: its file, for those who trust it.

    `identifiers`: certificates name their key and that of their issuer, as `ssl.create_default_context` of Python 3.13 and newer wants it.
    """

    def __init__(self, folder: pathlib.Path, name: str = "tests", *, identifiers: bool = True) -> None:
        self.folder, self._name, self._key = folder, _name(f"authority of {name}"), new_key()
        self._identifiers = identifiers
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(self._name).issuer_name(self._name)
            .public_key(self._key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - 400 * DAY).not_valid_after(now + 400 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(
                digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            ), critical=True)
        )  # fmt: skip
        self._made = self._identified(made, self._key).sign(self._key, hashes.SHA256())
        self.cert = folder / f"{name}-ca.pem"
        self.cert.write_bytes(self._made.public_bytes(serialization.Encoding.PEM))

    def _identified(self, builder: x509.CertificateBuilder, key: Key) -> x509.CertificateBuilder:
        if not self._identifiers:
            return builder
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return builder.add_extension(issuer, critical=False).add_extension(own, critical=False)

    def issue(
        self,
        name: str,
        *,
        kind: str = "P-256",
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        days: tuple[int, int] = (-1, 30),
        password: str = "",
        usage: x509.ObjectIdentifier | None = None,
    ) -> Issued:
        """Issue a certificate for `hosts`, valid in these days from now; `password` encrypts the key."""
        key, now = new_key(kind), dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name)).issuer_name(self._name)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY).not_valid_after(now + days[1] * DAY)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        )  # fmt: skip
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        made = self._identified(builder, key).sign(self._key, hashes.SHA256())
        cert, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        locked = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        # PKCS#8, the only form that Java's clients and servers read.
        form = serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
        return Issued(cert, private, made.serial_number)

    def revoke(self, *issued: Issued, days: tuple[int, int] = (-1, 30)) -> pathlib.Path:
        """Return the file of a list of revoked certificates, which holds in these days from now."""
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now + days[0] * DAY).next_update(now + days[1] * DAY)
        for one in issued:
            revoked = (
                x509.RevokedCertificateBuilder().serial_number(one.serial).revocation_date(now + days[0] * DAY).build()
            )
            builder = builder.add_revoked_certificate(revoked)
        path = self.cert.with_name(f"{self.cert.stem}-revoked.pem")
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


class Issued:
    """Files of a certificate and its key."""

    def __init__(self, cert: pathlib.Path, key: pathlib.Path, serial: int) -> None:
        self.cert, self.key, self.serial = cert, key, serial


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


FOR_CLIENTS = ExtendedKeyUsageOID.CLIENT_AUTH
FOR_SERVERS = ExtendedKeyUsageOID.SERVER_AUTH
