"""What a client says of TLS: by arguments, or by the environment. Loads no OpenSSL: that comes with the first connection."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.net.tls.pem import read_pem

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

VERIFY: Final = ("full", "ca", "none")
ENVIRONMENT: Final[Mapping[str, str]] = {
    "tls": "METAQ_TLS",
    "ca": "METAQ_TLS_CA",
    "cert": "METAQ_TLS_CERT",
    "key": "METAQ_TLS_KEY",
    "crl": "METAQ_TLS_CRL",
    "key_password": "METAQ_TLS_KEY_PASSWORD",
    "tls_verify": "METAQ_TLS_VERIFY",
}
"""Argument → environment variable."""
_FILES: Final = frozenset({"ca", "cert", "key", "crl"})
_SWITCH: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "": False,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class TlsSettings(Struct, frozen=True):
    """The TLS of a client's connections. Its repr shows no password."""

    ca: str = ""
    """Path of a PEM file with the certificates that are trusted; empty: those of the system."""
    cert: str = ""
    """Path of a PEM file with the certificate that the client shows if a server asks; empty: none."""
    key: str = ""
    """Path of a PEM file with the key of `cert`; empty: it is in the file of `cert`."""
    key_password: str = ""
    """Password of the key; empty: it is not encrypted."""
    tls_verify: str = "full"
    """What is checked of a server's certificate. full: who issued it, and that it is for this host; ca: only who issued it; none: nothing,
    so that an attacker in between can read and change everything."""
    crl: str = ""
    """Path of a PEM file with lists of revoked certificates, one of each authority that issues certificates of servers; those of other
    authorities are refused. Empty: revocation is not checked."""

    def __repr__(self) -> str:
        return f"TlsSettings(ca={self.ca!r}, cert={self.cert!r}, tls_verify={self.tls_verify!r}, crl={self.crl!r})"

    def open(self) -> ClientTls:
        """Read the files. Raises ConfigError: file and reason."""
        from metaq.net.tls.client import ClientTls
        from metaq.net.tls.contexts import ClientFiles, client_context

        password = (lambda: self.key_password) if self.key_password else None
        files = ClientFiles(self.ca, self.cert, self.key, password, self.tls_verify, self.crl)
        return ClientTls(client_context(files))


def tls_settings(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> TlsSettings | None:
    """Return the TLS of a client's arguments; None: plain text.

    What an argument leaves open, the environment says, if `tls` is not given as False.

    Args: given: those of `ENVIRONMENT`'s arguments that are given and not None.
    Raises: ConfigError: a value, or values that do not go together; TypeError: a wrong type.
    """
    given = {name: value for name, value in given.items() if value is not None}
    on = given.pop("tls", None)
    if on is not None and not isinstance(on, bool):
        raise TypeError(f"tls is {on!r}: pass True or False")
    texts = {name: _text(name, value) for name, value in given.items()}
    if on is None:
        switch = environment.get(ENVIRONMENT["tls"], "").strip().lower()
        if switch not in _SWITCH:
            raise ConfigError(f"{ENVIRONMENT['tls']}={switch}: need 1 or 0")
        on = _SWITCH[switch]
    if not on:
        if texts:
            raise ConfigError(f"{' and '.join(sorted(texts))} without tls=True: the connection would not be encrypted")
        return None
    said = {name: name for name in ENVIRONMENT}  # as errors name them
    for name, variable in ENVIRONMENT.items():
        if name != "tls" and name not in texts and environment.get(variable):
            texts[name], said[name] = environment[variable], variable
    settings = TlsSettings(**texts)
    if settings.tls_verify not in VERIFY:
        raise ConfigError(f"{said['tls_verify']}={settings.tls_verify!r}: allowed are {', '.join(VERIFY)}")
    if settings.key and not settings.cert:
        cert = "cert" if said["key"] == "key" else ENVIRONMENT["cert"]
        raise ConfigError(f"{said['key']} without {cert}: a key is shown with its certificate")
    if settings.crl and settings.tls_verify == "none":
        raise ConfigError(
            f"{said['crl']} with {said['tls_verify']}=none: a revoked certificate would be taken, as any other"
        )
    for name, value in texts.items():
        if name in _FILES and said[name] != name:  # `open` does not know any more that the environment named it
            read_pem(value, f"{said[name]}:")
    return settings


def _text(name: str, value: object) -> str:
    if isinstance(value, os.PathLike) and name in _FILES:
        value = os.fspath(value)
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}: pass text")  # not the value: it may be a password
    return str(pathlib.Path(value).expanduser()) if value and name in _FILES else value
