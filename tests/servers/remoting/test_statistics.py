"""Statistics by topic and group as tools ask for them: 315, and the rates of 208, 317 and 28."""

from __future__ import annotations

import pytest

from metaq.model import GroupConfig, TopicConfig
from metaq.model.statistics import StatisticFigures, WindowFigures
from metaq.wire import bodies
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from metaq.wire.headers import BrokerStatsHeader, SendBackHeader
from tests.servers.support import Client, pull_header, tick


@pytest.fixture
def broker(server, clock):
    server.broker.topics.update(TopicConfig("orders", 2, 2)).settle()
    for group in ("G", "H"):
        server.broker.groups.update(GroupConfig(group)).settle()
    pass_time(server, clock, 1)
    return server.broker


def pass_time(server, clock, rounds: int) -> None:
    for _ in range(rounds):
        clock.advance(10)
        for _ in range(5):
            tick(server)


def view(client: Client, name: str, key: str) -> StatisticFigures | None:
    """None: it does not exist."""
    answer = client.ask(Code.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(stats_name=name, stats_key=key))
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert answer.remark == f"The stats <{name}> <{key}> not exist"
        return None
    assert answer.code == 0
    return bodies.broker_stats_of(answer.body)


def test_puts_and_gets_on_the_fast_paths_and_beside_them(server, client, clock, broker):
    """Each message once, by topic and by group; the bytes are those of the records."""
    for _ in range(3):
        client.send("orders")
    pulls = [client.pull("orders", group="G", max_messages=1, offset=offset)[0] for offset in (0, 1, 2)]
    assert [pull.code for pull in pulls] == [0, 0, 0]
    record = len(pulls[0].body)
    (all_of_them,) = client.pull("orders", group="H")
    pass_time(server, clock, 1)
    assert view(client, "TOPIC_PUT_NUMS", "orders").minute == WindowFigures(3, 0.3, 1.0)
    assert view(client, "TOPIC_PUT_SIZE", "orders").minute.total == 3 * record == len(all_of_them.body)
    assert view(client, "GROUP_GET_NUMS", "orders@G").minute == WindowFigures(3, 0.3, 1.0)
    assert view(client, "GROUP_GET_SIZE", "orders@G").minute.total == 3 * record
    assert view(client, "GROUP_GET_NUMS", "orders@H").minute == WindowFigures(3, 0.3, 3.0)
    assert view(client, "BROKER_PUT_NUMS", "DefaultCluster").minute == WindowFigures(3, 0.3, 0.0)
    assert view(client, "BROKER_GET_NUMS", "DefaultCluster").minute == WindowFigures(6, 0.6, 0.0)


def test_pulls_of_one_read_event_share_what_they_found(server, client, clock, broker):
    """Those of one group have all of it, others an even share; the sum stays exact."""
    for queue_id in (0, 0, 0, 1):
        client.send("orders", queue_id=queue_id)
    for group in ("G", "H"):  # opens the gates
        for queue_id in (0, 1):
            assert client.pull("orders", queue_id, group=group)[0].code == 0
    headers = [pull_header("orders", queue_id, group="G") for queue_id in (0, 1)]
    client.feed(b"".join(client.frame(Code.PULL_MESSAGE, header) for header in headers))
    assert len(client.received()) == 2
    assert broker.stats.group_gets.table["orders", "G"].messages == 8
    headers = [pull_header("orders", 0, group=group) for group in ("G", "H", "H")]
    client.feed(b"".join(client.frame(Code.PULL_MESSAGE, header) for header in headers))
    assert len(client.received()) == 3
    table = broker.stats.group_gets.table
    assert (table["orders", "G"].messages, table["orders", "H"].messages) == (8 + 3, 4 + 6)
    assert (table["orders", "G"].calls, table["orders", "H"].calls) == (5, 4)
    assert broker.stats.got_messages == 21
    assert table["orders", "G"].size + table["orders", "H"].size == broker.stats.got_bytes


def test_held_pulls_count_for_their_group(server, client, clock, broker):
    """Whether the fast path answers them or not."""
    client.send("orders")
    assert client.pull("orders", group="G")[0].code == 0
    for offset in (1, 2):
        assert client.pull("orders", group="G", offset=offset, suspend_ms=10_000, sys_flag=6) == []
        Client(server).send("orders")
        assert client.received()[0].code == 0
        assert broker.stats.group_gets.table["orders", "G"].messages == offset + 1


def test_messages_sent_back(server, client, clock, broker):
    """By the topic that they were consumed from: on the fast path, and as dead letters. A refused one does not count."""
    client.send("orders")
    client.send("orders")
    first, second = (broker.store.reader.existing_queue("orders", 0).unit(number).log_offset for number in (0, 1))
    for offset, level, code in ((first, 1, 0), (second, -1, 0), (second + 1, 1, ResponseCode.SYSTEM_ERROR)):
        header = SendBackHeader(group="G", offset=offset, delay_level=level, origin_topic="orders")
        assert client.ask(Code.CONSUMER_SEND_MSG_BACK, header).code == code
    pass_time(server, clock, 1)
    assert view(client, "SNDBCK_PUT_NUMS", "orders@G").minute == WindowFigures(2, 0.2, 1.0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NO_SUCH_NAME", "orders"),
        ("TOPIC_PUT_NUMS", "nowhere"),
        ("TOPIC_PUT_NUMS", ""),
        ("TOPIC_PUT_NUMS", "orders@G"),
        ("GROUP_GET_NUMS", "orders"),
        ("GROUP_GET_NUMS", "orders@nobody"),
        ("GROUP_GET_NUMS", "@"),
        ("BROKER_PUT_NUMS", "orders"),
        ("BROKER_GET_NUMS", "DefaultCluster@G"),
        ("GROUP_GET_LATENCY", "0@orders@G"),
        ("GROUP_GET_FALL_SIZE", "0@orders@G"),
        ("COMMERCIAL_SEND_TIMES", "owner@orders@G@SEND_SUCCESS"),
        ("", ""),
        ("TOPIC_PUT_NUMS", "\x00\n%s{}"),
    ],
)
def test_what_was_not_counted_does_not_exist(server, client, clock, broker, name, key):
    """As RocketMQ answers: other names, other keys, and keys of another kind."""
    client.send("orders")
    client.pull("orders", group="G")
    pass_time(server, clock, 1)
    assert view(client, name, key) is None


@pytest.mark.parametrize("ext", [{}, {"statsName": "TOPIC_PUT_NUMS"}, {"statsKey": "orders"}])
def test_missing_fields_are_named(client, ext):
    """The connection goes on."""
    answer = client.ask(Code.VIEW_BROKER_STATS_DATA, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert any(name in answer.remark for name in {"statsName", "statsKey"} - ext.keys())
    assert client.ask(Code.GET_ALL_PRODUCER_INFO).code == 0


def test_a_long_key_is_not_told_whole(client):
    """An answer is no mirror of a megabyte."""
    header = BrokerStatsHeader(stats_name="N" * 20_000, stats_key="k" * 20_000)
    answer = client.ask(Code.VIEW_BROKER_STATS_DATA, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert len(answer.remark) < 1000


def test_rates_of_groups_and_of_the_broker(server, client, clock, broker):
    """208 of one topic and of all with offsets, 317 of each, 28 of the broker."""
    for _ in range(20):
        client.send("orders")
    client.pull("orders", group="G", max_messages=20)
    broker.offsets.put("G", "orders", 0, 20)
    pass_time(server, clock, 1)

    def rate(**ext) -> float:
        answer = client.ask(Code.GET_CONSUME_STATS, {"consumerGroup": "G"} | ext)
        return bodies.consume_stats_of(answer.body)[1]

    assert (rate(), rate(topic="orders"), rate(topic="other"), rate(consumerGroup="H")) == (2.0, 2.0, 0.0, 0.0)
    assert b'"consumeTps":2.0' in client.ask(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
    table = bodies.kv_table_of(client.ask(Code.GET_BROKER_RUNTIME_INFO).body)
    assert [table[name].split(" ")[0] for name in ("putTps", "getTransferedTps", "getFoundTps")] == [
        "2.0",
        "2.0",
        "0.1",
    ]
    pass_time(server, clock, 7)
    assert rate() == 0.0
