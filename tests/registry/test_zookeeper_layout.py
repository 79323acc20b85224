"""Paths and texts of MetaQ 1.x in ZooKeeper, as recorded from the original."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.metaq1.partition import Published
from metaq.registry.zookeeper.layout import (
    PUBLISH,
    SUBSCRIBE,
    BrokerPlace,
    Layout,
    Metaq1Broker,
    OffsetNode,
    parents,
    parse_offset,
    parse_role,
    parse_topic_text,
    parse_uri,
    topic_text,
)

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/meta", "/meta/brokers/ids/0"),
        ("meta", "/meta/brokers/ids/0"),
        ("/meta/", "/meta/brokers/ids/0"),
        ("/a/b", "/a/b/brokers/ids/0"),
        ("/", "/brokers/ids/0"),
    ],
)
def test_a_root_gets_its_slash_and_loses_the_last(root: str, path: str) -> None:
    assert Layout(root).broker(0) == path


def test_nodes_of_a_master_are_those_of_the_original() -> None:
    """What a 1.4.6.2 with this server.ini has in ZooKeeper."""
    wanted = Layout("/meta").wanted(Metaq1Broker(0, "meta://h:8123"), b"hello", {"test": Published(3, True, True)})
    assert wanted == {
        "/meta/brokers/ids/0/master_config_checksum": "907060870",
        "/meta/brokers/topics/test/0-m": "3",
        "/meta/brokers/topics-pub/test/0-m": '{"numParts":3,"broker":"0-m"}',
        "/meta/brokers/topics-sub/test/0-m": '{"numParts":3,"broker":"0-m"}',
    }


def test_a_slave_has_its_own_place_and_leaves_the_checksum_to_its_master() -> None:
    slave, layout = Metaq1Broker(7, "meta://[::1]:8123", slave=2), Layout("/meta")
    assert layout.who(slave) == "/meta/brokers/ids/7/slave2"
    assert layout.wanted(slave, b"", {"t": Published(1, False, True)}) == {
        "/meta/brokers/topics/t/7-s2": "1",
        "/meta/brokers/topics-sub/t/7-s2": '{"numParts":1,"broker":"7-s2"}',
    }


def test_parents_come_from_the_root_on() -> None:
    assert [*parents("/meta/brokers/ids/0")] == ["/meta", "/meta/brokers", "/meta/brokers/ids"]


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("-5468926395948204032-103", OffsetNode(-5468926395948204032, 103)),
        ("-1-1024", OffsetNode(-1, 1024)),
        ("0-7", OffsetNode(0, 7)),
        ("1024", OffsetNode(-1, 1024)),
        ("-5", OffsetNode(-1, -5)),
    ],
)
def test_offset_nodes_are_split_at_the_last_hyphen(text: str, node: OffsetNode) -> None:
    """Ids may be negative, and before 1.4 there was only the position."""
    assert parse_offset(text) == node


@pytest.mark.parametrize("text", ["", "-", "a-1", "1-", "1-b", "--"])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offset(text)


@given(LONGS, st.integers(0, (1 << 63) - 1))
def test_an_offset_node_survives_its_text(message_id: int, position: int) -> None:
    node = OffsetNode(message_id, position)
    assert parse_offset(node.text) == node


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("0-m", BrokerPlace(0)),
        ("1023-s2", BrokerPlace(1023, 2)),
        ("m", None),
        ("0-s", None),
        ("0-m1", None),
        ("-1-m", None),
        ("0-m\n", None),
    ],
)
def test_a_topic_node_is_named_after_its_broker(name: str, place: BrokerPlace | None) -> None:
    assert parse_role(name) == place


def test_a_client_reads_what_a_broker_writes() -> None:
    """Role, number of partitions and address."""
    layout, slave = Layout("/meta"), Metaq1Broker(7, "meta://[::1]:8123", slave=2)
    for kind in (PUBLISH, SUBSCRIBE):
        parent, _, name = layout.topic(kind, "t", slave).rpartition("/")
        assert parent == layout.topics(kind, "t")
        assert parse_role(name) == BrokerPlace(7, 2)
    assert layout.server(BrokerPlace(7, 2)) == layout.who(slave)
    assert parse_topic_text(topic_text(3, slave)) == 3
    assert parse_uri(slave.uri) == "[::1]:8123"
    assert parse_uri("meta://h:8123?slaveId=1") == "h:8123"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_topic_text, ""),
        (parse_topic_text, '{"numParts":"3"}'),
        (parse_topic_text, "3"),
        (parse_uri, ""),
        (parse_uri, "meta://"),
        (parse_uri, "meta://h:x"),
    ],
)
def test_a_text_of_somebody_else_is_no_number_and_no_address(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError):
        read(text)


def test_nodes_of_consumers_are_those_of_the_original() -> None:
    layout = Layout("/meta")
    assert layout.member("g", "g_1") == "/meta/consumers/g/ids/g_1"
    assert layout.owner("g", "t", "0-1") == "/meta/consumers/g/owners/t/0-1"
    assert layout.offset("g", "t", "0-1") == "/meta/consumers/g/offsets/t/0-1"
