"""What fuzzers of the compiled extension share: rounds from seeds, and bytes with something wrong in them."""

from __future__ import annotations

import argparse
import random
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any


def repeat(one: Callable[[random.Random], int], seed: int, rounds: int, seconds: float = 0.0) -> int:
    """Run `rounds` rounds from `seed` on, or as many as fit into `seconds`. Returns the sum of what they return.

    Raises what a round raises, AssertionError mostly, and says its seed.
    """
    found, stop, current = 0, time.monotonic() + seconds, seed
    while time.monotonic() < stop if seconds else current < seed + rounds:
        try:
            found += one(random.Random(current))
        except BaseException:
            print(f"seed {current} failed", file=sys.stderr)
            raise
        current += 1
    if seconds:
        print(f"{current - seed} rounds from seed {seed}")
    return found


def command(text: str, run: Callable[[int, int, float], int], outcome: str, rounds: int) -> None:
    """The command line of a fuzzer."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=0.0, help="as many rounds as fit into this time")
    args = parser.parse_args()
    print(f"{run(args.seed, args.rounds, args.seconds)} {outcome}")


def exactly(data: bytes) -> memoryview:
    """A copy without a byte behind it, however short it is: under ASAN, who reads further is caught."""
    return memoryview(array("B", data)[:])  # the copy has no room to grow, as the first one has; bytes end with a zero


def mostly(chance: random.Random, usual: Any, *others: Any) -> Any:
    """What is usual, seven times of eight."""
    return chance.choice(others) if chance.random() < 1 / 8 else usual


def damaged(chance: random.Random, data: bytes) -> bytes:
    """These bytes with something wrong in them, about every second time."""
    found = bytearray(data)
    at = chance.randrange(len(found) + 1)
    match chance.randrange(12):
        case 0 if at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        case 1:
            del found[at:]
        case 2:
            found[at : at + chance.randrange(20)] = chance.randbytes(chance.randrange(20))
        case 3:
            found[: chance.randrange(9)] = chance.randbytes(chance.randrange(9))
        case 4:
            found[at : at + 1] = chance.choice(
                (b"\x00", b"\x01", b"\x02", b"\\", b'"', b"\xff\xff\xff\xff", b"\xed\xa0\x80")
            )
        case 5 if len(found) >= 8:
            place = chance.choice((0, 4))
            found[place : place + 4] = chance.choice((0, 4, len(found), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)).to_bytes(
                4, "big"
            )
    return bytes(found)
