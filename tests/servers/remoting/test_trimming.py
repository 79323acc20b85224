"""Trims of topics (30023): what they show, refuse and do, and that nobody gets what is gone; previews of cleanings (30024)."""

from __future__ import annotations

import json

import pytest

from metaq.clock import FakeClock
from metaq.model import TopicConfig
from metaq.model.clients import MessageModel
from metaq.servers.remoting.server import RemotingServer
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from tests.broker.support import open_broker
from tests.servers.support import Client, open_server
from tests.support import eventually

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000


@pytest.fixture
def clock():
    return FakeClock(START_MS)


@pytest.fixture
def server(tmp_path, clock):
    with open_server(tmp_path, clock) as (broker, server):
        broker.topics.update(TopicConfig("orders", 2, 2)).settle()
        yield server


@pytest.fixture
def client(server, clock):
    """A client that has sent a message to each queue every minute, ten times, with keys k0 to k9."""
    client = Client(server)
    for number in range(10):
        for queue_id in (0, 1):
            names = {"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}-{queue_id}"}
            answer = client.send("orders", b"%d" % number, queue_id, properties=names)
            assert answer.code == 0, answer.remark
        clock.advance(60)
    return client


def trim(client, expected=0, **ext):
    """The answer, which comes from another thread."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}
    client.feed(client.frame(Code.TRIM_TOPIC, {"topic": "orders"} | texts))
    (answer,) = eventually(client.received)
    assert answer.code == expected, answer.remark
    return json.loads(answer.body) if not answer.code else answer.remark


def bounds(broker, topic="orders"):
    return [(broker.lookup.min_offset(topic, queue), broker.lookup.max_offset(topic, queue)) for queue in (0, 1)]


def test_a_dry_run_says_what_would_go_and_leaves_it(server, client):
    """Per queue how many, from when to when."""
    found = trim(client, before=START_MS + 4 * MINUTE_MS, dryRun=True)
    assert found["queues"] == [
        {
            "queueId": queue, "minOffset": 0, "maxOffset": 10, "newMin": 4,
            "oldestMs": START_MS, "newestMs": START_MS + 3 * MINUTE_MS,
        }
        for queue in (0, 1)
    ]  # fmt: skip
    assert (found["unread"], found["done"]) == ([], False)
    assert bounds(server.broker) == [(0, 10), (0, 10)]


@pytest.mark.parametrize("slowly", [False, True])
def test_nobody_gets_what_was_trimmed(server, client, slowly):
    """Pulls by the fast and the slow path, offsets by time and bound, searches by key and id, units."""
    more = {"max_msg_bytes": 100_000} if slowly else {}
    client.beat("G", {"orders": "*"})
    ids = {m: client.pull("orders", 0, m, **more)[0] for m in (0, 5)}
    assert all(answer.code == 0 for answer in ids.values())
    place = server.broker.store.reader.existing_queue("orders", 0).unit(4).log_offset
    assert trim(client, before=START_MS + 5 * MINUTE_MS, force=True)["done"]
    assert bounds(server.broker) == [(5, 10), (5, 10)]
    for offset in (0, 4):
        (answer,) = client.pull("orders", 0, offset, **more)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext["nextBeginOffset"] == answer.ext["minOffset"] == "5"
    (answer,) = client.pull("orders", 0, 5, **more)
    assert (answer.code, answer.body) == (0, ids[5].body)
    queue = {"topic": "orders", "queueId": "0"}
    assert client.ask(Code.GET_MIN_OFFSET, queue).ext["offset"] == "5"
    assert client.ask(Code.GET_MAX_OFFSET, queue).ext["offset"] == "10"
    assert client.ask(Code.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": str(START_MS)}).ext["offset"] == "5"
    assert client.ask(Code.GET_EARLIEST_MSG_STORETIME, queue).ext["timestamp"] == str(START_MS + 5 * MINUTE_MS)
    times = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    for key, code in (("k4", ResponseCode.QUERY_NOT_FOUND), ("u4-0", ResponseCode.QUERY_NOT_FOUND), ("k5", 0)):
        assert client.ask(Code.QUERY_MESSAGE, {"topic": "orders", "key": key} | times).code == code
    assert client.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(place)}).code != 0
    units = json.loads(client.ask(Code.QUERY_CONSUME_QUEUE, queue | {"index": "4", "count": "1"}).body)
    assert (units["minQueueIndex"], units.get("queueData", [])) == (5, [])
    stats = json.loads(client.ask(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": "G"}).body)
    assert {one["minTimeStamp"] for one in stats["consumeTimeSpanSet"]} == {START_MS + 5 * MINUTE_MS}


def test_the_fast_path_knows_of_a_trim_at_once(server, client):
    """A gate that was opened before serves nothing below the new min offset."""
    client.beat("G", {"orders": "*"})
    for _ in range(3):  # the first opens the gate
        assert client.pull("orders", 0, 2)[0].code == 0
    assert trim(client, before=START_MS + 5 * MINUTE_MS, force=True)["done"]
    (answer,) = client.pull("orders", 0, 2)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "5")
    assert client.pull("orders", 0, 5)[0].ext["minOffset"] == "5"


def test_a_held_pull_gets_what_comes_after_a_trim_of_all(server, client):
    """The queue goes on counting."""
    client.beat("G", {"orders": "*"})
    assert client.pull("orders", 0, 10, suspend_ms=15_000, sys_flag=6) == []
    other = Client(server)
    assert trim(other, before=server.broker.clock.now_ms(), force=True)["done"]
    assert bounds(server.broker) == [(10, 10), (10, 10)]
    assert client.received() == []
    assert other.send("orders", b"new", 0).code == 0
    (answer,) = eventually(client.received)
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["minOffset"]) == (0, "11", "10")


def test_an_offset_trims_one_queue_or_each(server, client):
    """At most to the end of a queue, where each is meant."""
    assert trim(client, offset=3, queueId=1)["done"]
    assert bounds(server.broker) == [(0, 10), (3, 10)]
    assert trim(client, offset=2)["done"]
    assert bounds(server.broker) == [(2, 10), (3, 10)], "nothing comes back"
    client.send("orders", b"10", 0)
    assert trim(client, offset=11)["done"]
    assert bounds(server.broker) == [(11, 11), (10, 10)]


def test_a_damaged_unit_costs_no_message(server, client):
    """The first message that stays is not known by its unit: the one before says how far all may go."""
    queue = server.broker.store.reader.existing_queue("orders", 0)
    for offset in (5, 6):
        unit = queue.unit(offset)
        queue.mend(offset, unit._replace(size=0))
    assert trim(client, offset=5, queueId=0)["done"]
    assert server.broker.lookup.min_offset("orders", 0) == 4
    places = [queue.unit(place).log_offset for place in (3, 4, 5, 6)]
    codes = [client.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(place)}).code for place in places]
    assert codes == [ResponseCode.SYSTEM_ERROR, 0, 0, 0]


def test_groups_that_have_not_read_what_goes_are_named_and_it_is_refused(server, client):
    """Those with progress, and those that consume now; a group that has read it all is none of them."""
    offsets = server.broker.offsets
    for queue in (0, 1):
        offsets.put("done", "orders", queue, 10)
        offsets.put("behind", "orders", queue, 3 * queue)
        offsets.put("elsewhere", "bills", queue, 0)
    client.beat("fresh", {"orders": "*"})
    Client(server).beat("everywhere", {"orders": "*"}, client_id="c@2", model=MessageModel.BROADCASTING)
    found = trim(client, before=START_MS + 5 * MINUTE_MS)
    assert not found["done"]
    assert [tuple(one.values()) for one in found["unread"]] == [
        ("behind", 0, 5), ("behind", 1, 2), ("fresh", 0, 5), ("fresh", 1, 5),
    ]  # fmt: skip
    assert bounds(server.broker) == [(0, 10), (0, 10)]
    found = trim(client, before=START_MS + 5 * MINUTE_MS, force=True)
    assert found["done"]
    assert len(found["unread"]) == 4
    assert trim(client, before=START_MS + 5 * MINUTE_MS)["done"], "there is nothing more to read"


def test_a_trim_is_there_after_a_start(server, client, tmp_path, clock):
    """With both kinds of floors."""
    assert trim(client, before=START_MS + 2 * MINUTE_MS)["done"]
    assert trim(client, offset=7, queueId=1)["done"]
    saved = json.loads((tmp_path / "config" / "metaqFloors.json").read_text())["floors"]
    assert sorted(saved) == ["orders", "orders@1"]


def test_a_retry_or_dead_letter_topic_may_be_trimmed(server, client):
    """They are users' own."""
    server.broker.topics.ensure("%DLQ%G")
    client.send("%DLQ%G", b"dead")
    assert trim(client, topic="%DLQ%G", offset=1)["done"]
    assert server.broker.lookup.min_offset("%DLQ%G", 0) == 1


NOW_MS = START_MS + 10 * MINUTE_MS


@pytest.mark.parametrize(
    ("ext", "says"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX", "before": "1"}, "the broker's own"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "offset": "1"}, "the broker's own"),
        ({"topic": "rmq_sys_METAQ_STAGE", "offset": "1"}, "the broker's own"),
        ({"topic": "TBW102", "before": "1"}, "the broker's own"),
        ({"topic": "nowhere", "before": "1"}, "not exist"),
        ({"topic": "../../etc", "before": "1"}, ""),
        ({"topic": "x" * 10_000, "before": "1"}, ""),
        ({"topic": "", "before": "1"}, ""),
        ({}, "topic"),
        ({"topic": "orders"}, "needs `before`, or `offset`"),
        ({"topic": "orders", "before": "1", "offset": "1"}, "needs `before`, or `offset`"),
        ({"topic": "orders", "before": "1", "queueId": "0"}, "needs `before`, or `offset`"),
        ({"topic": "orders", "queueId": "0"}, "needs `before`, or `offset`"),
        ({"topic": "orders", "before": str(NOW_MS + 1)}, "no time from 1970 until now"),
        ({"topic": "orders", "before": "253402300799000"}, "no time from 1970 until now"),
        ({"topic": "orders", "before": str((1 << 63) - 1)}, "no time from 1970 until now"),
        ({"topic": "orders", "before": "-1"}, "no time from 1970 until now"),
        ({"topic": "orders", "before": "yesterday"}, "before"),
        ({"topic": "orders", "before": "9" * 40}, "before"),
        ({"topic": "orders", "offset": "-1"}, "below 0"),
        ({"topic": "orders", "offset": "11", "queueId": "0"}, "it ends at 10"),
        ({"topic": "orders", "offset": "1", "queueId": "2"}, "queueId[2] is illegal"),
        ({"topic": "orders", "offset": "1", "queueId": "-1"}, "queueId[-1] is illegal"),
        ({"topic": "orders", "offset": "1", "queueId": "x"}, "queueId"),
    ],
)  # fmt: skip
def test_what_cannot_be_trimmed_is_refused_in_a_sentence(server, client, ext, says):
    """And nothing is gone."""
    answer = client.ask(Code.TRIM_TOPIC, {**ext, "force": "true"})
    assert answer.code != 0
    assert says in answer.remark
    assert bounds(server.broker) == [(0, 10), (0, 10)]


def test_a_slave_leaves_it_to_its_master(tmp_path):
    with open_broker(tmp_path, leading=False, broker_id=1) as broker:
        server = RemotingServer(broker, lambda act: act())
        answer = Client(server).ask(Code.TRIM_TOPIC, {"topic": "orders", "offset": "1"})
        assert answer.code != 0
        assert "from master broker" in answer.remark
        server.close()


def test_a_trim_that_cannot_be_saved_is_told(server, client, monkeypatch):
    """And nothing is gone."""
    floors = server.broker.store.keeper._floors

    def broken(_text):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(floors._file, "save", broken)
        remark = trim(client, ResponseCode.SERVICE_NOT_AVAILABLE, offset=3)
    assert "could not be trimmed" in remark
    assert bounds(server.broker) == [(0, 10), (0, 10)]
    assert trim(client, offset=3)["done"]


# ---------------------------------------------------------------- previews of cleanings


def preview(client):
    client.feed(client.frame(Code.PREVIEW_CLEANING))
    (answer,) = eventually(client.received)
    assert answer.code == 0, answer.remark
    return json.loads(answer.body)


def clean(client, code):
    client.feed(client.frame(code))
    (answer,) = eventually(client.received)
    assert answer.code == 0, answer.remark


def test_a_preview_says_what_goes_then(tmp_path, clock):
    """Expired log files, files of units, and topics in no table; in each case as many as the code itself deletes."""
    small = {"mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 200, "delete_when": "99"}
    with open_server(tmp_path, clock, small) as (broker, server):
        client = Client(server)
        for _ in range(60):
            client.send("orders", bytes(4000))
        client.send("lost", b"x")
        assert preview(client) == {
            "logFiles": {"files": 0, "bytes": 0}, "queueFiles": {"files": 0, "bytes": 0}, "topics": [],
            "topicFiles": {"files": 0, "bytes": 0},
        }  # fmt: skip
        clock.advance(73 * 3600)
        broker.store.keeper.tick(clock.now_ms())
        told = preview(client)["logFiles"]
        assert told["files"] >= 3
        assert told["bytes"] == 65_536 * told["files"]
        assert broker.store.log.min == 0
        clean(client, Code.DELETE_EXPIRED_COMMITLOG)
        assert broker.store.log.min == told["bytes"]
        assert preview(client)["logFiles"] == {"files": 0, "bytes": 0}
    with open_server(tmp_path, clock, small) as (broker, server):
        client = Client(server)
        for _ in range(60):
            client.send("orders", bytes(4000))
        queue = broker.store.reader.existing_queue("orders", 0)
        before = len(queue.run.files)
        broker.store.log.run.drop_before(broker.store.log.run.files[1].end)
        told = preview(client)["queueFiles"]
        clean(client, Code.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert told == {"files": before - len(queue.run.files), "bytes": 200 * (before - len(queue.run.files))}
        assert told["files"] > 0


def test_a_preview_names_topics_in_no_table(tmp_path):
    with open_server(tmp_path) as (_, server):
        client = Client(server)
        for topic in ("kept", "lost"):
            assert client.send(topic).code == 0
    for left in (tmp_path / "config").glob("topics.json*"):
        left.unlink()
    with open_server(tmp_path, restore_lost_topics=False) as (broker, server):
        broker.topics.update(TopicConfig("kept", 4, 4)).settle()
        found = preview(Client(server))
        assert found["topics"] == ["lost"]
        assert found["topicFiles"]["files"] == 1
        assert found["topicFiles"]["bytes"] > 0
