"""A slave's log files stay as long as its master needs messages in them."""

from __future__ import annotations

import logging

import pytest
from msgspec import structs

from metaq.broker.replication.needed import NeededThere
from metaq.clock import FakeClock
from metaq.model import TopicConfig
from metaq.model.topics.system import SCHEDULE_TOPIC
from tests.broker.replication.test_following import Two
from tests.broker.support import open_broker
from tests.store.support import message

FILE = 1 << 16
SMALL = {"mapped_file_size_commit_log": FILE, "max_message_size": 1 << 14}
DAYS = 100 * 86_400_000
"""After so many ms all files have had their time."""


@pytest.fixture
def two(tmp_path):
    with (
        open_broker(tmp_path / "master", FakeClock(), SMALL) as master,
        open_broker(tmp_path / "slave", FakeClock(), SMALL, leading=False, broker_id=1) as slave,
    ):
        master.topics.update(TopicConfig("orders", 2, 2))
        yield Two(master, slave)


def fill(two: Two, files: int = 1) -> None:
    """Append until the log has so many files more."""
    wanted = two.master.store.log.end // FILE + files
    while two.master.store.log.end // FILE < wanted:
        two.put("orders", 0, b"x" * 9000)


def delay(two: Two) -> None:
    """Have the master store a message that waits for its time."""
    later = structs.replace(message(SCHEDULE_TOPIC, 0, b"later"), properties=b"REAL_TOPIC\x01orders\x02REAL_QID\x010")
    two.master.appender.put([later])


def retain(broker) -> int:
    """Delete what may go. Returns where the log begins then."""
    broker.store.keeper.retain(broker.clock.now_ms() + DAYS, at_once=True)
    return broker.store.log.min


def test_files_with_delayed_messages_stay_until_their_copies_are_here(two, caplog):
    """Though their time is up by the slave's own settings."""
    fill(two)
    delay(two)
    debt = two.master.schedule.oldest()
    fill(two, 2)
    two.copy()
    assert retain(two.slave) == 0  # the master has not said yet what it needs
    assert two.slave.followed.lacks() is None
    two.master.store.keeper.retain(0)
    two.tell()
    with caplog.at_level(logging.WARNING):
        assert retain(two.slave) == debt - debt % FILE
    assert "messages that the master still needs" in caplog.text
    two.master.clock.advance(3600)
    while two.master.schedule.oldest() == debt:
        two.master.deliver()
    two.master.store.keeper.retain(0)
    two.tell()
    assert retain(two.slave) == debt - debt % FILE  # the copy has not come
    two.copy()
    assert retain(two.slave) == two.slave.store.log.end // FILE * FILE


def test_what_the_master_has_delivered_and_forgotten_is_not_delivered_again(two):
    """Its log file went, and with it the queue: its progress says nothing of that any more. The slave has the file still."""
    delay(two)
    two.master.clock.advance(3600)
    two.master.deliver()
    two.master.store.keeper.retain(0)
    two.copy()
    two.master.feed._current_delays = dict
    two.tell()
    two.slave.lead()
    two.slave.clock.advance(3600)
    two.slave.tick()
    two.slave.deliver()
    assert two.bodies(two.slave) == two.bodies(two.master) == [[b"later"], []]


def test_who_leads_goes_by_what_its_own_services_need(two):
    """They are opened first: nothing goes in between."""
    fill(two, 2)
    two.copy()
    two.slave.lead()
    assert retain(two.slave) == two.slave.store.log.end // FILE * FILE


def test_what_a_rocketmq_needs_is_not_known(two):
    """It tells nothing of the kind, and the slave's own settings count."""
    fill(two, 2)
    two.copy()
    two.slave.followed.end_of_changes()
    assert retain(two.slave) == two.slave.store.log.end // FILE * FILE


def test_a_place_counts_when_the_log_is_here():
    """What was written anew in place of older messages lies in front of it."""
    needed = NeededThere()
    assert needed.oldest() is None
    needed.begin()
    assert needed.oldest() == 0
    needed.tell(500, 900)
    needed.advance(899)
    assert needed.oldest() == 0
    needed.advance(900)
    assert needed.oldest() == 500
    needed.carry(900)
    assert needed.oldest() == 500
    needed.end()
    assert needed.oldest() is None


def test_a_slave_that_lacks_what_the_master_needs_knows_it(two):
    """Its log begins later: of the time when it led itself, say, and its own copies of those messages were cut off."""
    fill(two)
    delay(two)
    debt = two.master.schedule.oldest()
    fill(two, 2)
    two.copy()
    two.slave.followed.end_of_changes()  # so that it keeps nothing for its master
    begin = retain(two.slave)
    assert begin > debt
    two.slave.followed.begin()
    assert two.slave.followed.lacks() == 0
    two.master.store.keeper.retain(0)
    two.tell()
    assert two.slave.followed.lacks() == debt
    two.slave.lead()
    assert two.slave.followed.lacks() is None
