"""A slave's tables follow those of a master of ours, change by change; what counts records waits for the log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metaq.broker.broker import Broker
from metaq.broker.replication import feed as feeds
from metaq.broker.replication import tables
from metaq.broker.replication.with_the_log import WithTheLog
from metaq.broker.requests import OffsetCommit
from metaq.broker.transactions.progress import LOG_POSITION
from metaq.clock import FakeClock
from metaq.errors import RemoteProtocolError
from metaq.in_pieces import finish
from metaq.model import DelayProgress, GroupConfig, SubscriptionData, TopicConfig
from metaq.model.filters.subscription import GroupFilter
from metaq.model.table_changes import TableChanges
from metaq.model.topics.system import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from metaq.wire.files import DELAY_OFFSETS
from metaq.wire.following import table_changes
from tests.broker.support import MemoryFile, SlowFile, open_broker
from tests.store.log.test_raw import raw_log
from tests.store.support import message, read_all
from tests.support import eventually


class Two:
    """A master and its slave; the test copies the log, and tells the tables."""

    def __init__(self, master: Broker, slave: Broker) -> None:
        self.master, self.slave = master, slave

    def put(self, topic: str, queue_id: int, *bodies: bytes) -> None:
        for body in bodies:
            self.master.appender.put([message(topic, queue_id, body)])

    def copy(self, end: int | None = None, *, flushed: bool = True) -> None:
        """Bring the slave's log up to there."""
        end = self.master.store.log.end if end is None else end
        start = self.slave.store.log.end
        data = raw_log(self.master.store.folder.root, start, end)
        self.slave.store.writer.append_raw(data, start, partial=True)
        if flushed:
            self.slave.store.flusher.flush()
        self.slave.followed.tick()

    def ask(self) -> TableChanges:
        return finish(self.master.feed.changes(*self.slave.followed.place))

    def tell(self) -> list[TableChanges]:
        """Tell what has changed, as far as the slave takes it."""
        told = [self.ask()]
        finish(self.slave.followed.take(told[-1]))
        while not told[-1].complete:
            told.append(self.ask())
            finish(self.slave.followed.take(told[-1]))
        self.slave.followed.tick()
        return told

    def commit(self, offset: int, topic: str = "orders", queue_id: int = 0, at: Broker | None = None) -> None:
        (at or self.master).commit_offset(OffsetCommit(group="g", topic=topic, queue_id=queue_id, offset=offset))

    def delete(self, topic: str = "orders") -> int:
        """Delete a topic at the master. Returns its mark."""
        self.master.store.flusher.flush()
        self.master.delete_topic(topic).settle()
        return self.master.deletions.marks.table[topic]

    def bodies(self, broker: Broker, queues: int = 2) -> list[list[bytes]]:
        return [read_all(broker.store, "orders", number) for number in range(queues)]


@pytest.fixture
def two(tmp_path) -> Iterator[Two]:
    with (
        open_broker(tmp_path / "master", FakeClock()) as master,
        open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1) as slave,
    ):
        master.topics.update(TopicConfig("orders", 2, 2))
        master.groups.update(GroupConfig("g"))
        yield Two(master, slave)


def offset(broker: Broker, topic: str = "orders", queue_id: int = 0) -> int | None:
    return broker.offsets.get("g", topic, queue_id)


def test_topics_and_groups_follow_with_all_their_settings(two):
    """Made, changed, deleted; what was not told before goes at the end of the first answers, system topics stay."""
    two.slave.topics.saved.change("stray", TopicConfig("stray"))
    two.slave.groups.saved.change("stray", GroupConfig("stray"))
    topic = TopicConfig("orders", 3, 4, perm=4, sys_flag=1, order=True, filter_type="MULTI_TAG")
    group = GroupConfig(
        "g", consume_enable=False, consume_broadcast_enable=False, retry_queues=3, retry_max=5, slow_broker_id=2
    )
    two.master.topics.update(topic)
    two.master.groups.update(group)
    two.tell()
    assert two.slave.topics.get("orders") == topic
    assert two.slave.groups.get("g") == group
    assert dict(two.slave.topics.table) == dict(two.master.topics.table)
    assert dict(two.slave.groups.table) == dict(two.master.groups.table)
    two.delete()
    two.master.delete_group("g", with_offsets=True)
    (told,) = two.tell()
    assert (told.topics, told.groups) == ({"orders": None}, {"g": None})
    assert two.slave.topics.get("orders") is None
    assert two.slave.groups.get("g") is None


def test_of_many_changes_of_an_entry_the_newest_is_told_alone(two):
    """Commits of one offset in a large table are a short message; without any, it is shorter still."""
    two.put("orders", 0, b"a")
    for number in range(3000):
        two.master.offsets.put("g", f"t{number}", 0, number)
    assert len(two.tell()) > 1
    for number in range(1000):
        two.commit(number)
    (told,) = two.tell()
    assert told.offsets == {"orders": {"g": {0: 999}}}
    assert len(table_changes(told)) < 200
    assert offset(two.slave) == 999
    assert two.master.feed.has_news(*two.slave.followed.place) is False
    (told,) = two.tell()
    assert told == TableChanges(
        told.feed, told.position, told.position, complete=True, log_end=two.master.store.log.end, delays={}
    )


def test_answers_are_short_and_what_changes_meanwhile_is_told_last(two):
    """Thousands of entries come in pages; none is missing and none is old at the end."""
    for number in range(5000):
        two.master.topics.saved.change(f"t{number}", TopicConfig(f"t{number}", 1, 1))
    first = two.ask()
    finish(two.slave.followed.take(first))
    assert (first.since, first.complete) == (0, False)
    assert len(table_changes(first)) < 2 * feeds.BYTES_MAX
    two.master.topics.saved.change("t1", TopicConfig("t1", 7, 7))
    two.master.topics.saved.change("t2", None)
    told = two.tell()
    assert len(told) > 3
    assert dict(two.slave.topics.table) == dict(two.master.topics.table)


def test_progress_comes_back_and_goes_back_as_with_a_rocketmq(two):
    """What was committed here stays and is told to the master; a reset there counts; deleted groups lose theirs."""
    two.commit(5)
    two.tell()
    assert offset(two.slave) == 5
    two.commit(9, at=two.slave)
    two.master.offsets.put("g", "other", 0, 1)
    two.tell()
    assert offset(two.slave) == 9
    assert two.slave.followed.ahead() == [("g", "orders", 0, 9, 5)]
    two.commit(9)
    two.tell()
    assert two.slave.followed.ahead() == []
    two.commit(2)
    two.tell()
    assert offset(two.slave) == 2
    two.master.delete_group("g", with_offsets=True)
    two.tell()
    assert (offset(two.slave), offset(two.slave, "other")) == (None, None)


def carry(two: Two) -> None:
    """What the slave tells its master, as servers do."""
    for group, topic, queue_id, offset, told in two.slave.followed.ahead():
        commit = OffsetCommit(group=group, topic=topic, queue_id=queue_id, offset=offset, instead_of=told)
        two.master.commit_offset(commit)


def test_what_the_slave_tells_takes_no_group_back_behind_what_it_has_committed_at_the_master_since(two):
    """Its members commit at the slave while the master starts, and go on at the master before the slave has told it."""
    two.commit(1)
    two.tell()
    two.commit(4, at=two.slave)
    two.commit(9)
    carry(two)
    assert offset(two.master) == 9
    two.tell()
    assert offset(two.slave) == 9
    assert two.slave.followed.ahead() == []


def test_a_reset_is_not_undone_by_what_the_slave_tells(two):
    two.commit(5)
    two.tell()
    two.commit(7, at=two.slave)
    two.commit(2)
    carry(two)
    assert offset(two.master) == 2
    two.tell()
    assert offset(two.slave) == 2


def test_what_was_committed_here_stays_while_the_master_comes_nearer(two):
    two.commit(1)
    two.tell()
    two.commit(9, at=two.slave)
    two.commit(4)
    two.tell()
    assert offset(two.slave) == 9
    carry(two)
    assert offset(two.master) == 9


def test_what_was_committed_here_before_the_master_told_anything_is_told_to_it(two):
    two.commit(4)
    two.slave.offsets.put("g", "orders", 0, 9)  # behind its start; the topic is in its file
    two.tell()
    assert offset(two.slave) == 9
    carry(two)
    assert offset(two.master) == 9


def test_a_topic_made_anew_between_two_looks_loses_its_old_messages_here(two):
    """In queues that got new messages and in those that did not; positions have the generation that the master tells."""
    two.put("orders", 0, b"old", b"older")
    two.put("orders", 1, b"old too")
    two.commit(2)
    two.copy()
    two.tell()
    two.commit(2, at=two.slave)
    two.commit(1, queue_id=1, at=two.slave)
    mark = two.delete()
    two.master.topics.update(TopicConfig("orders", 2, 2))
    two.put("orders", 0, b"new")
    two.copy()
    assert two.bodies(two.slave) == [[b"new"], [b"old too"]]
    changes = two.slave.topics.changes
    two.tell()
    assert two.slave.topics.changes > changes  # pulls that were admitted before lead to queues that are gone
    assert two.bodies(two.slave) == two.bodies(two.master) == [[b"new"], []]
    assert two.slave.topics.get("orders") == TopicConfig("orders", 2, 2)
    assert two.slave.deletions.generation("orders") == two.master.deletions.generation("orders") == mark
    assert two.slave.deletions.generation("other") == two.master.deletions.generation("other") < 0
    assert two.slave.deletions.returns("g", "orders")
    assert (offset(two.slave), offset(two.slave, queue_id=1)) == (None, None)
    assert two.slave.followed.ahead() == []
    assert not two.slave.offsets.made_anew["orders"](1)
    two.put("orders", 0, b"newer")
    two.commit(2)
    two.tell()  # before the log
    assert offset(two.slave) == 2


def test_a_mark_ahead_of_the_log_waits_for_it(two):
    """Old messages that are copied later are dead all the same, and the new topic's are not."""
    two.tell()
    two.put("orders", 0, b"a", b"b")
    first = two.master.store.log.end
    two.put("orders", 1, b"c")
    mark = two.delete()
    two.master.topics.update(TopicConfig("orders", 2, 2))
    two.put("orders", 0, b"new")
    two.commit(1)
    two.copy(first)
    for queue_id in range(2):
        two.commit(1, queue_id=queue_id, at=two.slave)
    two.tell()
    assert two.slave.deletions.marks.table == {}
    assert two.bodies(two.slave) == [[b"a", b"b"], []]
    # What was committed here may be of the old messages: it is not told to the master, and not kept.
    assert (offset(two.slave), offset(two.slave, queue_id=1)) == (1, None)
    for queue_id in range(2):
        two.commit(2, queue_id=queue_id, at=two.slave)
    assert two.slave.followed.ahead() == []
    two.copy(mark)
    two.slave.followed.tick()
    assert (offset(two.slave), offset(two.slave, queue_id=1)) == (1, None)
    assert two.bodies(two.slave) == [[], []]
    two.copy()
    assert two.bodies(two.slave) == two.bodies(two.master) == [[b"new"], []]
    assert two.slave.deletions.marks.table == {"orders": mark}
    assert offset(two.slave) == 1


def test_a_mark_is_saved_when_the_log_below_it_is_durable(two):
    """A power cut would leave it beyond the log's end."""
    two.put("orders", 0, b"a")
    mark = two.delete()
    two.copy(flushed=False)
    two.slave.store.flusher.worker.stop()
    assert two.slave.store.state.flushed < mark
    two.tell()
    assert two.slave.deletions.marks.table == {}
    two.slave.store.flusher.flush()
    two.slave.followed.tick()
    assert two.slave.deletions.marks.table == {"orders": mark}


def test_whoever_leads_next_has_deleted_what_its_master_had(two):
    """The mark goes back to the log's end here, and covers nothing that comes behind it."""
    two.put("orders", 0, b"a", b"b")
    first = two.master.store.log.end
    two.put("orders", 0, b"c")
    two.delete()
    two.master.topics.update(TopicConfig("orders", 2, 2))
    two.put("orders", 0, b"new", b"newer")
    two.commit(2)
    two.copy(first)
    two.tell()
    two.slave.lead()
    assert two.slave.deletions.marks.table == {"orders": first}
    assert two.slave.deletions.generation("orders") == first
    assert offset(two.slave) == 0  # there is nothing yet that it could have consumed
    two.slave.appender.put([message("orders", 0, b"mine")])
    assert two.bodies(two.slave) == [[b"mine"], []]


def test_progress_beyond_the_log_of_whoever_leads_next_goes_back_to_its_end(two):
    """The group would pass over what is stored there next."""
    two.put("orders", 0, b"a")
    two.copy()
    two.put("orders", 0, b"b", b"c")
    two.commit(3)
    two.tell()
    assert offset(two.slave) == 3
    two.slave.lead()
    assert offset(two.slave) == 1


def test_what_is_being_taken_over_when_the_slave_leads_is_left(two):
    """From then on its tables are its own."""
    for number in range(400):
        two.master.topics.saved.change(f"t{number}", TopicConfig(f"t{number}"))
    taking = two.slave.followed.take(two.ask())
    next(taking)
    two.slave.lead()
    there = dict(two.slave.topics.table)
    finish(taking)
    assert dict(two.slave.topics.table) == there
    assert len(there) < 200


def test_a_floor_beyond_the_log_of_whoever_leads_next_is_forgotten(two):
    """It would hide what is stored there next."""
    two.put("orders", 0, b"a")
    two.copy()
    floor = two.master.store.log.file_bytes
    told = TableChanges(9, 0, 1, complete=False, log_end=2 * floor, floors={"orders": floor})
    finish(two.slave.followed.take(told))
    two.slave.lead()
    while two.slave.store.log.end < floor:
        two.slave.appender.put([message("orders", 0, b"x" * 500_000)])
    two.slave.store.flusher.flush()
    two.slave.store.keeper.follow_floors({"other": floor})
    eventually(lambda: two.slave.store.keeper.floor("other") == floor)
    assert two.slave.store.keeper.floor("orders") == 0


def test_what_was_trimmed_is_gone_at_the_slave_too(two):
    """Of a topic and of one queue, also when the slave leads; messages that come behind are there."""
    two.put("orders", 0, *(b"%d" % number for number in range(6)))
    two.put("orders", 1, *(b"%d" % number for number in range(6)))
    two.copy()
    place = [two.master.store.reader.existing_queue("orders", queue) for queue in (0, 1)]
    said = []
    floors = {"orders": place[0].unit(2).log_offset, "orders@1": place[1].unit(4).log_offset}
    two.master.store.keeper.trim(floors, said.append)
    eventually(lambda: said == [True])
    wanted = [[b"2", b"3", b"4", b"5"], [b"4", b"5"]]
    assert two.bodies(two.master) == wanted
    two.tell()
    eventually(lambda: two.bodies(two.slave) == wanted)
    two.slave.lead()
    two.slave.appender.put([message("orders", 1, b"mine")])
    assert two.bodies(two.slave) == [wanted[0], [*wanted[1], b"mine"]]


def test_progress_that_counts_records_waits_for_them(two):
    """Of delayed messages and of transactions: their copies and op records lie in the log behind."""
    two.put("orders", 0, b"a")
    first = two.master.store.log.end
    two.put("orders", 0, b"b")
    half = (HALF_TOPIC, OP_TOPIC, LOG_POSITION)
    two.master.schedule.positions.advance(3, 7)
    for topic in half:
        two.master.offsets.put(TRANSACTION_GROUP, topic, 0, 5)
    second = two.master.store.log.end
    two.copy(first)
    two.tell()
    two.put("orders", 0, b"c")
    two.master.schedule.positions.advance(3, 8)
    two.master.offsets.put(TRANSACTION_GROUP, OP_TOPIC, 0, 6)
    two.tell()
    assert two.slave.offsets.get(TRANSACTION_GROUP, OP_TOPIC, 0) is None
    path = two.slave.store.folder.config / "delayOffset.json"
    assert not path.exists()
    two.copy(second)
    assert DELAY_OFFSETS.parse(path.read_text()) == DelayProgress({3: 7}, second)
    assert [two.slave.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in half] == [5, 5, 5]
    two.copy()
    assert DELAY_OFFSETS.parse(path.read_text()).offsets == {3: 8}
    assert [two.slave.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in half] == [5, 6, 5]


def test_the_newest_value_that_the_log_has_reached_is_taken():
    """However far the master stays ahead, none is waited for in vain."""
    gate = WithTheLog[str]()
    assert gate.due(100) is None
    for place, value in ((10, "a"), (20, "b"), (30, "c")):
        gate.put(place, value)
    assert gate.due(9) is None
    assert gate.due(10) == (10, "a")
    assert gate.due(29) is None
    gate.put(40, "d")
    assert gate.due(35) == (30, "c")
    gate.put(50, "e")
    assert gate.due(60) == (50, "e")
    assert gate.due(60) is None


def test_filters_follow_and_their_master_says_when_a_group_is_gone(two):
    """Whoever leads next filters retried messages with them."""
    wanted = SubscriptionData("orders", "a > 5", expression_type="SQL92", version=3)
    two.master.filters.register("g", {"orders": wanted}, "peer")
    two.tell()
    assert two.slave.filters.table == two.master.filters.table != {}
    two.slave.filters.expire(())
    assert not two.slave.filters.table["orders", "g"].dead
    two.master.filters.expire(())
    two.tell()
    assert two.slave.filters.table["orders", "g"].dead
    two.master.delete_group("g", with_offsets=False)
    two.tell()
    assert two.slave.filters.table == {}
    two.master.filters.register("g", {"orders": wanted}, "peer")
    two.tell()
    two.slave.lead()
    two.slave.filters.expire(())
    assert two.slave.filters.table["orders", "g"].dead


def test_closed_partitions_follow(two):
    two.master.closed_partitions.close("orders", range(1, 2))
    two.master.closed_partitions.close("other", range(3))
    two.tell()
    assert two.slave.closed_partitions.of("orders") == {1}
    two.master.closed_partitions.open("orders")
    two.tell()
    assert two.slave.closed_partitions.topics() == ["other"]


def test_a_feed_that_is_not_asked_ends_and_a_new_one_tells_everything(two, monkeypatch):
    """It takes no memory meanwhile; what went in between goes here too. The same where too many entries are gone."""
    two.master.topics.update(TopicConfig("going", 1, 1))
    two.commit(1)
    two.commit(1, queue_id=1)
    two.master.filters.register("g", {"orders": SubscriptionData("orders", "a > 5", expression_type="SQL92")}, "peer")
    two.master.closed_partitions.close("orders", range(1))
    feed = two.tell()[0].feed
    two.master.clock.advance(feeds.IDLE_SECONDS)
    two.master.feed.look()
    assert two.master.offsets.noted is None
    two.delete("going")
    two.master.offsets.take("g", "orders", 1, None)
    two.master.filters.drop_topic("orders")
    two.master.closed_partitions.open("orders")
    told = two.tell()
    assert told[0].feed != feed
    assert told[0].since == 0
    assert two.slave.topics.get("going") is None
    assert (offset(two.slave), offset(two.slave, queue_id=1)) == (1, None)
    assert two.slave.filters.table == {}
    assert not two.slave.closed_partitions
    monkeypatch.setattr(feeds, "GONE_MAX", 0)
    for number in range(2 * len(two.master.topics.table) + 100):
        two.master.topics.saved.change(f"t{number}", TopicConfig(f"t{number}"))
        two.master.topics.saved.change(f"t{number}", None)
    two.master.feed.look()
    assert two.tell()[0].since == 0


def test_two_slaves_that_begin_together_get_everything(two):
    """One question does not cut short what the other needs."""
    for number in range(3000):
        two.master.topics.saved.change(f"t{number}", TopicConfig(f"t{number}"))
    questions = [two.master.feed.changes(0, 0) for _ in range(2)]
    answers = dict[int, TableChanges]()
    while len(answers) < 2:
        for number, question in enumerate(questions):
            if number not in answers:
                try:
                    next(question)
                except StopIteration as end:
                    answers[number] = end.value
    assert answers[0] == answers[1]
    assert len(answers[0].topics) == answers[0].position > 500


def wrong(**more: object) -> TableChanges:
    return TableChanges(9, 0, 1, complete=False, log_end=0, **more)


UNFIT = {
    "a path": wrong(topics={"../x": TopicConfig("../x")}),
    "a system topic's path": wrong(topics={"rmq_sys_/../x": TopicConfig("rmq_sys_/../x")}),
    "another's name": wrong(topics={"orders": TopicConfig("bills")}),
    "a negative number": wrong(topics={"orders": TopicConfig("orders", -1, 4)}),
    "too many queues": wrong(topics={"orders": TopicConfig("orders", 4, 1 << 30)}),
    "no permission": wrong(topics={"orders": TopicConfig("orders", perm=64)}),
    "no group": wrong(groups={"a/b": GroupConfig("a/b")}),
    "another group": wrong(groups={"g": GroupConfig("h")}),
    "endless retries": wrong(groups={"g": GroupConfig("g", retry_queues=1 << 20)}),
    "progress of a path": wrong(offsets={"../x": {"g": {0: 1}}}),
    "progress of no group": wrong(offsets={"orders": {"g/..": {0: 1}}}),
    "a deleted path": wrong(generations={"../x": 1}),
    "a deletion of no time": wrong(generations={"orders": -1}),
    "a deletion of no group": wrong(generations={"orders@a/b": 1}),
    "a filter of another kind": wrong(filters={"orders": {"g": GroupFilter("orders", "g", "x", "CLASS")}}),
    "a filter that is too long": wrong(filters={"orders": {"g": GroupFilter("orders", "g", "x" * 70_000)}}),
    "a filter of a path": wrong(filters={"../x": {"g": GroupFilter("../x", "g", "a > 5")}}),
    "a floor of a path": wrong(floors={"../x": 0}),
    "a floor of no queue": wrong(floors={"orders@../x": 0}),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_no_master_has_is_not_taken_over(two, caplog, what):
    """It is said in the log, and the rest is taken."""
    before = dict(two.slave.topics.table), dict(two.slave.groups.table)
    finish(two.slave.followed.take(UNFIT[what]))
    two.slave.followed.tick()
    assert (dict(two.slave.topics.table), dict(two.slave.groups.table)) == before
    assert not two.slave.offsets.table
    assert not two.slave.filters.table
    assert not two.slave.deletions.marks.table
    assert not two.slave.deletions.generations.table
    assert "not taken over" in caplog.text


def test_answers_that_do_not_go_on_are_refused(two):
    """Neither from another place, nor back."""
    two.tell()
    feed, position = two.slave.followed.place
    for changes in (
        TableChanges(feed, position + 1, position + 2, complete=True, log_end=0),
        TableChanges(feed + 1, position, position, complete=True, log_end=0),
        TableChanges(feed, position, position - 1, complete=True, log_end=0),
    ):
        with pytest.raises(RemoteProtocolError):
            finish(two.slave.followed.take(changes))
    assert two.slave.followed.place == (feed, position)


def test_what_could_not_be_saved_is_asked_for_again(tmp_path, caplog):
    """Everything, some seconds later; until then nothing is shown that is not on the disk."""
    file = MemoryFile()
    with (
        open_broker(tmp_path / "master", FakeClock()) as master,
        open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1, files={"topics.json": file}) as slave,
    ):
        two = Two(master, slave)
        two.tell()
        file.error = OSError(28, "No space left on device")
        master.topics.update(TopicConfig("orders", 2, 2))
        two.tell()
        assert slave.topics.get("orders") is None
        assert "not taken over yet" in caplog.text
        file.error = None
        two.tell()
        assert slave.topics.get("orders") is None
        slave.clock.advance(tables.AGAIN_SECONDS)
        two.tell()
        assert slave.topics.get("orders") == TopicConfig("orders", 2, 2)


def test_after_a_restart_a_mark_that_the_log_has_lost_is_taken_again(tmp_path):
    """The slave's log may have become shorter than its mark; what comes again below it is dead."""
    with open_broker(tmp_path / "master", FakeClock()) as master:
        master.topics.update(TopicConfig("orders", 2, 2))
        with open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1) as slave:
            two = Two(master, slave)
            two.put("orders", 0, b"a")
            first = master.store.log.end
            two.put("orders", 0, b"b")
            mark = two.delete()
            two.copy()
            two.tell()
            assert slave.deletions.marks.table == {"orders": mark}
            slave.store.writer.truncate(first)
        with open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1) as slave:
            two = Two(master, slave)
            two.tell()
            two.copy()
            assert two.bodies(slave) == [[], []]
            assert slave.store.deleted["orders"] == mark


def test_what_was_told_before_a_cut_holds_for_the_log_that_comes_behind_it(two):
    """The slave's log was longer than that of its master, which has crashed: marks and progress were held against what is cut off."""
    two.master.topics.update(TopicConfig("others", 1, 1))
    two.put("orders", 0, b"a")
    two.put("others", 0, b"a")
    first = two.master.store.log.end
    two.put("orders", 0, b"b")
    two.put("others", 0, b"b")
    two.commit(2, "others")
    mark = two.delete()
    two.put("others", 0, b"c")
    two.copy()
    two.tell()
    two.slave.store.writer.truncate(first)
    for saved in two.slave.log_was_cut():
        saved.settle()
    assert (offset(two.slave, "others"), two.slave.deletions.marks.table) == (1, {"orders": first})
    two.tell()
    two.copy()
    assert two.bodies(two.slave) == two.bodies(two.master) == [[], []]
    assert (offset(two.slave, "others"), two.slave.deletions.marks.table) == (2, {"orders": mark})


def test_progress_that_waits_for_a_log_that_its_master_has_lost_is_forgotten(two):
    """A power cut took the end of the master's log: what counted records there says nothing of those that come in their place."""
    finish(two.slave.followed.take(TableChanges(7, 0, 1, complete=True, log_end=1000, delays={1: 5})))
    finish(two.slave.followed.take(TableChanges(8, 0, 1, complete=True, log_end=0, delays={1: 2})))
    assert two.slave.followed._delay.read() == DelayProgress({1: 2}, 0)


def test_what_is_still_being_saved_when_the_master_has_it_no_more_goes_too(tmp_path):
    """A master that starts again tells all that it has: what it had before is not in the table yet, and would come after that."""
    file = SlowFile()
    file.slow = False
    with (
        open_broker(tmp_path / "master", FakeClock()) as master,
        open_broker(tmp_path / "slave", FakeClock(), leading=False, broker_id=1, files={"topics.json": file}) as slave,
    ):
        two = Two(master, slave)
        two.tell()
        file.slow = True
        master.topics.update(TopicConfig("orders", 2, 2))
        two.tell()
        two.delete()
        master.feed.end()  # as after a start
        two.tell()
        file.slow = False
        while file.under_way:
            file.end()
        assert slave.topics.get("orders") is None


def test_progress_in_a_queue_that_begins_anew_is_the_masters(two):
    """Its offsets count from 0 again, before anything tells why: own progress there is of other messages, that of other queues is not."""
    two.put("orders", 0, b"a", b"b")
    two.put("orders", 1, b"c")
    two.copy()
    two.tell()
    for queue_id, committed in ((0, 2), (1, 1)):
        two.commit(committed, queue_id=queue_id, at=two.slave)
    master, start = two.master.store, two.master.store.log.end
    master.flusher.flush()
    master.writer.delete_topic("orders")
    two.put("orders", 0, b"new")
    data = raw_log(master.folder.root, start, master.log.end)
    two.slave.appender.copy(memoryview(data), start)
    assert two.bodies(two.slave) == [[b"new"], [b"c"]]
    assert (offset(two.slave), offset(two.slave, queue_id=1)) == (None, 1)
