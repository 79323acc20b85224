"""Open transactions of 1.x clients and memory: their messages go to the log when it is short, and come in order all the same."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from metaq.broker.broker import Broker
from metaq.broker.metaq1.gathering import CHUNK_BYTES, SHARE_BYTES
from metaq.clock import FakeClock
from metaq.errors import Reason
from metaq.model.topics.system import STAGE_TOPIC
from metaq.model.transactions.metaq1 import LocalKey
from tests.broker.metaq1.test_partitions import settings
from tests.broker.metaq1.test_transactions import KEY, branches, opened, put, refused
from tests.broker.staged.support import bodies, run_steps, stored
from tests.broker.support import FakeChannel, open_broker


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def broker(tmp_path: pathlib.Path, clock: FakeClock) -> Iterator[Broker]:
    with opened(tmp_path, clock) as one:
        yield one


def test_a_large_transaction_goes_to_the_log_by_and_by_and_comes_in_order_as_one_run(
    broker: Broker, channel: FakeChannel
) -> None:
    service = branches(broker)
    service.begin(KEY, 0, channel)
    sizes = [1, 100_000, CHUNK_BYTES + 7, 3, 200_000, 200_000, 700_000, 1]
    for partition in (0, 1):
        for number, size in enumerate(sizes):
            put(broker, KEY, bytes([number]) * size, channel, partition=partition)
    assert broker.staging.held[1] > 0
    assert len(stored(broker, STAGE_TOPIC, 0)) > 4
    service.commit(KEY, channel, one_phase=True)
    run_steps(broker)
    for partition in (0, 1):
        assert [(body[0], len(body)) for body in bodies(broker, "test", partition)] == list(enumerate(sizes))


def test_many_partitions_take_no_more_memory_than_a_connection_may_have(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    with open_broker(tmp_path, clock, metaq1=settings(test=60)) as broker:
        service, size = branches(broker), CHUNK_BYTES // 2 - 300
        for number in range(3):
            service.begin(LocalKey("s", number), 0, channel)
            for partition in range(60):
                put(broker, LocalKey("s", number), bytes(size), channel, partition=partition)
                assert sum(branch.held for branch in service._all_open()) <= SHARE_BYTES
        assert broker.staging.held[0] > 60
        for number in range(3):
            service.commit(LocalKey("s", number), channel, one_phase=True)
        run_steps(broker)
        assert [len(bodies(broker, "test", partition)) for partition in range(60)] == [3] * 60


def test_a_transaction_that_cannot_be_staged_is_not_the_trouble_of_others(
    tmp_path: pathlib.Path, clock: FakeClock, channel: FakeChannel
) -> None:
    """A put that needs room in memory gets it of those that can make some, and its answer says nothing of the others."""
    with open_broker(tmp_path, clock, metaq1=settings(test=60)) as broker:
        service, body = branches(broker), bytes(CHUNK_BYTES // 2 - 300)
        stuck, other, mine = (LocalKey("s", number) for number in range(3))
        for key, partitions in ((stuck, range(16)), (other, range(20, 36))):
            service.begin(key, 0, channel)
            for partition in partitions:
                put(broker, key, body, channel, partition=partition)
        assert broker.metaq1 is not None
        broker.metaq1.partitions.close_partitions("test", 0, 15)
        service.begin(mine, 0, channel)
        for partition in range(40, 44):
            put(broker, mine, body, channel, partition=partition)
        refused(Reason.NO_PERMISSION, service.commit, stuck, channel, one_phase=True)
        for key in (other, mine):
            service.commit(key, channel, one_phase=True)
        run_steps(broker)
        assert [len(bodies(broker, "test", partition)) for partition in (0, 20, 34, 40, 43)] == [0, 1, 1, 1, 1]
