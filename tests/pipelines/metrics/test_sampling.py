"""What a sample says of groups while brokers come and go, with a cluster that a test makes up."""

from __future__ import annotations

from typing import Any

from metaq.client.conversation.groups import GetGroups
from metaq.clock import FakeClock
from metaq.errors import ConnectionFailed
from metaq.model.queue import MessageQueue
from metaq.pipelines.metrics.sampling import Sampler

NOW = 1_700_000_000_000


class Cluster:
    """Two brokers with a queue each, of 100 messages; `billing` has consumed 90 of each."""

    def __init__(self) -> None:
        self.up, self.silent = {"a", "b"}, set[str]()
        self.consumed = {"a": 90, "b": 90}

    def masters(self) -> dict[str, str]:
        return {name: name for name in sorted(self.up | self.silent)}

    def queues(self, topics) -> list[MessageQueue]:
        return [MessageQueue(topics[0], name, 0) for name in self.masters()]

    def _check(self, name: str) -> None:
        if name in self.silent:
            raise ConnectionFailed(f"{name} does not answer")

    def ends(self, queues) -> dict[MessageQueue, int]:
        for queue in queues:
            self._check(queue.broker)
        return dict.fromkeys(queues, 100)

    def progress(self, group, queues) -> dict[MessageQueue, int]:
        return {queue: self.consumed[queue.broker] for queue in queues}

    def store_times(self, positions) -> dict[MessageQueue, int]:
        return dict.fromkeys(positions, NOW - 5000)

    def link(self, address: str) -> Any:
        self._check(address)

        class Link:
            def ask(self, calls) -> list[Any]:
                return [["billing"] if isinstance(calls[0], GetGroups) else {}]

        return Link()


def lags(sampler: Sampler) -> dict[str, tuple[int, float]]:
    return {one.broker: (one.lag_messages, one.lag_seconds) for one in sampler.sample().groups}


def test_a_lag_does_not_fall_while_a_broker_is_away():
    """Whether it is silent or the name servers have dropped it: what waits there waits, and grows older."""
    cluster, clock = Cluster(), FakeClock(NOW)
    sampler = Sampler(cluster, ["orders"], "", [], clock)
    assert lags(sampler) == {"a": (10, 5.0), "b": (10, 5.0)}
    cluster.silent, cluster.consumed["a"] = {"b"}, 95
    clock.advance(10)
    assert lags(sampler) == {"a": (5, 15.0), "b": (10, 15.0)}
    cluster.silent, cluster.up = set(), {"a"}
    clock.advance(10)
    assert lags(sampler)["b"] == (10, 25.0)
    cluster.up, cluster.consumed["b"] = {"a", "b"}, 100
    assert lags(sampler)["b"] == (0, 0.0)
    # Nothing waits there: an idle broker that is away makes no lag.
    cluster.up = {"a"}
    clock.advance(60)
    assert lags(sampler)["b"] == (0, 0.0)


def test_a_group_that_is_gone_has_no_lag():
    """Its broker is there and does not know it any more."""
    cluster, clock = Cluster(), FakeClock(NOW)
    sampler = Sampler(cluster, ["orders"], "", [], clock)
    lags(sampler)
    cluster.progress = lambda group, queues: dict.fromkeys(queues)
    assert lags(sampler) == {}
