"""The replica that each queue is pulled from."""

from __future__ import annotations

from metaq.client.shared.pull_replicas import AVOID_SECONDS, PullReplicas
from metaq.clock import FakeClock
from metaq.model import MessageQueue

QUEUE, OTHER = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1)


def test_each_queue_is_pulled_from_whom_its_broker_suggests():
    replicas = PullReplicas(FakeClock())
    assert replicas.of(QUEUE) == 0
    replicas.suggested(QUEUE, 2)
    assert (replicas.of(QUEUE), replicas.of(OTHER)) == (2, 0)
    replicas.suggested(QUEUE, 0)
    assert replicas.of(QUEUE) == 0


def test_a_slave_that_failed_is_not_asked_for_a_while():
    """Whatever its master suggests, and whichever queue it is; another slave is."""
    clock = FakeClock()
    replicas = PullReplicas(clock)
    replicas.suggested(QUEUE, 1)
    replicas.failed(QUEUE, 1)
    assert replicas.of(QUEUE) == 0
    for queue in (QUEUE, OTHER):
        replicas.suggested(queue, 1)
        assert replicas.of(queue) == 0
    replicas.suggested(OTHER, 2)
    assert replicas.of(OTHER) == 2
    clock.advance(AVOID_SECONDS)
    assert replicas.of(QUEUE) == 1
