"""Signatures by Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over id, time and body.

    webhook-id: 7F0000010A2B18B4AAC2000000000001
    webhook-timestamp: 1700000000
    webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=

A secret is `whsec_` and Base64 of 24 to 64 bytes. While one is replaced by another, each request has a signature by both, separated
by a blank, and the receiver takes it if either is right.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from metaq.errors import ConfigError, MetaqError
from metaq.named_file import read_named

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
TOLERANCE_SECONDS: Final = 300
"""How far a request's time may be from the receiver's, either way."""
_SECRET_BYTES: Final = range(24, 65)
_FILE_BYTES_MAX: Final = 64 << 10
_SECRETS_MAX: Final = 8


class SignatureWrong(MetaqError):
    """A request is not from whom has the secret, was changed on its way, or is too old."""


class Secret:
    """A key for signatures. Neither its repr nor an error shows it."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        """Args: text: `whsec_` and Base64. Raises ConfigError, which does not repeat it."""
        try:
            coded = text.removeprefix(PREFIX)
            self._key = base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)  # many leave the end out
        except (binascii.Error, ValueError):
            raise ConfigError(
                f"a webhook's secret is {PREFIX} and Base64: `metaq webhook secret FILE` makes one"
            ) from None
        if len(self._key) not in _SECRET_BYTES:
            raise ConfigError(
                f"a webhook's secret has {len(self._key)} bytes: need {_SECRET_BYTES[0]} to {_SECRET_BYTES[-1]}; "
                "`metaq webhook secret FILE` makes one"
            )

    def __repr__(self) -> str:
        return "<Secret>"

    def sign(self, content: bytes) -> str:
        """Return the signature of a text as the header field has it."""
        return "v1," + base64.b64encode(hmac.digest(self._key, content, hashlib.sha256)).decode()


def read_secrets(paths: Iterable[str | Path]) -> tuple[Secret, ...]:
    """Return the secrets in files: one a line; empty lines and lines that begin with `#` are skipped.

    Raises ConfigError: a file cannot be read or has none, a line is no secret (its number is told), or there are more than 8.
    """
    found: list[Secret] = []
    for path in paths:
        before = len(found)
        try:
            lines = read_named(path, _FILE_BYTES_MAX, "secretFiles:").decode().splitlines()
        except UnicodeDecodeError:
            raise ConfigError(f"secretFiles: {path} is no text") from None
        for number, line in enumerate(lines, 1):
            if not (text := line.strip()) or text.startswith("#"):
                continue
            try:
                found.append(Secret(text))
            except ConfigError as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None
        if len(found) == before:
            raise ConfigError(f"secretFiles: {path} has no secret")
    if len(found) > _SECRETS_MAX:
        raise ConfigError(f"secretFiles: {len(found)} secrets, {_SECRETS_MAX} are at most: each signs every request")
    return tuple(found)


def signed_fields(secrets: Sequence[Secret], message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the header fields of a request. Without secrets: id and time alone.

    Args: message_id: the same whenever the message is posted. seconds: since 1970, of this attempt.
    """
    fields = {ID: message_id, TIMESTAMP: str(seconds)}
    if secrets:
        content = _content(message_id, str(seconds), body)
        fields[SIGNATURE] = " ".join(secret.sign(content) for secret in secrets)
    return fields


def verify(secrets: Sequence[Secret], fields: Mapping[str, str], body: bytes, now_seconds: float) -> str:
    """Verify a request that came in. Returns the id of its message. Raises SignatureWrong.

    Args: fields: header fields of the request, by names in lower case. body: as it came. now_seconds: since 1970.
    """
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not fields.get(name)]
    if missing:
        raise SignatureWrong(f"the request has no {', '.join(missing)}")
    told = fields[TIMESTAMP]
    if not (told.isascii() and told.isdecimal() and len(told) <= 12):
        raise SignatureWrong(f"{TIMESTAMP} is no number of seconds")
    if abs(now_seconds - int(told)) > TOLERANCE_SECONDS:
        raise SignatureWrong(
            f"the request is more than {TOLERANCE_SECONDS} s from now: it is an old one, or a clock is wrong"
        )
    content = _content(fields[ID], told, body)
    given = [one.encode() for one in fields[SIGNATURE].split()]
    for secret in secrets:
        wanted = secret.sign(content).encode()
        if any(hmac.compare_digest(wanted, one) for one in given):
            return fields[ID]
    raise SignatureWrong("the signature is by none of the secrets: the body was changed, or the secret is another")


def _content(message_id: str, seconds: str, body: bytes) -> bytes:
    return b"%s.%s.%s" % (message_id.encode(), seconds.encode(), body)
