"""Cases of sharing out, and what RocketMQ's classes make of them: `shares.txt` was written by tests/interop/java/Shares.java.

A line is STRATEGY|OWN ID|MEMBER,...|BROKER:QUEUE ID,...|SHARE; tests/interop/test_shares.py has Java write it again.
"""

from __future__ import annotations

import random
from pathlib import Path

from metaq.client.consumer.membership.rebalance import (
    Strategy,
    average,
    circle,
    consistent_hash,
    in_order,
    machine_room,
    machine_room_nearby,
    queues_in_order,
)
from metaq.model import MessageQueue

RECORDED = Path(__file__).with_name("shares.txt")


def _room_of_queue(queue: MessageQueue) -> str:
    return queue.broker.split("@")[0]


def _room_of_member(member: str) -> str:
    return member.split("-", maxsplit=1)[0]


STRATEGIES: dict[str, Strategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": circle,
    "CONSISTENT_HASH": consistent_hash,
    "MACHINE_ROOM": machine_room({"r1", "r3"}),
    "MACHINE_ROOM_NEARBY-AVG": machine_room_nearby(_room_of_queue, _room_of_member),
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": machine_room_nearby(_room_of_queue, _room_of_member, circle),
}


def share(case: str) -> str:
    """Our share for STRATEGY|OWN ID|MEMBERS|QUEUES, in the form of a line."""
    name, me, members, places = case.split("|")[:4]
    queues = [
        MessageQueue("t", broker, int(number)) for broker, _, number in (p.rpartition(":") for p in places.split(","))
    ]
    mine = STRATEGIES[name](queues_in_order(queues), in_order(members.split(",")), me)
    return f"{name}|{me}|{members}|{places}|" + ",".join(f"{queue.broker}:{queue.queue_id}" for queue in mine)


def cases(seed: int, count: int) -> list[str]:
    """Lines without shares: few and many queues and members, out of order, rooms with and without members."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        rooms = ["r1", "r2", "r3", "r4"][: chance.randint(1, 4)]
        brokers = [f"{chance.choice(rooms)}@{name}" for name in ("a", "b", "Z", "\uff5e", "\U0001f600")]
        brokers += ["r1", "r1@", "r3@b@", "r2@b@c"]  # Java's split has opinions about these.
        brokers = chance.sample(brokers, chance.randint(1, 4))
        places = [f"{broker}:{number}" for broker in brokers for number in range(chance.choice([1, 2, 4, 7, 16]))]
        members = [
            f"{chance.choice(rooms)}-10.0.0.{number}@{chance.randint(1, 99999)}"
            for number in range(chance.randint(1, 9))
        ]
        me = chance.choice(members) if chance.random() < 0.9 else f"{rooms[0]}-10.0.0.99@1"
        chance.shuffle(places)
        chance.shuffle(members)
        lines += [f"{name}|{me}|{','.join(members)}|{','.join(places)}" for name in STRATEGIES]
    return lines
