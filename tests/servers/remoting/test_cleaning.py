"""Cleaning by hand (306, 316, 329), and positions copied from group to group (314)."""

from __future__ import annotations

import pytest

from metaq.broker.cleaning import ASKED_MAX, Cleaning
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import TopicConfig
from metaq.model.topics.system import TRANSACTION_GROUP
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from tests.servers.support import Client, open_server
from tests.support import eventually

HOUR_MS = 3_600_000
SMALL = {"mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 200, "delete_when": "99"}


def asked(client: Client, code: int, ext: dict[str, str] | None = None):
    """The answer, which comes from another thread."""
    client.feed(client.frame(code, ext))
    (answer,) = eventually(client.received)
    return answer


@pytest.fixture
def filled(tmp_path):
    """A broker with several log files, and no hour at which expired ones go."""
    clock = FakeClock()
    with open_server(tmp_path, clock, SMALL) as (broker, server):
        client = Client(server)
        for _ in range(60):
            client.send("orders", bytes(4000))
        yield broker, client, clock


def test_expired_log_files_go_at_any_hour(filled):
    """329: those whose time is up, and no others; the newest stays."""
    broker, client, clock = filled
    log = broker.store.log
    before = len(log.run.files)
    assert before >= 3
    assert asked(client, Code.DELETE_EXPIRED_COMMITLOG).code == 0
    assert log.min == 0, "nothing has expired"
    clock.advance(73 * 3600)
    broker.store.keeper.tick(clock.now_ms())
    assert asked(client, Code.DELETE_EXPIRED_COMMITLOG).code == 0
    assert log.min > 0
    assert broker.lookup.min_offset("orders", 0) > 0
    assert client.send("orders").code == 0


def test_expired_units_go_with_their_files(filled):
    """306: a queue begins where the log does, and goes on counting."""
    broker, client, _ = filled
    queue = broker.store.reader.existing_queue("orders", 0)
    files, end = len(queue.run.files), queue.max_offset
    broker.store.log.run.drop_before(broker.store.log.run.files[1].end)
    assert queue.min_offset == 0
    answer = asked(client, Code.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert (answer.code, answer.body) == (0, b"")
    assert queue.min_offset > 0
    assert len(queue.run.files) < files
    assert broker.lookup.max_offset("orders", 0) == end


def test_cleaning_that_fails_is_told(filled, monkeypatch):
    """Also in the log; the next one may succeed."""
    broker, client, _ = filled
    queue = broker.store.reader.existing_queue("orders", 0)

    def broken(_log_min):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(type(queue), "correct_min", broken)
        answer = asked(client, Code.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert answer.code != 0
    assert "could not be deleted" in answer.remark
    assert asked(client, Code.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0


def test_so_many_cleanings_wait_at_most(filled):
    """A flood of requests is refused, and each that was taken is done."""
    broker, _, _ = filled
    later = []
    cleaning = Cleaning(broker.environment, broker.reports._tables, broker.deletions, later.append)
    pending = [cleaning.expired_units() for _ in range(ASKED_MAX)]
    with pytest.raises(Refused) as caught:
        cleaning.expired_units()
    assert caught.value.reason is Reason.BUSY
    cleaning.expired_files()  # another kind
    eventually(lambda: len(later) == ASKED_MAX + 1)
    for end in later:
        end()
    assert all(one.done and one.error is None for one in pending)
    assert cleaning.expired_units().error is None


def test_queues_without_a_topic_go(tmp_path):
    """316: what topics.json lost, with restoreLostTopics off; the topics that are there stay."""
    with open_server(tmp_path) as (_, server):
        client = Client(server)
        for topic in ("kept", "lost"):
            assert client.send(topic).code == 0
    (tmp_path / "config" / "topics.json").unlink()
    for left in (tmp_path / "config").glob("topics.json*"):
        left.unlink()
    with open_server(tmp_path, restore_lost_topics=False) as (broker, server):
        broker.topics.update(TopicConfig("kept", 4, 4)).settle()
        client = Client(server)
        assert asked(client, Code.CLEAN_UNUSED_TOPIC).code == 0
        assert {topic for topic, _ in broker.store.reader.queues()} == {"kept"}
        assert broker.lookup.max_offset("kept", 0) == 1
        assert asked(client, Code.CLEAN_UNUSED_TOPIC).code == 0, "nothing to do"
        assert client.send("lost").code == 0
        assert broker.lookup.max_offset("lost", 0) == 1, "a new topic"


# ---------------------------------------------------------------- positions of one group for another


def clone(client, source="G", target="H", **more):
    return client.ask(Code.CLONE_GROUP_OFFSET, {"srcGroup": source, "destGroup": target} | more)


def test_a_group_gets_the_positions_of_another(server, client, tmp_path):
    """314, of one topic or all; answered when they are on the disk."""
    offsets = server.broker.offsets
    for topic in ("orders", "bills", "%RETRY%G"):
        server.broker.topics.ensure(topic)
        offsets.put("G", topic, 0, 5)
    offsets.put("H", "orders", 0, 9)
    assert clone(client, topic="orders").code == 0
    assert offsets.get("H", "orders", 0) == 5
    assert offsets.get("H", "bills", 0) is None
    assert "orders@H" in (tmp_path / "config" / "consumerOffset.json").read_text()
    for topic in ({}, {"topic": ""}):
        assert clone(client, target="K", **topic).code == 0
        assert sorted(offsets.topics_of("K")) == ["bills", "orders"]
    assert clone(client, source="nobody").code == 0, "as RocketMQ has it"
    assert clone(client, target="L", topic="nowhere").code == 0
    assert offsets.topics_of("L") == []


def test_topics_that_the_group_has_given_up_are_copied_only_on_demand(server, client):
    """What an online group does not subscribe to any more."""
    offsets = server.broker.offsets
    for topic in ("orders", "bills"):
        server.broker.topics.ensure(topic)
        offsets.put("G", topic, 0, 5)
    client.beat("G", {"orders": "*"})
    clone(client, offline="false")
    assert offsets.topics_of("H") == ["orders"]
    clone(client, offline="true")
    assert sorted(offsets.topics_of("H")) == ["bills", "orders"]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({}, ResponseCode.SYSTEM_ERROR),
        ({"srcGroup": "G"}, ResponseCode.SYSTEM_ERROR),
        ({"srcGroup": "G", "destGroup": ""}, ResponseCode.SYSTEM_ERROR),
        ({"srcGroup": "G", "destGroup": "../x"}, ResponseCode.SYSTEM_ERROR),
        ({"srcGroup": "G", "destGroup": "a" * 10_000}, ResponseCode.SYSTEM_ERROR),
        ({"srcGroup": "G", "destGroup": TRANSACTION_GROUP}, ResponseCode.NO_PERMISSION),
        ({"srcGroup": TRANSACTION_GROUP, "destGroup": "H"}, ResponseCode.NO_PERMISSION),
    ],
)
def test_names_that_are_none_and_the_brokers_own_positions_are_refused(server, client, ext, code):
    """And nothing is changed."""
    before = dict(server.broker.offsets.table)
    answer = client.ask(Code.CLONE_GROUP_OFFSET, ext)
    assert answer.code == code
    assert answer.remark
    assert dict(server.broker.offsets.table) == before
