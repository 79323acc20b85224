"""What failover costs, and how long it takes.

    python bench/failover_bench.py kill --rounds 10       kill -9 of the leader: from then to the first acknowledgement of the next one
    python bench/failover_bench.py sends --rounds 5       sends a second of a group of two, beside a pair of master and slave
    python bench/failover_bench.py hand-over --rounds 10  the leader moves by command: the longest pause of a producer

Needs Java and the jars of ZooKeeper, as `metaq.testing.Cluster(zookeeper=True)` does. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import threading
import time

import processes
from metaq import Producer
from metaq.admin import Admin
from metaq.errors import MetaqError
from metaq.testing import Cluster, eventually

SESSION_MS = 1000
"""The shortest that a ZooKeeper with ticks of 500 ms allows."""
TOPIC = "failover"
BODY = b"x" * 100
SETTLE_SECONDS = 2.0


def group(**more: object) -> Cluster:
    options = {"failover": "zookeeper", "failoverSessionTimeout": SESSION_MS, "inSyncTimeout": 5000, **more}
    return Cluster(brokers=1, replicas=2, zookeeper=True, options=options)


def pair() -> Cluster:
    return Cluster(brokers=1, replicas=2, options={"brokerRole": "SYNC_MASTER"})


class Sending:
    """A producer that sends one message after the other, and notes when each was acknowledged."""

    def __init__(self, namesrv: str) -> None:
        self._producer = Producer(namesrv, timeout=30)
        self.acked: list[float] = []
        self.failed: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._producer.send(TOPIC, BODY)
            except MetaqError as error:
                self.failed.append(str(error))
            else:
                self.acked.append(time.monotonic())

    def longest(self, since: float) -> float:
        """The longest time between two acknowledgements since then, s."""
        times = [since, *(at for at in self.acked if at >= since)]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._producer.close()


def in_sync(cluster: Cluster) -> None:
    """Wait until one leads and the other one is in its in-sync set."""
    deadline = time.monotonic() + processes.PATIENCE
    while time.monotonic() < deadline:
        leaders = [state for state in cluster.states().values() if state.leads]
        if len(leaders) == 1 and leaders[0].group is not None and len(leaders[0].group.in_sync) == cluster.replicas:
            return
        time.sleep(0.05)
    raise RuntimeError("the group is not in sync")


def election_seconds(log_text: str) -> float:
    """From when a follower has seen that nobody leads until it leads, as its log says."""
    found: dict[str, float] = {}
    for line in log_text.splitlines():
        at = re.match(r"\S+ (\d+):(\d+):(\d+),(\d+) .*?(nobody leads|this broker, member \d+, leads)", line)
        if at:
            hours, minutes, seconds, ms = (int(at.group(number)) for number in range(1, 5))
            found["missing" if at.group(5).startswith("nobody") else "leads"] = (
                hours * 3600 + minutes * 60 + seconds + ms / 1000
            )
    return found["leads"] - found["missing"]


def kill(rounds: int) -> dict[str, object]:
    first_acks, elections, failed = [], [], 0
    with group() as cluster:
        in_sync(cluster)
        with Admin(cluster.namesrv) as admin:
            eventually(lambda: admin.create_topic(TOPIC, queues=4), what="a leader is registered")
        for _ in range(rounds):
            in_sync(cluster)
            sending = Sending(cluster.namesrv)
            try:
                time.sleep(SETTLE_SECONDS)
                leader = cluster.leader()
                assert leader is not None, "it is in sync"
                other = cluster.brokers[1 - leader]
                said = len(other.log_text())
                killed_at = time.monotonic()
                cluster.brokers[leader].kill()
                while not sending.acked or sending.acked[-1] < killed_at + 0.05:
                    time.sleep(0.001)
                first_acks.append(next(at for at in sending.acked if at > killed_at + 0.05) - killed_at)
                elections.append(election_seconds(other.log_text()[said:]))
            finally:
                sending.close()
            failed += len(sending.failed)
            cluster.brokers[leader].start()
    return {
        "first_ack_s": {"median": statistics.median(first_acks), "longest": max(first_acks)},
        "election_s": {"median": statistics.median(elections), "longest": max(elections)},
        "failed_sends": failed,
        "rounds": rounds,
    }


def sends(rounds: int) -> dict[str, object]:
    """Interleaved, so that what else the machine does meets both."""
    found: dict[str, list[float]] = {"group": [], "pair": []}
    cache = processes.ROOT / ".cache" / "bench"
    with group() as grouped, pair() as paired:
        in_sync(grouped)
        paired.wait_in_sync()
        for number in range(rounds + 1):
            for name, cluster in (("group", grouped), ("pair", paired)):
                leader = cluster.leader()
                assert leader is not None, "it is in sync"
                load = processes.load(
                    cache, "send", cluster.address(leader), conns=64, outstanding=16, body=100, count=400_000, seconds=5
                )
                if number:  # the first one makes files
                    found[name].append(load["requests_per_s"])
    ratios = [one / other for one, other in zip(found["group"], found["pair"], strict=True)]
    return {
        **{f"{name}_per_s": statistics.median(values) for name, values in found.items()},
        "ratio": statistics.median(ratios),
        "ratios": [round(one, 3) for one in ratios],
    }


def hand_over(rounds: int) -> dict[str, object]:
    pauses: list[float] = []
    with group() as cluster:
        in_sync(cluster)
        with Admin(cluster.namesrv) as admin:
            eventually(lambda: admin.create_topic(TOPIC, queues=4), what="a leader is registered")
        sending = Sending(cluster.namesrv)
        try:
            time.sleep(SETTLE_SECONDS)
            while len(pauses) < rounds:
                leader, began = cluster.leader(), time.monotonic()
                assert leader is not None, "it is in sync"
                other = 2 - leader  # members count from 1 on
                try:
                    with Admin(cluster.namesrv) as admin:
                        admin.promote("broker-0", broker_id=other)
                except MetaqError as error:
                    # Who led before starts again, once clients know who leads.
                    if "starts again first" not in str(error) and "not started yet" not in str(error):
                        raise
                    in_sync(cluster)
                    continue
                time.sleep(SETTLE_SECONDS)
                pauses.append(sending.longest(began))
                in_sync(cluster)
        finally:
            sending.close()
    return {
        "longest_pause_s": {"median": statistics.median(pauses), "longest": max(pauses)},
        "failed_sends": len(sending.failed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kill", "sends", "hand-over"))
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    (processes.ROOT / ".cache" / "bench").mkdir(parents=True, exist_ok=True)
    measures = {"kill": kill, "sends": sends, "hand-over": hand_over}
    print(json.dumps(measures[asked.what](asked.rounds), default=str))


if __name__ == "__main__":
    main()
