"""Topics: those a broker is born with, automatic ones, administration, the file."""

from __future__ import annotations

import errno

import pytest

from metaq.broker.log.records import put_record
from metaq.broker.tables.topics import Topics
from metaq.clock import FakeClock
from metaq.errors import ConfigError, Refused
from metaq.model import Perm, TopicConfig
from metaq.model.access import Caller
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.saved_file import TableFile
from metaq.servers.remoting.messages import send_of
from metaq.store.message_writer import MessageWriter
from metaq.wire import fastjson
from metaq.wire.files import TOPICS
from tests.broker.support import BORN_HOST, JAVA, MemoryFile, SlowFile, open_broker
from tests.servers.support import Client, open_server, send_header


def make(file=None, clock=None, **options):
    return Topics(BrokerOptions(**options), clock or FakeClock(), TableFile(file or MemoryFile(), TOPICS), "broker-a")


def test_a_broker_is_born_with_rocketmqs_topics():
    """With their queues and permissions, as a live 4.9 broker registers them; the half messages' a minute after its start."""
    table = make().table
    assert {name: (topic.write_queues, topic.perm) for name, topic in table.items()} == {
        "SELF_TEST_TOPIC": (1, 6), "BenchmarkTest": (1024, 6), "DefaultCluster": (16, 7), "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6), "SCHEDULE_TOPIC_XXXX": (18, 6), "DefaultCluster_REPLY_TOPIC": (1, 6),
        "TBW102": (8, 7), "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["RMQ_SYS_TRACE_TOPIC", "our-traces"])
def test_traces_have_their_topic_where_it_is_switched_on(name):
    """One queue, and no administrator deletes it; a topic that is there already keeps its queues."""
    topics = make(trace_topic_enable=True, msg_trace_topic_name=name)
    assert (topics.table[name].write_queues, topics.table[name].perm) == (1, 6)
    with pytest.raises(Refused, match="system topic"):
        topics.delete(name)
    assert name in topics.system_names()
    assert "our-traces" not in make(msg_trace_topic_name=name).table


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_METAQ_STAGE", "a.b", ""])
def test_traces_cannot_have_a_topic_of_another_purpose(name):
    """The start ends with the option's name in the text."""
    with pytest.raises(ConfigError, match="msgTraceTopicName"):
        make(trace_topic_enable=True, msg_trace_topic_name=name)


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (16, 8), (0, 1), (-3, 1)])
def test_an_automatic_topic_copies_its_template(asked, made):
    """At most the template's queues, without the inherit bit."""
    topic = make().auto_create("orders", "TBW102", asked)
    assert (topic.read_queues, topic.write_queues, topic.perm) == (made, made, int(Perm.READ | Perm.WRITE))


def test_every_change_is_saved_before_it_is_told():
    """topics.json holds the new table when listeners hear of it, and the version has moved."""
    file, heard = MemoryFile(), []
    topics = make(file)
    before = topics.version
    topics.watch(lambda name: heard.append((name, "orders" in file.text)))
    topics.auto_create("orders", "TBW102", 4)
    assert heard == [("orders", True)]
    assert topics.version.counter == before.counter + 1
    topics.update(topics.require("orders")).settle()
    assert len(heard) == 1


def test_the_table_survives_a_restart():
    """What was saved is loaded, with its version."""
    file = MemoryFile()
    first = make(file)
    first.update(TopicConfig("orders", 3, 5, 4))
    second = make(file)
    assert second.require("orders") == TopicConfig("orders", 3, 5, 4)
    assert second.version == first.version


def test_switching_automatic_creation_off_holds_after_a_restart():
    """A template loaded from a time when it was on loses its inherit bit."""
    file = MemoryFile()
    make(file)
    topics = make(file, auto_create_topic_enable=False)
    assert topics.require("TBW102").perm == 6
    with pytest.raises(Refused, match="autoCreateTopicEnable"):
        topics.auto_create("orders", "TBW102", 4)


def test_names_in_the_file_are_checked_like_any_others():
    """A topics.json with a path for a name does not get that topic, and keeps the others."""
    good, bad = {"topicName": "good", "perm": 6}, {"topicName": "../bad", "perm": 6}
    text = fastjson.dumps({"topicConfigTable": {"good": good, "../bad": bad}}).decode()
    topics = make(MemoryFile(text))
    assert topics.get("good") is not None
    assert topics.get("../bad") is None


@pytest.mark.parametrize("text", ["{broken", "[]", '{"topicConfigTable":5}', '{"topicConfigTable":{"a":{"perm":"x"}}}'])
def test_a_broken_file_stops_the_start(text):
    """An unreadable topics.json is an error that names it, not an empty broker."""
    with pytest.raises(ConfigError, match=r"memory\.json cannot be read .*restore it from its \.bak"):
        make(MemoryFile(text))


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "rmq_sys_anything"])
def test_system_topics_are_not_administrators(name):
    """They can be neither changed nor deleted."""
    topics = make()
    for act in (lambda: topics.update(TopicConfig(name)), lambda: topics.delete(name)):
        with pytest.raises(Refused, match="conflict with system topic"):
            act()


def test_a_broker_that_may_not_write_says_so_of_every_topic():
    """brokerPermission is what name servers are told."""
    assert {topic.perm for topic in make(broker_permission=4).announced().values()} == {4}
    assert make().announced()["TBW102"].perm == 7


def test_deleting_an_unknown_topic_is_accepted():
    """As RocketMQ does."""
    make().delete("nope").settle()


def send(broker, topic, queue_id=0, body=b"x"):
    return broker.sends.send(send_of(send_header(topic, queue_id), body, BORN_HOST, JAVA))


@pytest.mark.parametrize("restore", [True, False])
def test_queues_with_messages_and_no_topic_are_told_and_get_their_topic_back(tmp_path, caplog, restore):
    """topics.json is lost or old, as after a restore from a copy; the messages are not. The option decides."""
    with open_broker(tmp_path) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4)).settle()
        for queue_id in (0, 2):
            send(broker, "orders", queue_id)
        send(broker, "kept")
    for name in ("topics.json", "topics.json.bak"):
        text = (tmp_path / "config" / name).read_text().replace('"orders"', '"other"')
        (tmp_path / "config" / name).write_text(text)
    with open_broker(tmp_path, restore_lost_topics=restore) as broker:
        assert "the topic orders is not in topics.json, and its queues 0, 2 hold messages" in caplog.text
        assert "topic kept" not in caplog.text
        assert "SCHEDULE" not in caplog.text
        if restore:
            assert broker.topics.require("orders") == TopicConfig("orders", 8, 8)
            assert send(broker, "orders", 2).put.queue_offset == 1
        else:
            assert broker.topics.get("orders") is None
    caplog.clear()
    with open_broker(tmp_path, restore_lost_topics=restore) as broker:
        assert (broker.topics.get("orders") is not None) == restore
        assert ("orders" in caplog.text) != restore, "what was given back is saved"


def test_a_start_on_a_full_disk_has_its_topics_all_the_same(caplog):
    """Those that a broker is born with need no file; the file is written when there is room."""
    file, clock = MemoryFile(), FakeClock()
    file.error = OSError(errno.ENOSPC, "No space left on device")
    topics = make(file, clock)
    assert topics.require("TBW102").perm == 7
    assert "memory.json could not be saved: No space left on device" in caplog.text
    file.error = None
    clock.advance(2)
    topics.saved.tick()
    assert '"TBW102"' in file.text


def test_the_queue_that_is_sent_to_first_is_made_before_the_topic_can_be_used(tmp_path, monkeypatch):
    """Beside the event loop, after the save; nothing else gets to it meanwhile, and a failure is left to the first message."""
    file, seen, prepare = SlowFile(), [], MessageWriter.prepare_queue

    def look(writer, topic, queue_id):
        if topic == "bills":
            raise ZeroDivisionError
        seen.append((topic, queue_id, broker.topics.get(topic), broker.topics.closed(topic)))
        prepare(writer, topic, queue_id)

    monkeypatch.setattr(MessageWriter, "prepare_queue", look)
    file.slow = False
    with open_broker(tmp_path, files={"topics.json": file}) as broker:
        file.slow = True
        with pytest.raises(Saving):
            send(broker, "orders", 2)
        record = put_record("orders", 2, b"x", {}, flag=0, sys_flag=0, born_ms=1, born_host=BORN_HOST)
        with pytest.raises(Refused, match="being made"):
            broker.appender.put([record])
        file.end()
        assert seen == [("orders", 2, None, True)]
        assert (tmp_path / "consumequeue" / "orders" / "2").is_dir()
        assert send(broker, "orders", 2).put.queue_offset == 0
        file.slow = False
        assert send(broker, "bills").put.queue_offset == 0


def test_topics_are_ordered_as_the_name_servers_say(tmp_path):
    """The mark is kept, told to watchers once, and taken off again; the topic's path stays fast."""
    with open_broker(tmp_path) as broker:
        for name in ("one", "two"):
            broker.topics.update(TopicConfig(name)).settle()
        heard = []
        broker.topics.watch(heard.append)
        for _ in range(2):
            broker.topics.set_ordered({"one", "elsewhere"})
        assert heard == ["one"]
        assert (broker.topics.get("one").order, broker.topics.get("two").order) == (True, False)
        gates = broker.gates.of(Caller("127.0.0.1", loopback=True))
        assert gates.open(b"one")
    with open_broker(tmp_path) as broker:
        assert broker.topics.get("one").order
        broker.topics.set_ordered(set())
        assert not broker.topics.get("one").order


def test_what_name_servers_say_of_order_undoes_no_change_that_is_being_saved(tmp_path):
    """An administrator's change, or a deletion, may be on its way to the disk when a name server answers."""
    file = SlowFile()
    file.slow = False
    with open_broker(tmp_path, files={"topics.json": file}) as broker:
        for name in ("one", "two"):
            broker.topics.update(TopicConfig(name, 4, 4)).settle()
        file.slow = True
        changed = broker.topics.update(TopicConfig("one", 8, 8))
        deleted = broker.topics.delete("two")
        broker.topics.set_ordered({"one", "two"})
        while file.under_way:
            file.end()
        file.slow = False
        assert changed.error is None
        assert deleted.error is None
        assert (broker.topics.get("one").write_queues, broker.topics.get("one").order) == (8, True)
        assert broker.topics.get("two") is None


def test_ordered_topic_takes_nothing_when_the_broker_may_not_be_written_to(tmp_path):
    """RocketMQ's second check, in both paths: another broker's queues must not get what belongs here in order."""
    with open_server(tmp_path) as (broker, server):
        for name in ("one", "two"):
            broker.topics.update(TopicConfig(name)).settle()
        broker.topics.set_ordered({"one"})
        client = Client(server)
        assert [client.send(name).code for name in ("one", "two")] == [0, 0]
        broker.settings.change({"brokerPermission": int(Perm.READ)})
        assert [client.send(name).code for name in ("one", "two")] == [16, 0]


def test_retry_topics_of_units_are_marked(tmp_path):
    """unitMode of a heartbeat: their topic says that a unit's group subscribes."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        client.beat("of-a-unit", {"orders": "*"}, unit_mode=True)
        client.beat("plain", {"orders": "*"})
        flags = [broker.topics.get(f"%RETRY%{group}").sys_flag for group in ("of-a-unit", "plain")]
        assert flags == [2, 0]
