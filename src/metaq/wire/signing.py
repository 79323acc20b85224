"""Signatures of requests, as RocketMQ's clients make them.

A signed request has the ext fields `AccessKey`, `Signature` and, of temporary accounts, `SecurityToken`. What is signed are the
values of the ext fields in the order of their names, without separators, and the body behind them; the signature is the HMAC-SHA1
of that in base64. Neither the code nor the names of the fields are signed, no time and no number that is used once: a request that
was overheard can be sent again, by anybody, until the secret changes. Only TLS is against that.

Clients differ in which fields they sign. Those up to 4.9.3 take the fields of the typed header, and add others afterwards; newer ones
take every field. A broker of 4.9.4 to 4.9.8 leaves `_UNIQUE_KEY_QUERY` out, whatever the client did, and so refuses queries by id of
its own clients. `verify` takes all of them.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final

from metaq.model.acl.secret import Credentials, Secret
from metaq.wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  the field's name

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""In requests 12: the key is a message's id. Changes what is looked up, not what may be."""
STREAM_REQUEST: Final = "ReqT"
"""In requests of consumers with the stream flag. Means nothing to a broker."""

DIALECTS: Final[tuple[frozenset[str], ...]] = (
    frozenset(),
    frozenset({UNIQUE_KEY_QUERY}),
    frozenset({UNIQUE_KEY_QUERY, STREAM_REQUEST}),
)
"""Fields beside the signature that may be left out of what is signed: of clients >= 4.9.4; of clients that sign what brokers of
4.9.4 to 4.9.8 verify; of clients <= 4.9.3.

Not more: whoever is between client and broker can change unsigned fields.
"""


_SHA1_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
"""Tables that mix HMAC's inner and outer padding into a key."""


def content(ext: Mapping[str, str], body: bytes | memoryview = b"", left_out: Collection[str] = ()) -> bytes:
    """Return what is signed of a request.

    Args:
        ext: its ext fields. A signature among them does not count.
        body: its body.
        left_out: further fields that do not count.
    """
    names = sorted(ext) if "".join(ext).isascii() else sorted(ext, key=_java_order)
    text = "".join([ext[name] for name in names if name != SIGNATURE and name not in left_out])
    return b"".join((_utf8(text), body))


def signature(signed: bytes, secret: Secret) -> str:
    """Return the signature of what `content` returned."""
    return binascii.b2a_base64(hmac.digest(_utf8(secret.reveal()), signed, "sha1"), newline=False).decode()


class Signer:
    """Makes many signatures with one secret: the two hashes of HMAC begin with what is computed once. From any thread."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: Secret) -> None:
        key = _utf8(secret.reveal())
        if len(key) > _SHA1_BLOCK_BYTES:
            key = hashlib.sha1(key).digest()  # noqa: S324  as RocketMQ has it
        key = key.ljust(_SHA1_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER))  # noqa: S324
        self._outer = hashlib.sha1(key.translate(_OUTER))  # noqa: S324

    def __call__(self, signed: bytes) -> bytes:
        """Return the signature of what `content` returned, as it is sent."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(signed)
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False)


def sign(command: Command, credentials: Credentials, left_out: Collection[str] = (UNIQUE_KEY_QUERY,)) -> None:
    """Add the fields of a signature to a request. Everything else of it must be complete; a signature that it has is replaced.

    `left_out` is as brokers of 4.9.4 to 4.9.8 verify. Ours take either.
    """
    ext = command.ext
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        ext[SECURITY_TOKEN] = credentials.security_token.reveal()
    ext[SIGNATURE] = signature(content(ext, command.body, left_out), credentials.secret_key)


def verify(ext: Mapping[str, str], body: bytes | memoryview, secret: Secret) -> bool:
    """Return whether a request is signed with the secret, in any of the dialects.

    The work is one pass over the body, or up to three if the request has fields in which dialects differ.
    """
    given = ext.get(SIGNATURE)
    if not given:
        return False
    for left_out in _dialects(ext):
        expected = signature(content(ext, body, left_out), secret)
        if hmac.compare_digest(_utf8(expected), _utf8(given)):
            return True
    return False


def _dialects(ext: Mapping[str, str]) -> Collection[frozenset[str]]:
    """The dialects that make a difference for a request."""
    if UNIQUE_KEY_QUERY not in ext and STREAM_REQUEST not in ext:
        return DIALECTS[:1]
    return dict.fromkeys(dialect.intersection(ext) for dialect in DIALECTS)


def _java_order(name: str) -> bytes:
    """Java compares texts by their UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # as Java, which writes '?' for half a character
