"""Compressed bodies: zlib, which all clients know; LZ4 frames and ZSTD, which producers of RocketMQ >= 4.9.4 may send.

Bits 8 to 10 of the sysFlag name the kind; 0 is zlib too: older Java clients, Go and Node know no other and ignore the
bits. A few hundred bytes can expand to gigabytes, so expansion stops at the caller's limit before the memory is taken.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any

from metaq.errors import BadRequest, ConfigError
from metaq.model.message import COMPRESSION_LZ4, COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD, SysFlag

LEVEL = 5
"""RocketMQ's `rocketmq.message.compressLevel`."""

_NAMES = {0: "zlib", COMPRESSION_ZLIB: "zlib", COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD"}


def compress(body: bytes, kind: int = COMPRESSION_ZLIB, level: int = LEVEL) -> bytes:
    """Return `body` compressed. `kind`: the bits for the sysFlag, beside COMPRESSED.

    Raises ConfigError: LZ4 or ZSTD without the extra that brings them.
    """
    if kind == COMPRESSION_LZ4:
        return bytes(_module("lz4.frame", kind).compress(body, compression_level=level))
    if kind == COMPRESSION_ZSTD:
        return bytes(_module("zstandard", kind).ZstdCompressor(level=level).compress(body))
    # Both numbers of zlib: 0 is what clients before 4.9.4 send.
    if kind in _NAMES:
        return zlib.compress(body, level)
    raise ConfigError(f"compression type {kind >> 8} is unknown: there are ZLIB, LZ4 and ZSTD")


def decompress(body: bytes | memoryview, sys_flag: int, limit: int) -> bytes:
    """Return the body as it was before compression; unchanged if the sysFlag says that it is not compressed.

    Raises: BadRequest: more than `limit` bytes, broken, cut short, or of an unknown kind.
            ConfigError: LZ4 or ZSTD without the extra that brings them.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return bytes(body)
    kind = sys_flag & COMPRESSION_TYPE_MASK
    if kind not in _NAMES:
        raise BadRequest(f"compression type {kind >> 8} of a body is unknown")
    if kind == COMPRESSION_LZ4:
        return _expand_lz4(body, limit)
    if kind == COMPRESSION_ZSTD:
        return _expand_zstd(body, limit)
    return inflate(body, limit)


def inflate(data: bytes | memoryview, limit: int) -> bytes:
    """Return a zlib stream (RFC 1950) expanded. Raises BadRequest: more than `limit` bytes, broken, or cut short."""
    stream = zlib.decompressobj()
    try:
        # One byte more than allowed tells "too long" from "just fits".
        expanded = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise _broken(0, len(data), error) from error
    _check(0, len(data), len(expanded), limit, whole=stream.eof)
    return expanded


def _expand_lz4(data: bytes | memoryview, limit: int) -> bytes:
    stream = _module("lz4.frame", COMPRESSION_LZ4).LZ4FrameDecompressor()
    try:
        expanded = bytes(stream.decompress(data, max_length=limit + 1))
    except (RuntimeError, EOFError) as error:
        raise _broken(COMPRESSION_LZ4, len(data), error) from error
    _check(COMPRESSION_LZ4, len(data), len(expanded), limit, whole=stream.eof)
    return expanded


def _expand_zstd(data: bytes | memoryview, limit: int) -> bytes:
    zstandard = _module("zstandard", COMPRESSION_ZSTD)
    try:
        # The library takes as much memory as the frame's head claims, before it has expanded a byte.
        told = zstandard.frame_content_size(data)
        if told > limit:
            raise _bomb(COMPRESSION_ZSTD, len(data), limit)
        return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=max(limit, 1)))
    except zstandard.ZstdError as error:
        # Without a size in the frame's head, too long and cut short are the same error.
        why = f"{error} within the limit of {limit}"
        raise _broken(COMPRESSION_ZSTD, len(data), why) from error


def _check(kind: int, size: int, expanded: int, limit: int, *, whole: bool) -> None:
    if expanded > limit:
        raise _bomb(kind, size, limit)
    if not whole:
        raise _broken(kind, size, "it is cut short")


def _bomb(kind: int, size: int, limit: int) -> BadRequest:
    return BadRequest(f"{size} bytes compressed with {_NAMES[kind]} expand to more than the limit of {limit}")


def _broken(kind: int, size: int, why: object) -> BadRequest:
    return BadRequest(f"{size} bytes compressed with {_NAMES[kind]} cannot be expanded: {why}")


def _module(name: str, kind: int) -> Any:
    try:
        # Imported at the first such body: most brokers and clients never meet one.
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"a body is compressed with {_NAMES[kind]}, and {name.partition('.')[0]} is not installed: "
            "pip install 'pymetaq[compression]'"
        ) from error
