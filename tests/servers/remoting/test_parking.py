"""What needs a topic or a group is answered when that is on the disk, or refused, and nothing overtakes it."""

from __future__ import annotations

import errno
import itertools

import pytest
from msgspec import structs

from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model import ConsumerView, GroupConfig, Heartbeat
from metaq.servers import waiting
from metaq.wire import bodies, fastjson, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import SerializeType
from metaq.wire.record import decode_record
from tests.broker.support import MemoryFile, SlowFile
from tests.servers.support import Client, open_server, send_header

ERRORS = [errno.ENOSPC, errno.EMFILE, errno.EIO, errno.EDQUOT]


def failed(number: int) -> OSError:
    return OSError(number, f"reason {number}")


class Bench:
    """A server whose three tables are saved when the test says so."""

    def __init__(self, broker, server, files, clock):
        self.broker, self.server, self.files, self.clock = broker, server, files, clock
        self.topics, self.groups = files["topics.json"], files["subscriptionGroup.json"]
        self.offsets, self.deleted = files["consumerOffset.json"], files["metaqDeleted.json"]

    def save_all(self):
        while any(file.under_way for file in self.files.values()):
            for file in self.files.values():
                if file.under_way:
                    file.end()

    def stored(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Bodies of a queue, in order."""
        queue = self.broker.store.reader.existing_queue(topic, queue_id)
        if queue is None:
            return []
        units = queue.units(0, 1000)
        return [decode_record(self.broker.store.reader.record_at(unit.log_offset)).body for unit in units]


@pytest.fixture
def bench(tmp_path, caplog):
    clock = FakeClock()
    files = {
        name: SlowFile()
        for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "metaqDeleted.json")
    }
    files["topics.json"].slow = False  # the topics that a broker is born with
    with open_server(tmp_path, clock, files=files) as (broker, server):
        files["topics.json"].slow = True
        bench = Bench(broker, server, files, clock)
        yield bench
        bench.save_all()
        assert not [record for record in caplog.get_records("call") if record.exc_info]


def start_send(client: Client, topic: str, body: bytes, *, oneway: bool = False, **more: object) -> None:
    client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header(topic, **more), body, oneway=oneway))


def codes(client: Client) -> list[int]:
    return [command.code for command in client.received() if command.is_response]


@pytest.mark.parametrize("form", list(SerializeType))
def test_a_send_to_a_new_topic_is_stored_and_answered_after_the_save(bench, form):
    """Until then nothing is; whoever uses other topics is served meanwhile, also over the same connection."""
    client, other = Client(bench.server, form), Client(bench.server)
    start_send(client, "orders", b"one")
    assert codes(client) == []
    assert bench.stored("orders") == []
    assert bench.broker.topics.get("orders") is None
    for bystander in (client, other):
        assert bystander.send("BenchmarkTest").code == 0
    bench.topics.end()
    assert codes(client) == [0]
    assert bench.stored("orders") == [b"one"]
    assert '"orders"' in bench.topics.text
    assert client.send("orders", b"two").code == 0


@pytest.mark.parametrize("number", ERRORS)
def test_a_send_whose_topic_cannot_be_saved_is_refused(bench, number):
    """With the file and the disk's reason; nothing is stored, the topic is unknown, and later it works."""
    client = Client(bench.server)
    start_send(client, "orders", b"one")
    start_send(client, "orders", b"two", oneway=True)
    bench.topics.end(failed(number))
    (answer,) = client.received()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "memory.json" in answer.remark
    assert f"reason {number}" in answer.remark
    assert bench.broker.topics.get("orders") is None
    assert bench.stored("orders") == []
    start_send(client, "orders", b"three")
    bench.topics.end()
    assert codes(client) == [0]
    assert bench.stored("orders") == [b"three"]


def test_the_sends_of_a_connection_keep_their_order(bench):
    """Those that wait go first, in their order, before any that come after the save; oneway ones too."""
    one, two = Client(bench.server), Client(bench.server, SerializeType.BINARY)
    for n in range(10):
        start_send(one, "orders", f"one {n}".encode(), oneway=n % 2 == 1)
        start_send(two, "orders", f"two {n}".encode())
    bench.topics.end()
    start_send(one, "orders", b"one last")
    bodies_stored = bench.stored("orders")
    assert [body for body in bodies_stored if body.startswith(b"one")] == [
        *(f"one {n}".encode() for n in range(10)),
        b"one last",
    ]
    assert [body for body in bodies_stored if body.startswith(b"two")] == [f"two {n}".encode() for n in range(10)]
    assert codes(one) == [0] * 6
    assert codes(two) == [0] * 10


def test_many_new_topics_are_few_saves(bench):
    """A hundred first sends of one read event: the first save, and one for all the others."""
    client = Client(bench.server)
    frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_header(f"t{n}"), b"x") for n in range(100)]
    saves = bench.topics.saves
    client.feed(b"".join(frames))
    while bench.topics.under_way:
        bench.topics.end()
    assert bench.topics.saves == saves + 2
    assert codes(client) == [0] * 100
    assert all(bench.stored(f"t{n}") == [b"x"] for n in range(100))


def test_a_heartbeat_with_a_new_group_is_answered_after_the_save(bench):
    """The group's settings and its retry topic are saved, then the member joins; a known group joins at once."""
    bench.groups.slow = False
    bench.topics.slow = False
    assert Client(bench.server).beat("known").code == 0
    bench.groups.slow = bench.topics.slow = True
    client = Client(bench.server)
    beat = Heartbeat("c@1", (ConsumerView("new"), ConsumerView("known")), ())
    client.feed(client.frame(RequestCode.HEART_BEAT, None, bodies.heartbeat(beat)))
    assert bench.broker.members.client_ids("known") == ["c@1"]
    for file in (bench.groups, bench.topics):
        assert codes(client) == []
        assert bench.broker.members.client_ids("new") == []
        file.end()
    assert codes(client) == [0]
    assert bench.broker.members.client_ids("new") == ["c@1"]
    assert '"new"' in bench.groups.text
    assert '"%RETRY%new"' in bench.topics.text


@pytest.mark.parametrize("which", ["subscriptionGroup.json", "topics.json"])
def test_a_heartbeat_whose_group_cannot_be_saved_is_refused(bench, which):
    """The member has not joined, and the text says why."""
    client = Client(bench.server)
    body = bodies.heartbeat(Heartbeat("c@1", (ConsumerView("new"),), ()))
    client.feed(client.frame(RequestCode.HEART_BEAT, None, body))
    if which == "topics.json":
        bench.groups.end()
    bench.files[which].end(failed(errno.ENOSPC))
    (answer,) = client.received()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "reason" in answer.remark
    assert bench.broker.members.client_ids("new") == []
    client.feed(client.frame(RequestCode.HEART_BEAT, None, body))
    bench.save_all()
    assert codes(client) == [0]


def test_a_goodbye_does_not_overtake_the_heartbeat_before_it(bench):
    """Who leaves while its heartbeat waits has left afterwards."""
    client = Client(bench.server)
    body = bodies.heartbeat(Heartbeat("c@1", (ConsumerView("new"),), ()))
    client.feed(client.frame(RequestCode.HEART_BEAT, None, body))
    header = headers.UnregisterClientHeader(client_id="c@1", consumer_group="new")
    client.feed(client.frame(RequestCode.UNREGISTER_CLIENT, header))
    bench.save_all()
    assert codes(client) == [0, 0]
    assert bench.broker.members.client_ids("new") == []


@pytest.mark.parametrize("form", list(SerializeType))
def test_a_pull_by_a_new_group_waits_for_it(bench, form):
    """Through the pull's own path, in both header forms."""
    client = Client(bench.server, form)
    assert client.send("BenchmarkTest").code == 0
    assert client.pull("BenchmarkTest") == []
    bench.groups.end()
    (answer,) = client.received()
    assert answer.code == 0
    assert answer.body


def test_positions_of_a_new_group_wait_for_it(bench):
    """A commit (15) by a group that nobody made."""
    client = Client(bench.server)
    header = headers.UpdateOffsetHeader(group="new", topic="BenchmarkTest", queue_id=0, commit_offset=7)
    assert client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, header) == []
    bench.groups.end()
    assert codes(client) == [0]
    assert bench.broker.offsets.get("new", "BenchmarkTest", 0) == 7


def create(client: Client, topic: str, queues: int = 4) -> None:
    header = headers.CreateTopicHeader(
        topic=topic, default_topic="TBW102", read_queues=queues, write_queues=queues, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    client.feed(client.frame(RequestCode.UPDATE_AND_CREATE_TOPIC, header))


def delete(client: Client, topic: str) -> None:
    client.feed(client.frame(RequestCode.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic=topic)))


def test_administration_is_answered_after_the_save(bench):
    """Creating and changing topics and groups."""
    client = Client(bench.server)
    create(client, "orders")
    start_send(client, "orders", b"one", queue_id=3)
    assert codes(client) == []
    bench.topics.end()
    assert codes(client) == [0, 0]
    create(client, "orders", 8)
    assert bench.broker.topics.require("orders").write_queues == 4
    bench.topics.end()
    assert codes(client) == [0]
    assert bench.broker.topics.require("orders").write_queues == 8
    body = fastjson.dumps(bodies.group_tree(GroupConfig("made")))
    client.feed(client.frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body))
    assert codes(client) == []
    bench.groups.end()
    assert codes(client) == [0]
    assert bench.broker.groups.get("made") is not None


def test_two_administrators_who_disagree_are_both_answered(bench):
    """The later change stands, and neither is made again."""
    one, two = Client(bench.server), Client(bench.server)
    create(one, "orders", 4)
    create(two, "orders", 8)
    bench.topics.end()
    bench.topics.end()
    assert bench.topics.under_way == []
    assert codes(one) == codes(two) == [0]
    assert bench.broker.topics.require("orders").write_queues == 8


@pytest.mark.parametrize("number", ERRORS)
def test_administration_that_cannot_be_saved_is_refused(bench, number):
    """A changed topic stays as it was."""
    client = Client(bench.server)
    create(client, "orders", 4)
    bench.topics.end()
    create(client, "orders", 8)
    bench.topics.end(failed(number))
    assert codes(client) == [0, ResponseCode.SERVICE_NOT_AVAILABLE]
    assert bench.broker.topics.require("orders").write_queues == 4


def make_topic(bench, client: Client, *sent: bytes, topic: str = "orders") -> None:
    for body in sent:
        start_send(client, topic, body)
    bench.save_all()
    assert codes(client) == [0] * len(sent)
    bench.broker.store.flusher.flush()
    bench.broker.offsets.put("G", topic, 0, len(sent))


def test_a_deletion_is_answered_when_it_is_remembered(bench):
    """Settings, memory, positions: each is saved before the next and all before the answer. Sends wait that long."""
    client = Client(bench.server)
    make_topic(bench, client, b"old", b"older")
    end = bench.broker.store.log.end
    delete(client, "orders")
    start_send(client, "orders", b"new")
    for file in (bench.topics, bench.deleted, bench.offsets):
        assert codes(client) == []
        assert b"new" not in bench.stored("orders")
        file.end()
    assert codes(client) == [0], "the deletion; the send makes the topic anew"
    assert bench.broker.topics.get("orders") is None
    bench.topics.end()
    assert codes(client) == [0]
    assert bench.stored("orders") == [b"new"]
    assert bench.broker.offsets.get("G", "orders", 0) is None
    assert f'"orders":{end}' in bench.deleted.text
    assert "orders@G" not in bench.offsets.text


@pytest.mark.parametrize("which", ["topics.json", "metaqDeleted.json"])
def test_a_deletion_that_cannot_be_saved_changes_nothing(bench, which):
    """Topic, messages and positions are there as before, and the file gets its topic back when the disk works again."""
    client = Client(bench.server)
    make_topic(bench, client, b"old")
    delete(client, "orders")
    if which == "metaqDeleted.json":
        bench.topics.end()
    bench.files[which].end(failed(errno.ENOSPC))
    (answer,) = client.received()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bench.broker.topics.get("orders") is not None
    bench.save_all()
    bench.clock.advance(2)
    bench.broker.tick()
    bench.save_all()
    assert '"orders"' in bench.topics.text
    assert "orders" not in bench.deleted.text
    assert bench.broker.offsets.get("G", "orders", 0) == 1
    assert client.send("orders", b"new").code == 0
    assert bench.stored("orders") == [b"old", b"new"]


def test_a_deletion_whose_positions_cannot_be_saved_is_done_all_the_same(bench):
    """The positions are saved with the next tick; the topic is gone already."""
    client = Client(bench.server)
    make_topic(bench, client, b"old")
    delete(client, "orders")
    bench.topics.end()
    bench.deleted.end()
    bench.offsets.end(failed(errno.ENOSPC))
    assert codes(client) == [0]
    bench.clock.advance(6)
    bench.broker.tick()
    bench.save_all()
    assert bench.offsets.text
    assert "orders@G" not in bench.offsets.text


def test_a_deleted_group_is_answered_when_its_positions_are_saved(bench):
    """A group made again under its name must not find them after a crash."""
    client = Client(bench.server)
    client.tell(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        headers.UpdateOffsetHeader(group="mailer", topic="BenchmarkTest", queue_id=0, commit_offset=7),
    )
    bench.save_all()
    assert codes(client) == [0]
    header = headers.DeleteGroupHeader(group="mailer", remove_offset=True)
    client.feed(client.frame(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))
    for file in (bench.groups, bench.offsets):
        assert codes(client) == []
        file.end()
    assert codes(client) == [0]
    assert "mailer" not in bench.groups.text + bench.offsets.text


def test_a_request_that_waits_too_long_is_answered(bench):
    """A disk that hangs: BUSY, and the send is not stored later."""
    client = Client(bench.server)
    start_send(client, "orders", b"one")
    bench.clock.advance(waiting.WAIT_SECONDS + 0.1)
    bench.server.tick()
    (answer,) = client.received()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "was not saved within" in answer.remark
    bench.topics.end()
    assert bench.stored("orders") == []
    assert bench.server.handling.parking.bytes == 0


def test_what_waits_is_bounded_per_peer_and_over_all(bench):
    """Beyond it sends are refused as busy; when the save is done all is given back."""
    narrow = waiting.Parking(bench.clock, bytes_max=100_000, peer_bytes_max=40_000)
    bench.server.handling = structs.replace(bench.server.handling, parking=narrow)
    greedy, others = Client(bench.server), [Client(bench.server) for _ in range(3)]
    for client in (greedy, *others):
        for _ in range(4):
            start_send(client, "orders", bytes(16_000))
    answers = [codes(client) for client in (greedy, *others)]
    assert answers == [[ResponseCode.SYSTEM_BUSY] * 2] * 2 + [[ResponseCode.SYSTEM_BUSY] * 3] + [
        [ResponseCode.SYSTEM_BUSY] * 4
    ]
    bench.topics.end()
    assert [len(codes(client)) for client in (greedy, *others)] == [2, 2, 1, 0]
    assert bench.server.handling.parking.bytes == greedy.session.parked.kept.bytes == 0


def test_a_connection_that_closes_meanwhile_leaves_nothing_behind(bench):
    """Its sends are stored, as those are that came just before an end; its heartbeat does not join."""
    sender, member = Client(bench.server), Client(bench.server)
    start_send(sender, "orders", b"one", oneway=True)
    start_send(sender, "orders", b"two")
    body = bodies.heartbeat(Heartbeat("c@1", (ConsumerView("new"),), ()))
    member.feed(member.frame(RequestCode.HEART_BEAT, None, body))
    sender.leave()
    member.leave()
    bench.save_all()
    assert bench.stored("orders") == [b"one", b"two"]
    assert bench.broker.members.client_ids("new") == []
    assert bench.server.handling.parking.bytes == 0


def test_what_is_deleted_as_often_as_it_is_made_ends_in_an_answer(bench):
    """A request is not handled again without end."""
    client = Client(bench.server)
    start_send(client, "orders", b"one")
    bench.broker.topics.watch(lambda name: bench.broker.topics.saved.table.pop("orders", None))
    for _ in range(3 * waiting.ATTEMPTS_MAX):
        if bench.topics.under_way:
            bench.topics.end()
    assert codes(client) == [ResponseCode.SYSTEM_BUSY]


def test_the_quota_is_given_back_when_nothing_was_made(tmp_path):
    """A full disk does not use up what may be made in a minute."""
    file = MemoryFile()
    with open_server(tmp_path, FakeClock(), files={"topics.json": file}, auto_create_topics_per_minute=2) as (
        broker,
        _,
    ):
        file.error = failed(errno.ENOSPC)
        for n in range(10):
            with pytest.raises(Refused, match="reason"):
                broker.topics.auto_create(f"t{n}", "TBW102", 4)
        file.error = None
        for n in itertools.count():
            try:
                broker.topics.auto_create(f"u{n}", "TBW102", 4)
            except Refused as refusal:
                assert "a minute" in refusal.text
                break
        assert n == 2
