"""Files of certificates, keys and revocation lists, as texts. Loads no OpenSSL."""

from __future__ import annotations

from typing import Final

from metaq.errors import ConfigError
from metaq.named_file import read_named

FILE_BYTES_MAX: Final = 8 * 1024 * 1024


def read_pem(path: str, what: str) -> str:
    """Return the content of a file. `what` begins the sentence of an error. Raises ConfigError: it cannot be read, or is empty."""
    data = read_named(path, FILE_BYTES_MAX, what)
    if not data.strip():
        raise ConfigError(f"{what} {path} is empty")
    return data.decode("latin-1")
