"""How commits come into their queues: together, once, whatever cuts them short, and into topics that were deleted."""

from __future__ import annotations

import shutil

import pytest

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.log.records import put_record
from metaq.broker.requests import Apply, Send
from metaq.clock import FakeClock
from metaq.errors import Reason
from metaq.model import TopicConfig
from metaq.model.topics.system import STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import Chunk, ManifestPart, Phase
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.store.config_file import ConfigFile
from metaq.store.message_store import MessageStore
from metaq.testing import FaultyDisk
from tests.broker.staged.support import (
    SOMEBODY,
    T,
    batch,
    bodies,
    commit,
    refused,
    rollback,
    run_steps,
    seal_of,
    stage,
    stored,
    whole_part,
)  # fmt: skip
from tests.broker.support import BORN_HOST, STORE_HOST, open_broker, small_store
from tests.store.support import copy_running, log_file, overwrite
from tests.support import eventually

BIG = [b"%d" % number + b"." * 300_000 for number in range(8)]
"""More than is applied at once."""


@pytest.fixture
def clock():
    return FakeClock()


def stage_big(broker, part="p", queue_id=0, transaction=T):
    """A part of several chunks; returns what a manifest says of it."""
    data = [batch(body, b"and") for body in BIG]
    for number, body in enumerate(data):
        whole = seal_of(*data, rows=16) if number == 7 else None
        stage(broker, Chunk(part=part, number=number, topic="orders", queue_id=queue_id, body=body, seal=whole),
              transaction=transaction)  # fmt: skip
    return ManifestPart("broker-a", part, "orders", queue_id, seal_of(*data, rows=16))


def one_chunk_a_turn(broker, clock):
    """Time passes whenever it is looked at."""

    def stopwatch():
        clock.advance(0.01)
        return clock.monotonic()

    broker.staging.stopwatch = stopwatch


def send(broker, body, queue_id=0):
    send = Send(topic="orders", queue_id=queue_id, body=body, born_ms=broker.clock.now_ms(), born_host=BORN_HOST)
    return broker.sends.send(send)


EXPECTED = [piece for body in BIG for piece in (body, b"and")]


def test_nothing_comes_between_the_messages_of_a_part(tmp_path, clock):
    """While it is there by half its queue takes nothing else, on either path; other queues do, and senders wait."""
    with open_broker(tmp_path, clock) as broker:
        part = stage_big(broker)
        gates = broker.gates.of(SOMEBODY)
        assert gates.open(b"orders")
        assert commit(broker, part).remaining == 8
        assert gates.table  # nothing is there yet, so nothing is in the way
        send(broker, b"before")
        one_chunk_a_turn(broker, clock)
        waiting = []
        for turn in range(7):
            assert broker.staging.step() == 0.0
            assert broker.staging.state(T).remaining == 7 - turn
            assert b"orders" not in gates.table
            assert not gates.open(b"orders")
            with pytest.raises(Saving) as saving:
                send(broker, b"between")
            for pending in saving.value.pending:
                pending.when_done(lambda error: waiting.append(error))
            assert "transaction" in refused(Reason.BUSY, broker.appender.put, [_record()])
            send(broker, b"aside", queue_id=1)
        broker.staging.step()
        assert waiting == [None] * 7
        send(broker, b"after")
        assert gates.open(b"orders")
        assert bodies(broker) == [b"before", *EXPECTED, b"after"]
        assert bodies(broker, "orders", 1) == [b"aside"] * 7


def _record():
    return put_record("orders", 0, b"x", {}, flag=0, sys_flag=0, born_ms=0, born_host=BORN_HOST)


def test_a_delayed_message_for_another_queue_of_the_topic_is_delivered_meanwhile(tmp_path, clock, caplog):
    """Nothing is wrong with it, and nothing is said."""
    with open_broker(tmp_path, clock) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        delayed = Send(topic="orders", queue_id=1, body=b"later", born_ms=clock.now_ms(), born_host=BORN_HOST,
                       properties="DELAY\x011")  # fmt: skip
        broker.sends.send(delayed)
        commit(broker, stage_big(broker))
        one_chunk_a_turn(broker, clock)
        broker.staging.step()
        assert broker.appender.closed_queues.has("orders", 0)
        clock.advance(5)
        broker.schedule.step()
        assert bodies(broker, "orders", 1) == [b"later"]
        assert "no such queue" not in caplog.text


def test_commits_for_one_queue_come_in_the_order_of_their_decisions(tmp_path, clock):
    """However large the first one is."""
    with open_broker(tmp_path, clock) as broker:
        big = stage_big(broker)
        small, part = whole_part("p", "orders", 0, b"small")
        stage(broker, small, transaction="u@broker-a")
        commit(broker, big)
        assert commit(broker, part, transaction="u@broker-a").remaining == 1
        assert 0 < len(bodies(broker)) < len(EXPECTED)
        run_steps(broker)
        assert bodies(broker) == [*EXPECTED, b"small"]


def test_apply_goes_on_a_bounded_step_and_tells_what_remains(tmp_path, clock):
    """The client repeats it until nothing does."""
    with open_broker(tmp_path, clock) as broker:
        commit(broker, stage_big(broker))
        left = []
        while (state := broker.staging.apply(Apply(transaction=T), SOMEBODY)).remaining:
            assert state.phase is Phase.COMMITTING
            left.append(state.remaining)
        assert left == [4]
        assert bodies(broker) == EXPECTED


def test_a_commit_that_was_cut_behind_any_record_goes_on_there(tmp_path, clock):
    """All or nothing, no copy twice: the log is cut behind each record that it has."""
    root = tmp_path / "whole"
    chunks = [batch(b"1", b"2", b"3"), batch(b"4", b"5")]
    whole = seal_of(*chunks, rows=5)
    with open_broker(root, clock) as broker:
        for number, body in enumerate(chunks):
            stage(broker, Chunk(part="p", number=number, topic="orders", queue_id=0, body=body,
                                seal=whole if number else None))  # fmt: skip
        aside, other = whole_part("q", "stock", 1, b"6", b"7")
        stage(broker, aside)
        places = [head.log_offset for head in broker.store.reader.heads(0)]
        commit(broker, ManifestPart("broker-a", "p", "orders", 0, whole), other)
        for _ in range(2):
            broker.tick()
        heads = list(broker.store.reader.heads(0))
        decided = next(head.log_offset for head in heads if head.topic == TXN_TOPIC.encode())
        cuts = [head.log_offset for head in heads if head.log_offset > places[0]] + [broker.store.log.end]
    assert len(cuts) >= 11
    for number, cut in enumerate(cuts):
        folder = tmp_path / str(number)
        shutil.copytree(root, folder)
        with MessageStore(small_store(folder), clock, STORE_HOST, "DefaultCluster") as store:
            if cut < store.log.end:
                store.writer.truncate(cut)
        for _ in range(2):
            with open_broker(folder, clock) as broker:
                closed = broker.appender.closed_queues.has("orders", 0)
                assert closed is (0 < len(bodies(broker)) < 5)
                run_steps(broker)
                assert not broker.appender.closed_queues.has("orders", 0)
                found = bodies(broker), bodies(broker, "stock", 1)
                assert found == (([b"1", b"2", b"3", b"4", b"5"], [b"6", b"7"]) if cut > decided else ([], [])), cut


def test_thousands_of_tiny_parts_come_in_bounded_turns_too(tmp_path, clock):
    """What is a few bytes takes time all the same."""
    with open_broker(tmp_path, clock, {"mapped_file_size_commit_log": 16 << 20}) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        parts = [whole_part(f"p{number}", "orders", number % 4, b"%d" % number) for number in range(2000)]
        stage(broker, *(chunk for chunk, _ in parts[:1000]))
        stage(broker, *(chunk for chunk, _ in parts[1000:]))
        remaining = commit(broker, *(part for _, part in parts)).remaining
        assert remaining >= 2000 - 512
        state = broker.staging.apply(Apply(transaction=T), SOMEBODY)
        assert remaining - 512 <= state.remaining < remaining
        run_steps(broker)
        assert sorted(int(body) for queue_id in range(4) for body in bodies(broker, "orders", queue_id)) == list(
            range(2000)
        )
        broker.tick()
        assert broker.staging.state(T).phase is Phase.COMMITTED


def test_queues_that_have_to_wait_are_not_looked_at_all_in_one_turn(tmp_path, clock):
    """There may be thousands, and a full disk stops each of them."""
    disk = FaultyDisk()
    with open_broker(tmp_path, clock, disk=disk) as broker:
        broker.topics.update(TopicConfig("orders", 64, 64))
        parts = [whole_part(f"p{number}", "orders", number, b"a") for number in range(64)]
        stage(broker, *(chunk for chunk, _ in parts))
        rollback(broker, "u@broker-a")
        disk.room = 0
        assert commit(broker, *(part for _, part in parts)).remaining == 64
        looks = 0

        def stopwatch():
            nonlocal looks
            looks += 1
            return float(looks)

        broker.staging.stopwatch = stopwatch
        assert broker.staging.step() > 0
        assert looks < 8
        disk.room = None
        for _ in range(100):
            broker.staging.step()
        assert all(bodies(broker, "orders", number) == [b"a"] for number in range(64))


def test_old_chunks_are_read_a_few_at_a_time(tmp_path, clock):
    """What threads read is memory: a start may find thousands that are committed. What nobody wants any more makes room."""
    parts = [whole_part(f"p{number}", "orders", number, b"%d" % number) for number in range(200)]
    jobs, small = [], {"mapped_file_size_commit_log": 64 << 10, "hot_bytes": 0}
    with open_broker(tmp_path, clock, small, read_cold=lambda job, done: jobs.append((job, done))) as broker:
        broker.topics.update(TopicConfig("orders", 200, 200))
        stage(broker, *(chunk for chunk, _ in parts))
        commit(broker, *(part for _, part in parts))
        for _ in range(20):
            broker.staging.step()
        assert len(jobs) == 64
        taken = 0
        for _ in range(200):
            while jobs:
                job, done = jobs.pop(0)
                done(job())
                taken += 1
            broker.staging.step()
        assert taken > 128
        assert all(bodies(broker, "orders", number) == [b"%d" % number] for number in range(200))


def test_what_is_committed_is_applied_by_a_broker_that_got_another_name(tmp_path, clock):
    """The manifest has the old one."""
    disk = FaultyDisk()
    chunk, part = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path, clock, disk=disk) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        stage(broker, chunk)
        rollback(broker, "u@broker-a")
        disk.room = 0
        assert commit(broker, part).remaining == 1
        disk.room = None
    options = small_store(tmp_path)
    with MessageStore(options, clock, STORE_HOST, "DefaultCluster") as store:
        table = BrokerOptions(broker_name="broker-n", broker_cluster_name="DefaultCluster")
        environment = Environment(table, options, clock, store, "broker-n", STORE_HOST)
        broker = Broker(environment, broker_files(lambda file: ConfigFile(tmp_path / "config" / file)))
        broker.lead()
        run_steps(broker)
        assert bodies(broker) == [b"a"]
        broker.close()


def test_a_topic_that_was_deleted_after_the_decision_is_made_again(tmp_path, clock, caplog):
    """What was acknowledged is not lost; the log says what happened."""
    with open_broker(tmp_path, clock) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        commit(broker, stage_big(broker, queue_id=3))
        done = broker.delete_topic("orders")
        assert broker.staging.step() > 0  # it is being deleted
        eventually(lambda: done.done)
        assert broker.topics.get("orders") is None
        eventually(lambda: (broker.staging.step(), broker.staging.state(T).remaining == 0)[1])
        assert bodies(broker, "orders", 3) == EXPECTED
        assert broker.topics.get("orders").write_queues >= 4
        assert "orders was deleted" in caplog.text


def test_a_queue_that_its_topic_has_no_more_gets_its_messages_all_the_same(tmp_path, clock, caplog):
    """They can be read when the queue is there again."""
    with open_broker(tmp_path, clock) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        chunk, part = whole_part("p", "orders", 3, b"a")
        stage(broker, chunk)
        broker.topics.update(TopicConfig("orders", 2, 2))
        commit(broker, part)
        assert bodies(broker, "orders", 3) == [b"a"]
        assert "no such queue" in caplog.text


def test_a_full_disk_refuses_each_step_and_the_same_step_works_later(tmp_path, clock):
    """Nothing is half done: what is decided is applied when there is room."""
    disk = FaultyDisk()
    with open_broker(tmp_path, clock, disk=disk) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        chunk, part = whole_part("p", "orders", 0, b"a")
        for act in (lambda: stage(broker, chunk), lambda: commit(broker, part)):
            disk.room = 0
            refused(Reason.NOT_STORED, act)
            disk.room = None
            if act is not None and broker.store.reader.existing_queue(TXN_TOPIC, 0) is None:
                stage(broker, chunk)
        assert broker.staging.state(T).phase is Phase.OPEN
        rollback(broker, "u@broker-a")  # its queue has room now, and that of the messages has none
        disk.room = 0
        assert commit(broker, part).remaining == 1
        assert broker.staging.step() > 0
        assert broker.staging.apply(Apply(transaction=T), SOMEBODY).remaining == 1
        assert bodies(broker) == []
        disk.room = None
        run_steps(broker)
        assert bodies(broker) == [b"a"]


def test_a_damaged_chunk_is_told_and_holds_up_nothing_else(tmp_path, clock, caplog):
    """Its messages are lost, and the log says which."""
    with open_broker(tmp_path, clock) as broker:
        chunk, part = whole_part("p", "orders", 0, b"lost")
        other, second = whole_part("q", "orders", 0, b"there")
        stage(broker, chunk)
        stage(broker, other)
        place = stored(broker, STAGE_TOPIC, 0)[0].log_offset
        file = broker.store.log.run.find(place)
        file.buffer[place - file.start + 100] ^= 1
        commit(broker, part, second)
        run_steps(broker)
        assert bodies(broker) == [b"there"]
        assert "are lost" in caplog.text


def test_no_damaged_byte_of_a_staged_chunk_refuses_a_start(tmp_path, clock, caplog):
    """Each byte of its properties, which no checksum covers: the chunk is passed over, or its part is not whole, and an
    error says so with file and log offset; another transaction goes on."""
    chunk, _ = whole_part("p", "orders", 0, b"lost")
    other, second = whole_part("q", "orders", 0, b"there")
    with open_broker(tmp_path / "a", clock) as broker:
        stage(broker, chunk)
        stage(broker, other, transaction="t-2@broker-a")
        (damaged, _) = stored(broker, STAGE_TOPIC, 0)
    name = f"{0:020d}"
    data = (tmp_path / "a" / "commitlog" / name).read_bytes()
    size = int.from_bytes(data[damaged.log_offset : damaged.log_offset + 4], "big")
    start = data.index(b"TAGS", damaged.log_offset)
    for at in [
        data.index(b"@", start),
        data.index(b"METAQ_CHUNK\x01", start) + 12,
        *range(start, damaged.log_offset + size, 17),
    ]:
        root = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "a", root)
        with (root / "commitlog" / name).open("r+b") as file:
            file.seek(at)
            file.write(b"-")
        caplog.clear()
        with open_broker(root, clock) as broker:
            commit(broker, second, transaction="t-2@broker-a")
            run_steps(broker)
            assert bodies(broker) == [b"there"]
        if data[at : at + 1] == b"@":
            assert f"{root / 'commitlog' / name} at byte {damaged.log_offset}" in caplog.text
            assert f"log offset {damaged.log_offset}" in caplog.text


def test_a_damaged_decision_is_told_at_the_start(tmp_path, clock, caplog):
    """With the place: what was committed and not applied is open again."""
    chunk, part = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path / "a", clock) as broker:
        stage(broker, chunk)
        commit(broker, part)
        place = stored(broker, TXN_TOPIC, 0)[0].log_offset
        copy_running(tmp_path / "a", tmp_path / "b")
    path = log_file(tmp_path / "b")
    overwrite(path, place + 100, b"!")
    with open_broker(tmp_path / "b", clock):
        assert f"{path} holds a broken record at byte {place}" in caplog.text
        assert f"the record in {path} at byte {place} (log offset {place}) cannot be read" in caplog.text
