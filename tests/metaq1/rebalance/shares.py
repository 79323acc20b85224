"""Cases of sharing out, and what the classes of MetaQ's Java client make of them: `shares.txt` was written by
tests/interop/java/Metaq1Shares.java.

A line is STRATEGY|OWN ID|MEMBER,...|BROKER:COUNT,...|SHARE; tests/interop/test_metaq1_shares.py has Java write it again.
"""

from __future__ import annotations

import random
from pathlib import Path

from metaq.metaq1.rebalance.strategies import in_java_order, strategy_of

RECORDED = Path(__file__).with_name("shares.txt")
STRATEGIES = ("DEFAULT", "CONSIST")


def share(case: str) -> str:
    """Our share for STRATEGY|OWN ID|MEMBERS|BROKERS, in the form of a line."""
    name, me, members, brokers = case.split("|")[:4]
    counts = [one.split(":") for one in brokers.split(",")]
    partitions = in_java_order(f"{broker}-{number}" for broker, count in counts for number in range(int(count)))
    mine = strategy_of(name)("t", me, in_java_order(members.split(",")), partitions)
    return f"{name}|{me}|{members}|{brokers}|{','.join(mine)}"


def cases(seed: int, count: int) -> list[str]:
    """Lines without shares: few and many partitions and members, out of order; odd ids; some ask for one who is no member."""
    chance = random.Random(seed)
    lines = []
    for number in range(count):
        brokers = chance.sample([0, 1, 2, 9, 10, 11, 100, 1023], chance.randint(1, 4))
        # A zero would make no text of the partitions; 1 000 and 2 000 are rare, for the sake of the file.
        sizes = [1, 2, 3, 4, 7, 8, 12, 16, 40]
        counts = [chance.choice(sizes) for _ in brokers]
        if number % 20 == 0:
            brokers, counts = [0], [1000]
        elif number % 20 == 10:
            brokers, counts = [3, 21], [400, 600]
        members = [_member(chance) for _ in range(chance.choice([1, 2, 3, 4, 5, 7, 16, 30]))]
        me = chance.choice(members) if chance.random() < 0.95 else "g_nobody"
        places = ",".join(f"{broker}:{size}" for broker, size in zip(brokers, counts, strict=True))
        lines += [f"{name}|{me}|{','.join(members)}|{places}" for name in STRATEGIES]
    return lines


def _member(chance: random.Random) -> str:
    number = chance.randint(0, 10**6)
    return chance.choice(
        [
            f"g_10.0.0.{number % 256}-{number}-{1_400_000_000_000 + number}-1",
            f"g_host{number}",
            f"g_{number}",
            f"g_-{number}-",
            f"g__{number}_\u00e4\u4e2d",
            f"g_\uff5e{number}",
            f"g_\U0001f600{number}",
            "g_" + "x" * (number % 90) + str(number),
        ]
    )
