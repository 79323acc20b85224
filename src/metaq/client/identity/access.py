"""Credentials of a client: what it signs its requests with, from arguments, a file or the environment.

Whatever is given as an argument counts alone; without arguments the environment does. Neither: requests are not signed.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.named_file import read_named
from metaq.net.tls.settings import TlsSettings, tls_settings

if TYPE_CHECKING:
    from metaq.model.acl.secret import Credentials

FILE_BYTES_MAX: Final = 64 * 1024
ENVIRONMENT: Final[Mapping[str, str]] = {
    "access_key": "METAQ_ACCESS_KEY",
    "secret_key": "METAQ_SECRET_KEY",
    "security_token": "METAQ_SECURITY_TOKEN",
    "acl_file": "METAQ_ACL_FILE",
}
"""Argument → environment variable."""

_TLS: Final = ("tls", "ca", "cert", "key", "tls_verify", "crl")


class Access(Struct, frozen=True):
    """Where a client's credentials come from, and how it connects.

    Unlike `Credentials` it can be pickled, so that each process of Spark's reads file and environment by itself. Its
    repr shows no secret.
    """

    access_key: str | None = None
    """Name of the account."""
    secret_key: str | None = None
    security_token: str | None = None
    """Of a temporary account."""
    acl_file: str | None = None
    """Path of a file in the form of RocketMQ's `tools.yml`, instead of the other three."""
    tls: bool | None = None
    """Whether connections are encrypted; None: as the environment says."""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    tls_verify: str | None = None
    crl: str | None = None
    """As those of `metaq.net.tls.settings.TlsSettings`. The password of a key comes from the environment only."""

    def __repr__(self) -> str:
        shown = f"access_key={self.access_key!r}" if self.access_key else f"acl_file={self.acl_file!r}"
        return f"Access({shown})"

    def tls_settings(self, environment: Mapping[str, str] = os.environ) -> TlsSettings | None:
        """Return the TLS of connections; None: plain text. Raises ConfigError: values that do not go together."""
        return tls_settings({name: getattr(self, name) for name in _TLS}, environment)

    def credentials(
        self, environment: Mapping[str, str] = os.environ, names: Mapping[str, str] | None = None
    ) -> Credentials | None:
        """Return what requests are signed with; None: they are not signed.

        Args:
            environment: read if no field is set.
            names: names of the fields in errors; by default as they are here.

        Raises: ConfigError: half a pair, keys and a file together, or a file that cannot be read. TypeError: no text.
        """
        fields = {name: getattr(self, name) for name in ENVIRONMENT}
        for name, value in fields.items():
            if value is not None and not isinstance(value, str):
                # Not the value: it may be a secret.
                raise TypeError(f"{name} is a {type(value).__name__}: pass text")
        if all(value is None for value in fields.values()):
            fields = {name: environment.get(variable) or None for name, variable in ENVIRONMENT.items()}
            names = ENVIRONMENT
        return _checked(fields, names or {name: name for name in ENVIRONMENT})


AS_ENVIRONMENT: Final = Access()
"""As the environment of each process says."""


def _checked(given: Mapping[str, str | None], names: Mapping[str, str]) -> Credentials | None:
    """The credentials of the texts that are given. Raises ConfigError."""
    path = given["acl_file"]
    keys = {name: value for name, value in given.items() if name != "acl_file" and value is not None}
    if path is not None:
        if keys:
            both = " and ".join(names[name] for name in keys)
            raise ConfigError(f"{both} and {names['acl_file']} are given: give the keys or the file")
        return _read(path, names["acl_file"])
    if not keys:
        return None
    for name in ("access_key", "secret_key"):
        if not keys.get(name):
            others = " and ".join(names[other] for other in keys if other != name and keys[other])
            raise ConfigError(
                f"{names[name]} is missing{f', and {others} given' if others else ''}: requests are signed with an account's "
                f"access key and secret key, both of them, or with a file ({names['acl_file']})"
            )
    for name, value in keys.items():
        if not value.isprintable() or value != value.strip():
            raise ConfigError(f"{names[name]} begins or ends with a blank, or has characters that cannot be printed")
    # Only where it is wanted: it loads OpenSSL, and short-lived processes of Spark's import this.
    from metaq.model.acl.secret import NO_SECRET, Credentials, Secret

    token = Secret(keys["security_token"]) if keys.get("security_token") else NO_SECRET
    return Credentials(keys["access_key"], Secret(keys["secret_key"]), token)


def _read(path: str, name: str) -> Credentials:
    # Only where it is wanted: it loads a reader of YAML.
    from metaq.wire.acl.reading import read_credentials

    if not path:
        raise ConfigError(f"{name} is empty: give the path of a file with accessKey and secretKey")
    whole = pathlib.Path(path).expanduser()
    return read_credentials(read_named(whole, FILE_BYTES_MAX, f"{name}:"), str(whole))
