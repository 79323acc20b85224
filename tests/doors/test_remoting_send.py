"""Sends at the door, in both lanes: answers, checks in RocketMQ's order, batches, oneway."""

from __future__ import annotations

import pytest

from metaq.wire.command import SerializeType
from metaq.wire.record import decode_record, parse_offset_id
from tests.doors.support import Client, open_door


@pytest.fixture
def door(tmp_path):
    with open_door(tmp_path) as (broker, door):
        door.broker_ = broker
        yield door


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_first_send_creates_the_topic_and_both_lanes_answer_alike(door, serialize):
    """The first send of a topic goes the slow way and creates it, the second the fast way; their answers agree."""
    client = Client(door, serialize)
    first, second = client.send("orders"), client.send("orders")
    assert (first.code, second.code) == (0, 0)
    assert first.ext.keys() == second.ext.keys() == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    assert [first.ext["queueOffset"], second.ext["queueOffset"]] == ["0", "1"]
    assert first.serialize is second.serialize is serialize
    assert door.broker.topics.require("orders").write_queues == 4
    assert b"orders" in door.broker.gates.table
    address, port, log_offset = parse_offset_id(second.ext["msgId"])
    assert (address, port) == ("127.0.0.1", 10911)
    assert decode_record(door.broker.store.record_at(log_offset)).body == b"hello"
