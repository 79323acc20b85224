"""The pure-Python fallback of `native/signed.pxi`. Contract: __init__.pyi."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, Final

from metaq.wire.hot.fallback.frames import KIND_BATCH, KIND_PULL, KIND_SEND, FrameTable, json_ext

_FIELDS_MAX: Final = 32
_ROWS_MAX: Final = 256
_BYTES_MAX: Final = 256 * 1024
_KINDS: Final = frozenset((KIND_SEND, KIND_BATCH, KIND_PULL))
_SIGNATURE_BYTES: Final = 28
_LEFT_OUT: Final[tuple[frozenset[str], ...]] = (
    frozenset(), frozenset(("_UNIQUE_KEY_QUERY",)), frozenset(("_UNIQUE_KEY_QUERY", "ReqT")),
)  # fmt: skip

_Pairs = Sequence[tuple[str, Any]]


class SignKey:
    __slots__ = ("_key", "access_key")

    def __init__(self, access_key: bytes, secret: bytes) -> None:
        self.access_key = access_key
        self._key = hmac.new(secret, digestmod=hashlib.sha1)

    def signed(self, parts: Sequence[bytes | memoryview], signature: str) -> bool:
        """Return whether these parts have this signature."""
        made = self._key.copy()
        for part in parts:
            made.update(part)
        return hmac.compare_digest(base64.b64encode(made.digest()), signature.encode())


def access_key_of(table: FrameTable, row: int) -> bytes:
    ext = _signed_ext(table, row)
    return ext["AccessKey"].encode() if ext is not None else b""


def signed_rows(table: FrameTable, row: int, end: int, key: SignKey) -> int:
    if not 0 <= row <= end <= len(table):
        raise IndexError(f"rows [{row}, {end}) of {len(table)}")
    return signed_until(table, row, end, key)


def signed_until(table: FrameTable, row: int, end: int, key: SignKey) -> int:
    """signed_rows() of rows that there are."""
    end, read = min(end, row + _ROWS_MAX), 0
    while row < end and read < _BYTES_MAX:
        ext = _signed_ext(table, row)
        if ext is None or ext["AccessKey"].encode() != key.access_key:
            break
        _, _, _, _, _, start, body, stop, _ = table.rows[row]
        signature = ext.pop("Signature")
        names, content = sorted(ext), table.view[body:stop]
        if not any(
            key.signed([*(ext[name].encode() for name in names if name not in left_out), content], signature)
            for left_out in _LEFT_OUT
            if left_out <= _LEFT_OUT[0] or not left_out.isdisjoint(ext)
        ):
            break
        read += stop - start
        row += 1
    return row


def _signed_ext(table: FrameTable, row: int) -> dict[str, str] | None:
    """Return the ext fields of a row; None: there is no signature, or something is not plain."""
    kind, _, _, _, _, start, body, stop, binary = table.rows[row]
    if not table.signed or kind not in _KINDS or stop - start > _BYTES_MAX:
        return None
    head = bytes(table.view[start + 4 : body])
    pairs = _binary_pairs(head) if binary else _json_pairs(head)
    if pairs is None or len(pairs) > _FIELDS_MAX:
        return None
    ext = dict(pairs)
    if len(ext) < len(pairs) or not "".join(ext).isascii() or not ext.get("AccessKey"):
        return None
    return ext if len(ext.get("Signature", "").encode()) == _SIGNATURE_BYTES else None


def _json_pairs(head: bytes) -> _Pairs | None:
    try:
        pairs: list[tuple[str, Any]] = json.loads(json_ext(head).decode(), object_pairs_hook=list)
        if any(not name or not isinstance(value, str) for name, value in pairs):
            return None
        "".join([text for pair in pairs for text in pair]).encode()
    except (UnicodeError, ValueError, RecursionError):
        return None
    found: _Pairs = pairs
    return found


def _binary_pairs(head: bytes) -> _Pairs | None:
    at = 17 + int.from_bytes(head[13:17], "big") + 4
    pairs = []
    try:
        while at < len(head):
            size = int.from_bytes(head[at : at + 2], "big")
            name = head[at + 2 : at + 2 + size].decode()
            at += 2 + size
            size = int.from_bytes(head[at : at + 4], "big")
            value = head[at + 4 : at + 4 + size].decode()
            at += 4 + size
            if name and value:
                pairs.append((name, value))
            elif not name.isascii():
                return None
    except UnicodeError:
        return None
    return pairs
