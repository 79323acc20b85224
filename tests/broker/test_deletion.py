"""A deleted topic stays deleted: whatever its name is used for later, and however the broker ends."""

from __future__ import annotations

import errno
import json
import pathlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.requests import OffsetCommit
from metaq.clock import FakeClock
from metaq.errors import ConfigError
from metaq.model import TopicConfig
from metaq.options import BrokerOptions
from metaq.servers.remoting.messages import send_of
from metaq.store.config_file import ConfigFile
from metaq.store.disk import Disk
from metaq.store.journalled_file import JournalledFile
from metaq.store.message_store import MessageStore
from metaq.testing import PowerLossDisk
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, JAVA, STORE_HOST, SlowFile, open_broker, small_store
from tests.effort import repeats
from tests.servers.support import send_header
from tests.store.support import copy_running


def send(broker: Broker, topic: str, body: bytes, queue_id: int = 0):
    header = send_header(topic, queue_id, properties={"KEYS": "k"})
    return broker.sends.send(send_of(header, body, BORN_HOST, JAVA)).put


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[bytes]:
    """Bodies of a queue from offset 0 on."""
    queue = broker.store.reader.existing_queue(topic, queue_id)
    units = queue.units(0, 1 << 20) if queue else []
    records = [decode_record(broker.store.reader.record_at(unit.log_offset)) for unit in units]
    assert [record.queue_offset for record in records] == list(range(len(records)))
    return [record.body for record in records]


def by_key(broker: Broker, topic: str) -> set[bytes]:
    return {decode_record(data).body for data in broker.store.reader.query(topic, "k", 64, 0, 1 << 60)}


def delete(broker: Broker, topic: str) -> None:
    pending = broker.delete_topic(topic)
    if not pending.done:
        broker.store.flusher.flush()
    pending.settle()


def clean(broker: Broker, root: pathlib.Path) -> None:
    """As the next start finds it after an orderly end."""


def killed(broker: Broker, root: pathlib.Path) -> None:
    copy_running(broker.store.folder.root, root)


def killed_without_tails(broker: Broker, root: pathlib.Path) -> None:
    killed(broker, root)
    for path in (root / "config").glob("metaqTails.json*"):
        path.unlink()


def rebuilt(broker: Broker, root: pathlib.Path) -> None:
    killed_without_tails(broker, root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "checkpoint").unlink()


ENDS: list[Callable[[Broker, pathlib.Path], None]] = [clean, killed, killed_without_tails, rebuilt]


@pytest.mark.parametrize("end", ENDS, ids=[end.__name__ for end in ENDS])
@pytest.mark.parametrize("made_again", ["before", "after", "never"])
@pytest.mark.parametrize("last", ["deleted", "other"])
def test_a_topic_that_is_made_again_does_not_get_its_old_messages(tmp_path, end, made_again, last):
    """Before or after the next start; queue, offsets, positions and index begin anew."""
    first, root = tmp_path / "a", tmp_path / "a" if end is clean else tmp_path / "b"
    with open_broker(first) as broker:
        send(broker, "other", b"other")
        for n in range(5):
            send(broker, "orders", b"old %d" % n, n % 2)
        if last == "other":
            send(broker, "other", b"other")
        broker.store.keeper.checkpoint()
        broker.offsets.put("G", "orders", 0, 3)
        delete(broker, "orders")
        if made_again == "before":
            assert send(broker, "orders", b"new").queue_offset == 0
        end(broker, root)
    for _ in range(2):
        with open_broker(root) as broker:
            assert (broker.topics.get("orders") is not None) == (made_again == "before")
            assert stored(broker, "orders") == ([b"new"] if made_again == "before" else [])
            assert stored(broker, "orders", 1) == []
            assert by_key(broker, "orders") == ({b"new"} if made_again == "before" else set())
            assert stored(broker, "other") == [b"other"] * (2 if last == "other" else 1)
            assert broker.offsets.get("G", "orders", 0) is None
            if made_again == "after":
                send(broker, "orders", b"new")
                assert stored(broker, "orders") == [b"new"]
                made_again = "before"


@pytest.mark.parametrize("made_again", [False, True])
def test_a_delayed_message_goes_with_its_topic(tmp_path, made_again, caplog):
    """It is one of the topic's messages: it must neither bring the topic back nor be the first of its successor."""
    clock = FakeClock()
    with open_broker(tmp_path, clock) as broker:
        send(broker, "T", b"plain")
        for body in (b"old", b"older"):
            header = send_header("T", 0, properties={"DELAY": "1"})
            broker.sends.send(send_of(header, body, BORN_HOST, JAVA))
        delete(broker, "T")
        if made_again:
            send(broker, "T", b"new")
            broker.sends.send(send_of(send_header("T", 0, properties={"DELAY": "1"}), b"delayed", BORN_HOST, JAVA))
        for _ in range(4):
            clock.advance(1)
            broker.tick()
        assert stored(broker, "T") == ([b"new", b"delayed"] if made_again else [])
        assert "the topic was deleted after it was sent" in caplog.text
        assert broker.schedule.progress()[1] == ((3, 3) if made_again else (2, 2))
    with open_broker(tmp_path, clock) as broker:
        assert (broker.topics.get("T") is not None) is made_again
        assert stored(broker, "T") == ([b"new", b"delayed"] if made_again else [])


def test_messages_without_a_topic_can_be_deleted(tmp_path):
    """They are not given back to the next topic of that name."""
    with open_broker(tmp_path) as broker:
        send(broker, "orders", b"old")
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()
    with open_broker(tmp_path, restore_lost_topics=False) as broker:
        assert broker.topics.get("orders") is None
        delete(broker, "orders")
        send(broker, "orders", b"new")
    with open_broker(tmp_path) as broker:
        assert stored(broker, "orders") == [b"new"]


def test_a_topic_is_deleted_and_made_many_times(tmp_path):
    """Only the newest of its lives is there after each start."""
    root = tmp_path / "0"
    for n in range(1, 5):
        with open_broker(root) as broker:
            assert stored(broker, "orders") == ([b"%d" % (n - 1)] if n > 1 else [])
            if n > 1:
                delete(broker, "orders")
            send(broker, "orders", b"%d" % n)
            killed(broker, tmp_path / f"{n}")
        root = tmp_path / f"{n}"


def test_queues_that_a_crash_kept_from_going_are_removed_at_the_next_start(tmp_path):
    """The deletion is in the file; the folder of the queues is still under its name."""
    with open_broker(tmp_path / "a") as broker:
        for queue_id in range(3):
            send(broker, "orders", b"old", queue_id)
        delete_marks = broker.store.log.end
        killed(broker, tmp_path / "b")
    config = tmp_path / "b" / "config"
    for path in config.glob("topics.json.journal.*"):
        path.unlink()
    assert '"orders"' not in (config / "topics.json").read_text()
    (config / "metaqDeleted.json").write_text(json.dumps({"deletedTopics": {"orders": delete_marks}}))
    with open_broker(tmp_path / "b") as broker:
        assert broker.topics.get("orders") is None
        assert [stored(broker, "orders", queue_id) for queue_id in range(3)] == [[], [], []]
        assert send(broker, "orders", b"new").queue_offset == 0
        killed(broker, tmp_path / "c")
    with open_broker(tmp_path / "c") as broker:
        assert stored(broker, "orders") == [b"new"]


def test_a_deletion_is_forgotten_when_the_log_begins_behind_it(tmp_path, monkeypatch):
    """The file does not grow for ever; but a log file whose deletion a power cut may undo is still there, for this."""

    def no_sync(disk, path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    clock = FakeClock()
    file = ConfigFile(tmp_path / "config" / "metaqDeleted.json")
    with open_broker(tmp_path, clock, {"mapped_file_size_commit_log": 64 << 10}) as broker:
        send(broker, "orders", b"old")
        delete(broker, "orders")
        clock.advance(20)
        broker.tick()
        assert '"orders"' in file.load()
        for forgotten in (False, True):
            end = broker.store.log.end // (64 << 10)
            while broker.store.log.end // (64 << 10) == end:
                send(broker, "other", bytes(40_000))
            clock.advance(100 * 3600)
            with monkeypatch.context() as patch:
                if forgotten:
                    assert broker.store.keeper.retain(clock.now_ms(), at_once=True)
                else:
                    patch.setattr(Disk, "resync_folder", no_sync)
                    with pytest.raises(OSError, match="Input/output"):
                        broker.store.keeper.retain(clock.now_ms(), at_once=True)
            broker.tick()
            assert ('"orders"' not in file.load()) is forgotten
        assert broker.deletions.marks.table == {}


def test_a_deletion_is_not_forgotten_with_the_one_before_it(tmp_path):
    """The mark of the one before is dropped when its generation is saved, and the new mark is being saved then."""
    clock, generations, marks = FakeClock(), SlowFile(), SlowFile()
    generations.slow = marks.slow = False
    files = {"metaqGenerations.json": generations, "metaqDeleted.json": marks}
    with open_broker(tmp_path, clock, {"mapped_file_size_commit_log": 64 << 10}, files=files) as broker:
        send(broker, "orders", b"old")
        made_anew(broker, 1)
        for _ in range(3):
            send(broker, "other", bytes(40_000))
        clock.advance(100 * 3600)
        assert broker.store.keeper.retain(clock.now_ms(), at_once=True)
        send(broker, "orders", b"old")
        generations.slow = marks.slow = True
        broker.tick()
        broker.store.flusher.flush()
        pending = broker.delete_topic("orders")
        generations.end()
        while not pending.done:
            marks.end()
        generations.slow = marks.slow = False
        while marks.under_way:
            marks.end()
        assert broker.deletions.marks.table == {"orders": broker.store.log.end}
        while generations.under_way:
            generations.end()


def test_a_memory_that_points_behind_the_log_covers_nothing_that_comes_there(tmp_path):
    """The log's files were replaced by older ones: what is appended from there on is alive."""
    with open_broker(tmp_path / "a") as broker:
        send(broker, "orders", b"first")
        end = broker.store.log.end
    config = tmp_path / "a" / "config"
    (config / "metaqDeleted.json").write_text(json.dumps({"deletedTopics": {"orders": end + 1_000_000}}))
    with open_broker(tmp_path / "a") as broker:
        send(broker, "orders", b"second")
        killed(broker, tmp_path / "b")
    with open_broker(tmp_path / "b") as broker:
        assert stored(broker, "orders") == [b"second"]


@pytest.mark.parametrize("text", ["{broken", '{"deletedTopics":5}', '{"deletedTopics":{"a":"x"}}', "{}"])
def test_a_broken_memory_stops_the_start(tmp_path, text):
    """It names the file and what losing it means; deleted messages do not come back in silence."""
    with open_broker(tmp_path) as broker:
        send(broker, "orders", b"x")
        delete(broker, "orders")
    (tmp_path / "config" / "metaqDeleted.json").write_text(text)
    with (
        pytest.raises(ConfigError, match=r"metaqDeleted\.json cannot be read.*may then be found again"),
        open_broker(tmp_path),
    ):
        pass


# ---------------------------------------------------------------- power cuts and kills at every step


class Ended(BaseException):
    """The machine is gone; nothing of ours catches this."""


@dataclass
class Topic:
    """What a reader must and may find."""

    exists: bool = False
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(queue id, log end, body) of what was acknowledged since the topic was made."""
    dead: set[bytes] = field(default_factory=set)
    deleting: bool = False
    sending: bytes = b""


class Lives:
    """One folder through several ends."""

    TOPICS = ("a", "b", "c")

    def __init__(self, root: pathlib.Path, seed: int) -> None:
        self.root, self.seed, self.chance, self.clock = root, seed, random.Random(seed), FakeClock()
        self.topics = {name: Topic() for name in self.TOPICS}
        self.durable = 0
        self.number = 0

    def run(self, lives: int) -> None:
        disk = PowerLossDisk(self.root / "0", f"{self.seed}")
        for life in range(1, lives + 1):
            disk = self.live(disk, self.root / str(life))
        disk.close()

    def live(self, disk: PowerLossDisk, elsewhere: pathlib.Path) -> PowerLossDisk:
        next_disk: list[PowerLossDisk] = []
        left = [self.chance.choice((20, 100, 400)) and self.chance.randint(1, self.chance.choice((20, 100, 400)))]
        kill = self.chance.random() < 0.4

        def on_call(_name: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                disk.on_call = None
                self.durable = 1 << 60 if kill else store.state.flushed if store else self.durable
                next_disk.append(disk.kill(elsewhere) if kill else disk.cut(elsewhere))
                raise Ended

        store: MessageStore | None = None
        options = small_store(disk.root, mapped_file_size_commit_log=64 << 10)
        try:
            opened = MessageStore(options, self.clock, STORE_HOST, "C", disk=disk, threads=False)
            store = opened
            table = BrokerOptions(broker_name="broker-a")
            environment = Environment(table, options, self.clock, opened, "broker-a", STORE_HOST)
            files = broker_files(
                lambda name: ConfigFile(disk.root / "config" / name, disk),
                lambda name: JournalledFile(disk.root / "config" / name, disk, fold_bytes=2000),
            )
            broker = Broker(environment, files)
            broker.lead()
            self.check(broker)
            disk.on_call = on_call
            for _ in range(40):
                self.step(broker)
            disk.on_call = None
            self.durable = 1 << 60
            next_disk.append(disk.kill(elsewhere))
        except Ended:
            pass
        finally:
            disk.on_call = None
            if store is not None:
                store.folder.close()
            disk.close()
        return next_disk[0]

    def step(self, broker: Broker) -> None:
        name = self.chance.choice(self.TOPICS)
        topic, act = self.topics[name], self.chance.random()
        if act < 0.6:
            self.number += 1
            topic.sending = b"%d" % self.number
            queue_id = self.chance.randrange(2)
            put = send(broker, name, topic.sending, queue_id)
            topic.exists = True
            topic.sent.append((queue_id, put.log_end, topic.sending))
            topic.sending = b""
        elif act < 0.8:
            topic.deleting = True
            delete(broker, name)
            topic.deleting = topic.exists = False
            topic.dead |= {body for _, _, body in topic.sent}
            topic.sent = []
        elif act < 0.9:
            broker.store.flusher.flush()
        elif act < 0.97:
            broker.store.keeper.checkpoint()
        else:
            broker.topics.update(TopicConfig(name, 4, 4)).settle()
            topic.exists = True

    def check(self, broker: Broker) -> None:
        for name, topic in self.topics.items():
            there = broker.topics.get(name) is not None
            found = {queue_id: stored(broker, name, queue_id) for queue_id in range(2)}
            bodies = {body for some in found.values() for body in some}
            context = f"seed {self.seed}, topic {name}: {found}, {topic}"
            assert not bodies & topic.dead, context
            assert not by_key(broker, name) & topic.dead, context
            gone = topic.deleting and not bodies
            if topic.exists and not topic.deleting:
                assert there, context
            if not topic.exists and not topic.deleting and not topic.sending:
                assert not there or not bodies, context
            for queue_id, some in found.items():
                sent = [(end, body) for queue, end, body in topic.sent if queue == queue_id]
                must = [body for end, body in sent if end <= self.durable]
                may = [body for _, body in sent] + ([topic.sending] if topic.sending in some else [])
                assert gone or some[: len(must)] == must, context
                assert some == may[: len(some)], context
            if gone:
                topic.dead |= {body for _, _, body in topic.sent}
            topic.exists = there
            topic.sent = [(queue_id, 0, body) for queue_id, some in found.items() for body in some]
            topic.deleting, topic.sending = False, b""


@pytest.mark.parametrize("seed", range(repeats(40)))
def test_deleted_stays_deleted_and_kept_stays_kept_whenever_the_machine_ends(tmp_path, seed):
    """Kill and power cut at any call of the disk, several lives long; ASYNC_FLUSH, so what was not flushed may go."""
    Lives(tmp_path, seed).run(5)


# ------------------------------------------------------------------ generations: positions in the topic of before


def commit(broker: Broker, offset: int, generation: int | None = None, group: str = "G") -> None:
    broker.groups.require(group)
    broker.commit_offset(OffsetCommit(group=group, topic="orders", queue_id=0, offset=offset, generation=generation))


def made_anew(broker: Broker, messages: int) -> None:
    delete(broker, "orders")
    broker.topics.ensure("orders")
    for number in range(messages):
        send(broker, "orders", b"new %d" % number)


def test_each_deletion_begins_a_generation_which_outlives_the_log(tmp_path):
    clock, small = FakeClock(), {"mapped_file_size_commit_log": 64 << 10}
    with open_broker(tmp_path, clock, small) as broker:
        assert broker.deletions.generation("orders") == -clock.now_ms()
        found = [-clock.now_ms()]
        for _ in range(2):
            send(broker, "orders", b"old")
            made_anew(broker, 1)
            found.append(broker.deletions.generation("orders"))
        assert len(set(found)) == 3
        for _ in range(3):
            send(broker, "other", bytes(40_000))
        clock.advance(100 * 3600)
        assert broker.store.keeper.retain(clock.now_ms(), at_once=True)
        broker.tick()
        assert broker.deletions.marks.table == {}
        assert broker.deletions.generation("orders") == found[-1]
    with open_broker(tmp_path, clock, small) as broker:
        assert broker.deletions.generation("orders") == found[-1]


def test_a_new_store_is_a_generation_of_its_own(tmp_path):
    """A broker whose folder was wiped has other messages at the same offsets. A store that another has made is dated by nothing."""
    clock = FakeClock()
    found = []
    for folder in ("first", "second"):
        with open_broker(tmp_path / folder, clock) as broker:
            found.append(broker.deletions.generation("orders"))
            send(broker, "orders", b"x")
        clock.advance(1)
        with open_broker(tmp_path / folder, clock) as broker:
            assert broker.deletions.generation("orders") == found[-1] < 0
    assert found[0] != found[1]
    (tmp_path / "first" / "config" / "metaqGenerations.json").unlink()
    with open_broker(tmp_path / "first", clock) as broker:
        assert broker.deletions.generation("orders") == 0


def test_a_commit_of_the_topic_before_counts_in_none_after(tmp_path):
    """A member whose topic was made anew while it worked commits what it has done."""
    with open_broker(tmp_path) as broker:
        for _ in range(5):
            send(broker, "orders", b"old")
        commit(broker, 5, 0)
        made_anew(broker, 8)
        generation = broker.deletions.generation("orders")
        commit(broker, 5, 0)
        assert broker.offsets.get("G", "orders", 0) is None
        commit(broker, 9)  # of a client that knows no generations: it is beyond the end
        assert broker.offsets.get("G", "orders", 0) is None
        commit(broker, 3, generation)
        assert broker.offsets.get("G", "orders", 0) == 3


def test_a_group_that_had_progress_begins_at_the_beginning(tmp_path):
    """Others begin where they are new: there "latest" is the end."""
    with open_broker(tmp_path) as broker:
        for _ in range(5):
            send(broker, "orders", b"old")
        commit(broker, 5)
        made_anew(broker, 2)
    with open_broker(tmp_path) as broker:
        broker.groups.require("other")
        asked = {name: broker.lookup.consumer_offset(name, "orders", 0, young_is_zero=False) for name in ("G", "other")}
        assert asked == {"G": 0, "other": None}
        broker.delete_group("G", with_offsets=True).settle()
        assert broker.lookup.consumer_offset("G", "orders", 0, young_is_zero=False) is None
