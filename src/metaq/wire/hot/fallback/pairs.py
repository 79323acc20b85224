"""The pure-Python fallback of the compiled extension: property texts to Arrow's buffers of a map column. See
__init__.pyi."""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final

_ENDED: Final = 1
_ODD: Final = 2
_NOT_TEXT: Final = 4
_MASK31 = 0x7FFFFFFF
_VIEW = struct.Struct("=i4sii")


def property_pairs(data: Any, views: Any) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    view, cells = memoryview(data).cast("B"), memoryview(views).cast("B")
    texts = [_text(view, cells, row) for row in range(len(cells) // 16)]
    if (total := sum(map(len, texts))) > _MASK31:
        raise ValueError(f"{total} bytes: Arrow's offsets reach 2 GiB")
    pairs = [_pairs(text) for text in texts]
    every = [pair for found in pairs for pair in found]
    return (
        _ends([len(found) for found in pairs]),
        _ends([len(name) for name, _ in every]), b"".join(name for name, _ in every),
        _ends([len(value) for _, value in every]), b"".join(value for _, value in every),
        bytes(_kind(text, found) for text, found in zip(texts, pairs, strict=True)),
    )  # fmt: skip


def _text(view: memoryview, cells: memoryview, row: int) -> bytes:
    size, _, _, at = _VIEW.unpack_from(cells, 16 * row)
    if size < 0 or (size > 12 and not 0 <= at <= len(view) - size):
        raise ValueError(f"the properties of row {row} are not in the data")
    return bytes(cells[16 * row + 4 : 16 * row + 4 + size] if size <= 12 else view[at : at + size])


def _pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    pieces = (piece.partition(b"\x01") for piece in text.split(b"\x02"))
    return [(name, value) for name, _, value in pieces if name and value]


def _kind(text: bytes, pairs: list[tuple[bytes, bytes]]) -> int:
    more = len(text) - max(0, sum(len(name) + len(value) + 2 for name, value in pairs) - 1)
    kind = 0 if more == 0 else _ENDED if more == 1 and text.endswith(b"\x02") else _ODD
    try:
        text.decode()
    except UnicodeDecodeError:
        return kind | _NOT_TEXT
    return kind


def _ends(sizes: list[int]) -> bytes:
    return struct.pack(f"={len(sizes) + 1}i", 0, *itertools.accumulate(sizes))
