"""Changes of inputs that need no knowledge of where they lead: bits, lengths, numbers, tokens, pieces of other inputs."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

NUMBERS = (
    b"-1", b"0", b"00", b"+1", b"1e9", b"1e400000000", b"NaN", b"2147483647", b"2147483648", b"-2147483649", b"9223372036854775807",
    b"-9223372036854775809", b"9" * 400, b"1_0", b"\xd9\xa1", b"0x10", b"1.5", b".5", b"-0",
)  # fmt: skip
TEXTS = (
    b"", b"null", b"true", b"[]", b"{}", b'""', b"\x00", b"\x01", b"\x02", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\\", b'"', b"'",
    b"../../etc/passwd", b"%RETRY%", b"T" * 300, b"\r\n", b"\n", b"\xe2\x80\xa8", b"\xc2\x85", b"\xef\xbb\xbf", b"[" * 200, b"{" * 200, b"(" * 200,
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+")


def mutated(
    chance: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes], bytes_max: int
) -> bytes:
    """These bytes with one to four things changed."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = _once(chance, data, others, words)
    return data[:bytes_max]


def _once(chance: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    found = bytearray(data)
    at = chance.randrange(len(found) + 1)
    to = min(len(found), at + chance.choice((0, 1, 1, 2, 4, 8, 40)))
    match chance.randrange(12):
        case 0 if at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        case 1 if at < len(found):
            found[at] = chance.randrange(256)
        case 2:
            del found[at : at + chance.randrange(1, 40)]
        case 3:
            found[at:to] = chance.choice(TEXTS)
        case 4:
            numbers = list(_NUMBER.finditer(data))
            if numbers:
                one = chance.choice(numbers)
                found[one.start() : one.end()] = chance.choice(NUMBERS)
        case 5 if len(found) >= 4:
            at = min(at, len(found) - 4)
            number = chance.choice((0, 1, 4, 8, len(found), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, chance.getrandbits(32)))
            found[at : at + 4] = number.to_bytes(4, "big")
        case 6 if len(found) >= 4:
            at = min(at, len(found) - 4)
            near = int.from_bytes(found[at : at + 4], "big") + chance.choice((-8, -4, -1, 1, 4, 8))
            found[at : at + 4] = (near & 0xFFFFFFFF).to_bytes(4, "big")
        case 7 if words:
            found[at:to] = chance.choice(words)
        case 8 if others:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            found[at:to] = other[start : start + chance.randrange(1, 80)]
        case 9:
            found[at:at] = found[at : at + chance.randrange(1, 60)] * chance.choice((1, 1, 3, 30))
        case 10:
            found = found[:at]
        case _:
            found[at:to] = chance.randbytes(chance.randrange(1, 6))
    return bytes(found)


def stretched(data: bytes, size: int) -> list[bytes]:
    """Inputs of about `size` bytes: pieces of this one over and over, where time that grows faster than its input shows."""
    found, step = [], max(1, len(data) // 3)
    for start in range(0, len(data), step):
        for length in (1, 7, step):
            piece = data[start : start + length]
            middle = piece * (max(0, size - len(data)) // max(1, len(piece)))
            found += [data[:start] + middle + data[start:], middle]
    return found
