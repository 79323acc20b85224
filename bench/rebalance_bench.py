"""Sharing out anew: how long after kill -9 of one member of a group all queues have owners again.

    python bench/rebalance_bench.py                          # 1 000 queues, 20 members, a broker of its own
    python bench/rebalance_bench.py --rocketmq               # the same members at RocketMQ 4.9.7
    python bench/rebalance_bench.py --queues 100 --members 5

Prints one JSON object. Every member is a process of its own with one `metaq.Consumer`; it tells its queues, with the
system's monotonic time, whenever its share has changed and it pulls them. `seconds` is from the kill to the moment when
the last queue had its new owner; `start_seconds` from the start of the first member to the first complete sharing.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import processes
import rocketmq

MEMBER = """
import json, sys, time
import metaq

namesrv, topic, name, strategy = sys.argv[1:]

def told(topic, queues, mine):
    print(json.dumps([time.monotonic(), [queue.queue_id for queue in mine]]), flush=True)

with metaq.Consumer(namesrv, group="rebalance", topics=topic, instance_name=name, strategy=strategy, on_share=told) as consumer:
    for message in consumer:
        message.ack()
"""


class Member:
    """One process; `queues` are those that it told last, at `told` (monotonic seconds)."""

    def __init__(self, server: processes.Server, topic: str, name: str, strategy: str) -> None:
        self.queues: frozenset[int] = frozenset()
        self.told = 0.0
        command = [sys.executable, "-c", MEMBER, server.namesrv, topic, name, strategy]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(processes.ROOT / "src")}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told, queues = json.loads(line)
            self.told, self.queues = told, frozenset(queues)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _complete(members: list[Member], queues: int) -> bool:
    """Whether every queue has exactly one owner."""
    owned = [queue for member in members for queue in member.queues]
    return len(owned) == queues == len(set(owned))


def _wait(members: list[Member], queues: int) -> None:
    deadline = time.monotonic() + processes.PATIENCE
    while not _complete(members, queues):
        assert all(member.process.poll() is None for member in members), "a member ended"
        assert time.monotonic() < deadline, f"the shares are {[len(member.queues) for member in members]}"
        time.sleep(0.005)


def measure(server: processes.Server, queues: int, count: int, strategy: str = "average") -> dict[str, float]:
    """One kill. Seconds until all queues are owned again, and what the first sharing took."""
    from metaq.admin import Admin

    with Admin(server.namesrv) as admin:
        admin.create_topic("rebalance", queues=queues)
    began = time.monotonic()
    members = [Member(server, "rebalance", f"member-{number:02}", strategy) for number in range(count)]
    try:
        _wait(members, queues)
        first = max(member.told for member in members) - began
        _settle(members)
        victim = members.pop(random.Random(1).randrange(count))
        lost = victim.queues
        killed = time.monotonic()
        victim.end()
        _wait(members, queues)
        again = max(member.told for member in members) - killed
        return {"seconds": again, "start_seconds": first, "queues_of_the_dead": len(lost), "members": count}
    finally:
        for member in members:
            member.end()


def _settle(members: list[Member]) -> None:
    """Until no member's share has changed for two seconds."""
    while time.monotonic() - max(member.told for member in members) < 2.0:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--strategy", default="average")
    parser.add_argument("--rocketmq", action="store_true", help="members at RocketMQ 4.9.7 instead of a broker of ours")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    running = rocketmq.running if arguments.rocketmq else processes.metaq_up
    with running(arguments.disk) as server:
        print(json.dumps(measure(server, arguments.queues, arguments.members, arguments.strategy)))


if __name__ == "__main__":
    main()
