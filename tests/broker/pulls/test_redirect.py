"""To whom clients are sent: to a slave that has what they read, where that is far behind the log's end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.pulls.redirect import Redirect
from metaq.broker.requests import Send
from metaq.model import GroupConfig
from metaq.store.reads.pull import ReadResult, ReadStatus
from tests.broker.support import BORN_HOST, open_broker

GROUP = GroupConfig("g")


@contextlib.contextmanager
def opened(folder: Path, **options: object) -> Iterator[tuple[Broker, ReadResult]]:
    """A broker with two messages to which all but the last one is old, and the answer with the first one."""
    with open_broker(folder, store={"access_message_in_memory_max_ratio": 0}, **options) as broker:
        places = []
        for body in (b"old", b"new"):
            broker.sends.send(Send(topic="orders", body=body, born_ms=1, born_host=BORN_HOST, queue_id=0))
            places.append(broker.store.log.end)
        yield broker, ReadResult(ReadStatus.FOUND, 1, 0, 2, count=1, last_log=places[0])


def suggested(broker: Broker, found: ReadResult, group: GroupConfig = GROUP) -> int:
    return Redirect(broker.environment, broker.replicas.is_copied).after(group, found)


def test_a_master_suggests_a_slave_for_old_messages_that_the_slave_has(tmp_path):
    """Not before it has reported them, nor when it is gone."""
    with opened(tmp_path, slave_read_enable=True) as (broker, old):
        assert suggested(broker, old) == 0
        slave = broker.replicas.connect("127.0.0.1:1")
        assert suggested(broker, old) == 0
        broker.replicas.report(slave, old.last_log - 1)
        assert suggested(broker, old) == 0
        broker.replicas.report(slave, old.last_log)
        assert suggested(broker, old) == 1
        assert suggested(broker, old, GroupConfig("g", slow_broker_id=3)) == 3
        broker.replicas.disconnect(slave)
        assert suggested(broker, old) == 0


def test_recent_messages_and_the_wait_for_more_are_the_masters(tmp_path):
    """Unless the group's own brokerId names a slave, and one is there."""
    with opened(tmp_path, slave_read_enable=True) as (broker, old):
        new = structs.replace(old, last_log=broker.store.log.end)
        nothing = ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, 2, 0, 2)
        at_slave = GroupConfig("g", broker_id=1)
        assert [suggested(broker, one, at_slave) for one in (new, nothing)] == [0, 0]
        broker.replicas.report(broker.replicas.connect("127.0.0.1:1"), broker.store.log.end)
        assert [suggested(broker, one) for one in (new, nothing)] == [0, 0]
        assert [suggested(broker, one, at_slave) for one in (new, nothing)] == [1, 1]


def test_without_slave_read_enable_nobody_is_sent_to_a_slave(tmp_path):
    """As by default."""
    with opened(tmp_path) as (broker, old):
        broker.replicas.report(broker.replicas.connect("127.0.0.1:1"), broker.store.log.end)
        assert suggested(broker, old) == 0


def test_a_slave_keeps_who_is_behind_and_sends_back_who_has_caught_up(tmp_path):
    """It has what it says, whoever copies from it."""
    with opened(tmp_path, slave_read_enable=True) as (broker, old):
        broker.step_down("is a slave now")
        assert suggested(broker, old) == 1
        assert suggested(broker, structs.replace(old, last_log=broker.store.log.end)) == 0
