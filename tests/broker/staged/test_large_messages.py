"""A chunk of one message: it may be as large as a message that is sent by itself, wherever it lies and whatever happens to it."""

from __future__ import annotations

import shutil

import pytest

from metaq.broker.requests import Send
from metaq.broker.staged import apply as staging_reading
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import TopicConfig
from metaq.model.topics.system import STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import CHUNK_BYTES_MAX, Chunk, ManifestPart
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import StagedSurvey
from metaq.wire.record import copied_from, encode_batch
from tests.broker.staged.support import (
    T,
    batch,
    bodies,
    commit,
    let_files_go,
    refused,
    run_steps,
    seal_of,
    stage,
    stored,
    whole_part,
)
from tests.broker.support import BORN_HOST, STORE_HOST, open_broker, small_store

MOST = 2 << 20
"""maxMessageSize here."""
STORE = {"mapped_file_size_commit_log": 8 << 20, "max_message_size": MOST}
LARGE = b"x" * (CHUNK_BYTES_MAX + 1)
SMALL_MOST = {"mapped_file_size_commit_log": 64 << 10, "max_message_size": 20_000, "file_reserved_time": 1}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(tmp_path, clock):
    with open_broker(tmp_path, clock, STORE) as opened:
        opened.topics.update(TopicConfig("orders", 4, 4))
        yield opened


def one(body: bytes) -> Chunk:
    return Chunk(part="p", number=0, topic="orders", queue_id=0, body=body)


def three(*middle: bytes) -> tuple[list[Chunk], ManifestPart]:
    """A part: a small chunk, one with these messages, a small one."""
    chunks = [batch(b"a", b"b"), batch(*middle), batch(b"c")]
    seal = seal_of(*chunks, rows=3 + len(middle))
    sections = [
        Chunk(part="p", number=number, topic="orders", queue_id=0, body=body, seal=seal if number == 2 else None)
        for number, body in enumerate(chunks)
    ]
    return sections, ManifestPart("broker-a", "p", "orders", 0, seal)


def test_one_message_may_be_as_large_as_one_that_is_sent(broker):
    """To the byte, and its properties do not count; nobody sees it before the commit, and it is in its place in the order."""
    chunks, part = three(b"y" * MOST)
    for chunk in chunks:
        stage(broker, chunk)
        stage(broker, chunk)  # Again, after a lost answer.
    assert bodies(broker) == []
    assert commit(broker, part).first
    run_steps(broker)
    assert bodies(broker) == [b"a", b"b", b"y" * MOST, b"c"]
    found = stored(broker, "orders", 0)[2]
    assert (found.flag, found.tag, found.keys) == (7, "paid", ("k1",))
    send = Send(topic="orders", queue_id=0, body=b"y" * MOST, born_ms=0, born_host=BORN_HOST)
    assert broker.sends.send(send)


def test_one_byte_more_than_that_is_refused_with_size_and_limit(broker):
    text = refused(Reason.ILLEGAL_MESSAGE, stage, broker, one(batch(b"x" * (MOST + 1))))
    assert text == (
        "the message of a chunk for queue 0 of topic orders has a body of 2097153 bytes, the limit is 2097152 (maxMessageSize)"
    )
    most = encode_batch([(0, b"x" * MOST, b"k\x01" + b"v" * 32_760)])
    assert "32762 bytes of properties" in refused(Reason.ILLEGAL_MESSAGE, stage, broker, one(most))
    assert broker.store.reader.existing_queue(STAGE_TOPIC, 0) is None
    assert stage(broker, one(encode_batch([(0, b"x" * MOST, b"k\x01" + b"v" * 32_000)]))).decision is None


@pytest.mark.parametrize(
    "body",
    [batch(LARGE[:-60], b"y" * 60), batch(LARGE)[:-1], b"x" * (CHUNK_BYTES_MAX + 1), batch(LARGE) + b"\0"],
    ids=["two messages", "cut off", "no batch", "a byte too many"],
)
def test_everything_else_above_a_mebibyte_is_refused(broker, body):
    """Several messages go into their queue in one go, so they are to be little."""
    text = refused(Reason.ILLEGAL_MESSAGE, stage, broker, one(body))
    assert f"has {len(body)} bytes, it may have 1 to 1048576, and more only if it is one message" in text


def test_a_message_that_no_log_file_holds_is_refused(tmp_path, clock):
    """At the staging, not at the commit."""
    with open_broker(tmp_path, clock, {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 2 << 20}) as broker:
        assert "mappedFileSizeCommitLog" in refused(Reason.ILLEGAL_MESSAGE, stage, broker, one(batch(LARGE)))
        taken = []
        for less in range(0, 800, 20):
            chunk, part = whole_part(f"p{less}", "orders", 0, b"x" * ((1 << 20) - less))
            try:
                stage(broker, chunk)
            except Refused as error:
                assert error.reason is Reason.ILLEGAL_MESSAGE
                assert "mappedFileSizeCommitLog" in str(error)
            else:
                taken.append(part)
        assert 0 < len(taken) < 40
        commit(broker, *taken)
        run_steps(broker)
        assert len(bodies(broker)) == len(taken)


def test_the_limit_is_for_what_comes_not_for_what_was_taken(broker):
    """maxMessageSize may be lowered between staging and commit."""
    chunk, part = whole_part("p", "orders", 0, LARGE)
    stage(broker, chunk)
    broker.settings.change({"maxMessageSize": 1000})
    assert "the limit is 1000" in refused(
        Reason.ILLEGAL_MESSAGE, stage, broker, one(batch(LARGE)), transaction="u@broker-a"
    )
    commit(broker, part)
    run_steps(broker)
    assert bodies(broker) == [LARGE]


def test_a_message_without_a_body_is_carried(broker):
    """RocketMQ's producers refuse to send one, and its brokers keep what comes otherwise: so a mirror meets it."""
    chunks, part = three(b"", b"x", b"")
    stage(broker, *chunks)
    commit(broker, part)
    run_steps(broker)
    assert bodies(broker) == [b"a", b"b", b"", b"x", b"", b"c"]
    alone, other = whole_part("q", "orders", 1, b"")
    stage(broker, alone, transaction="u@broker-a")
    commit(broker, other, transaction="u@broker-a")
    run_steps(broker)
    assert bodies(broker, "orders", 1) == [b""]


def test_a_commit_that_was_cut_behind_any_record_goes_on_there(tmp_path, clock):
    """All or nothing, no copy twice: the log is cut behind each record that it has, the large ones included."""
    root = tmp_path / "whole"
    chunks, part = three(LARGE)
    with open_broker(root, clock, STORE) as broker:
        for chunk in chunks:
            stage(broker, chunk)
        places = [head.log_offset for head in broker.store.reader.heads(0)]
        commit(broker, part)
        run_steps(broker)
        heads = list(broker.store.reader.heads(0))
        decided = next(head.log_offset for head in heads if head.topic == TXN_TOPIC.encode())
        cuts = [head.log_offset for head in heads if head.log_offset > places[0]] + [broker.store.log.end]
    assert len(cuts) >= 8
    survey = StagedSurvey(StoreReader(root))
    assert [problem for found in survey.transactions.values() for problem in found.problems] == []
    assert survey.transactions[T].parts["p"].copies == 4
    for number, cut in enumerate(cuts):
        folder = tmp_path / str(number)
        shutil.copytree(root, folder)
        with MessageStore(small_store(folder, **STORE), clock, STORE_HOST, "DefaultCluster") as store:
            if cut < store.log.end:
                store.writer.truncate(cut)
        with open_broker(folder, clock, STORE) as broker:
            run_steps(broker)
            assert bodies(broker) == ([b"a", b"b", LARGE, b"c"] if cut > decided else []), cut
        shutil.rmtree(folder)


def test_a_large_chunk_outlasts_its_log_file(tmp_path, clock):
    """It is written anew at the log's end, though with its properties it is more than a message may be."""
    body = b"z" * 20_000
    chunk, part = whole_part("p", "orders", 0, body)
    with open_broker(tmp_path, clock, SMALL_MOST, staged_seconds_max=1_000_000) as broker:
        stage(broker, chunk)
        let_files_go(broker, clock)
        [renewed] = stored(broker, STAGE_TOPIC, 0)
        assert copied_from(renewed.prepared_offset) is not None
    with open_broker(tmp_path, clock, SMALL_MOST, staged_seconds_max=1_000_000) as broker:
        commit(broker, part)
        run_steps(broker)
        assert bodies(broker) == [body]


def test_what_threads_read_of_large_chunks_is_bounded_in_bytes(tmp_path, clock, monkeypatch):
    """Sixty-four of 4 MiB would be a lot of memory; all of them come in the end."""
    monkeypatch.setattr(staging_reading, "READ_BYTES_MAX", 50_000)
    parts = [whole_part(f"p{number}", "orders", number, b"%02d" % number * 9_000) for number in range(20)]
    jobs, store = [], SMALL_MOST | {"hot_bytes": 0}
    with open_broker(tmp_path, clock, store, read_cold=lambda job, done: jobs.append((job, done))) as broker:
        broker.topics.update(TopicConfig("orders", 20, 20))
        for chunk, _ in parts:
            stage(broker, chunk)
        commit(broker, *(part for _, part in parts))
        for _ in range(20):
            broker.staging.step()
        assert len(jobs) == 3, "the third one passes the limit, and is the last"
        for _ in range(200):
            while jobs:
                job, done = jobs.pop(0)
                done(job())
            broker.staging.step()
        assert all(bodies(broker, "orders", number) == [b"%02d" % number * 9_000] for number in range(20))
