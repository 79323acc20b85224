"""When answers to puts of 1.x clients wait for the disk: unflushThreshold."""

from __future__ import annotations

from types import SimpleNamespace

from msgspec.structs import replace

from metaq.broker.log.acks import AckPolicy, Due, later
from metaq.broker.metaq1.acks import PartitionAcks
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.model.metaq1.settings import PartitionRules, PartitionSettings
from metaq.options import Metaq1Options


class Log:
    """A log that grows by 100 bytes a message, and a disk that comes as far as it is told."""

    def __init__(self, flush="ASYNC_FLUSH", **thresholds):
        self.tail, self.state = SimpleNamespace(end=0), SimpleNamespace(flushed=0)
        self.flushes = []
        environment = SimpleNamespace(
            store=SimpleNamespace(log=self, state=self.state, flusher=SimpleNamespace(when_flushed=self.asked)),
            options=SimpleNamespace(unflushed_bytes_max=10**9),
            store_options=SimpleNamespace(flush_disk_type=flush),
        )
        default = PartitionSettings.of(Metaq1Options())
        topics = {name: replace(default, unflush_threshold=number) for name, number in thresholds.items()}
        self.settings = Metaq1Settings(Metaq1Options(), PartitionRules(default, topics, sections=True))
        self.acks = PartitionAcks(environment, AckPolicy(environment), self.settings)

    def asked(self, log_end, done):
        self.flushes.append(log_end)
        done(True)

    def put(self, topic, count=1, partition=0):
        """How far the disk must have come before so many puts are answered; 0: no matter."""
        self.tail.end += 100 * count
        self.acks.stored(topic, partition, self.tail.end, count)
        due = self.acks.due()
        return due.flushed if due else 0


def test_with_zero_and_one_every_answer_waits():
    """Group commit, and each message synced: the answer says that the message is on the disk."""
    log = Log(group=0, never=-1, each=1)
    assert [log.put("group"), log.put("each"), log.put("never")] == [100, 200, 300]
    assert log.put("each", 5) == 800
    assert log.acks.due() is None, "it was asked"


def test_so_many_may_be_answered_before_the_disk_has_them():
    """One more waits until it has one of them; by partition."""
    log = Log(some=3)
    assert [log.put("some") for _ in range(4)] == [0, 0, 0, 100]
    assert log.put("some", partition=1) == 0
    assert log.put("some") == 200, "the disk has not come any further"
    log.state.flushed = 599
    assert log.put("some") == 0, "two of them are unsynced"
    log.state.flushed = 700
    assert [log.put("some") for _ in range(4)] == [0, 0, 0, 800]
    log.state.flushed = 1100
    assert log.put("some", 4) == 1500, "a run counts as so many, and is synced whole"


def test_the_disk_is_asked_long_before_anybody_must_wait():
    """At half of the threshold, and once for each half."""
    log = Log(some=100)
    for _ in range(50):
        log.put("some")
    assert log.flushes == []
    log.put("some")
    assert log.flushes == [5100]
    log.state.flushed = 5100
    assert [log.put("some") for _ in range(51)] == [0] * 51
    assert log.flushes == [5100, 10_200]


def test_what_is_kept_of_unsynced_messages_is_bounded():
    """However many may be unsynced; and no more than these ever are."""
    log = Log(many=100_000)
    due = [log.put("many") for _ in range(150_000)]
    assert due[:100_000] == [0] * 100_000
    for number, end in enumerate(due[100_000:], 1):
        assert 100 * number <= end <= 100 * (number + 3200)
    (unsynced,) = log.acks._unsynced.values()
    assert len(unsynced.marks) < 200


def test_topics_without_a_section_have_the_default():
    """1000 of [system]."""
    log = Log()
    assert log.put("other", 1000) == 0
    assert log.put("other") == 100_000


def test_another_threshold_holds_from_the_next_put_on():
    """A reload exchanges the rules."""
    log = Log(t=3)
    assert log.put("t") == 0
    rules = log.settings.rules
    topics = {"t": replace(rules.default, unflush_threshold=0)}
    log.settings.exchange(PartitionRules(rules.default, topics, sections=True), b"")
    assert log.put("t") == 200


def test_what_holds_for_all_sends_holds_for_puts_too():
    """SYNC_FLUSH waits whatever the threshold is."""
    assert Log("SYNC_FLUSH", t=1000).put("t") == 100
    assert later(None, None) is None
    assert later(Due(5, 0, promised=False), None) == Due(5, 0, promised=False)
    assert later(Due(5, 9, promised=False), Due(7, 0, promised=True)) == Due(7, 9, promised=True)
