"""Decoder of the strings that MetaQ 1.x's log4j appender sends: Hessian 1, as metamorphosis-commons' `Hessian1Serializer`.

    63 00 01                     a call of version 1.0
    (73 COUNT CHARACTERS)*       all chunks but the last: 32 768 characters each, one less where a pair would be torn
    53 COUNT CHARACTERS          the last chunk, or the only one
    7a                           the end

COUNT is 2 bytes, big-endian, of UTF-16 units; each unit is written by itself as 1 to 3 bytes of UTF-8, so that a
character beyond U+FFFF is 6 bytes. `4e` in the place of the chunks is null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from metaq.spark.decode.batches import Plan, Value, by_batches

_HEAD, _END, _NULL = b"c\x00\x01", b"z", b"N"
_MORE, _LAST = 0x73, 0x53
_FIELDS = pa.struct([pa.field("text", pa.string())])


def hessian(column: Any = "body") -> Any:
    """Decode a Hessian 1 string of MetaQ 1.x's log4j appender: `struct<text string, _corrupt binary>`.

    A logged null is null and not corrupt. Other objects than strings are corrupt, and so is a string with half a surrogate
    pair, which no column can hold.
    """
    return by_batches(column, hessian_plan())


def hessian_plan() -> Plan:
    """Return the decoder plan of `hessian`."""
    return Plan(_FIELDS, _decoder)


def _decoder() -> Any:
    def decode(body: bytes) -> Value:
        return {"text": string_of(body)}

    return decode


def string_of(body: bytes) -> str | None:
    """Return the string of a body, or None for null. Raises ValueError: it is neither."""
    if not body.startswith(_HEAD) or not body.endswith(_END):
        raise ValueError("not a Hessian 1 call")
    at, end = len(_HEAD), len(body) - 1
    if body[at:end] == _NULL:
        return None
    chunks = []
    last = False
    while not last:
        if end - at < 3 or body[at] not in {_MORE, _LAST}:
            raise ValueError("not a string")
        last = body[at] == _LAST
        count = int.from_bytes(body[at + 1 : at + 3], "big")
        at += 3
        stop = end if last else _after(body, at, end, count)
        chunk = body[at:stop].decode("utf-8", "surrogatepass")
        # Java never writes a character of 4 bytes: beyond U+FFFF it writes the two units of the pair.
        if len(chunk) != count or (chunk and max(chunk) > "\uffff"):
            raise ValueError("the count of characters is another")
        chunks.append(chunk)
        at = stop
    # Java writes each UTF-16 unit by itself: the two of a surrogate pair become one character here.
    text = "".join(chunks)
    if text.isascii():
        return text
    # Decoded strictly: half a pair raises a ValueError, which makes the body corrupt.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _after(body: bytes, at: int, end: int, count: int) -> int:
    """Return where `count` characters from `at` on end. Costs by the characters that are there, whatever `count` claims."""
    if at + count <= end and body[at : at + count].isascii():
        return at + count
    for _ in range(count):
        if at >= end:
            raise ValueError("cut off")
        lead = body[at]
        at += 1 if lead < 0x80 else 2 if lead < 0xE0 else 3
    return min(at, end)
