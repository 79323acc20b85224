"""The bits of a Bloom filter by which RocketMQ knows a group's filter again in `consumerFilter.json`."""

from __future__ import annotations

from typing import Final

BITS: Final = 112
"""For RocketMQ's defaults: 32 groups with filters, an error of 20 %."""
POSITIONS: Final = 3
_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def bit_positions(group: str, topic: str) -> list[int]:
    """Which bits stand for a group and a topic."""
    digest = murmur3_first(f"{group}#{topic}".encode())
    low, high = _signed(digest & 0xFFFFFFFF), _signed(digest >> 32)
    sums = (_signed((low + number * high) & 0xFFFFFFFF) for number in range(1, POSITIONS + 1))
    return [(~value if value < 0 else value) % BITS for value in sums]


def murmur3_first(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with seed 0, unsigned."""
    one = two = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        one ^= _mixed(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        one = (_rotated(one, 27) + two) * 5 + 0x52DCE729 & _MASK
        two ^= _mixed(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        two = (_rotated(two, 31) + one) * 5 + 0x38495AB5 & _MASK
    rest = data[whole:]
    one ^= _mixed(int.from_bytes(rest[:8], "little"), _C1, 31, _C2)
    two ^= _mixed(int.from_bytes(rest[8:], "little"), _C2, 33, _C1)
    one, two = one ^ len(data), two ^ len(data)
    one = one + two & _MASK
    two = two + one & _MASK
    return _final(one) + _final(two) & _MASK


def _mixed(word: int, first: int, turn: int, second: int) -> int:
    return _rotated(word * first & _MASK, turn) * second & _MASK


def _rotated(word: int, turn: int) -> int:
    return (word << turn | word >> (64 - turn)) & _MASK


def _final(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
