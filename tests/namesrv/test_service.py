"""The name server's requests, as values."""

from __future__ import annotations

import errno

import pytest
from tests.broker.support import MemoryFile, SlowFile
from tests.namesrv.support import Link

from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import DataVersion, TopicConfig
from metaq.model.topics.registration import BrokerIdentity, Registered, Registration
from metaq.model.topics.route import ORDER_NAMESPACE
from metaq.namesrv.kv import TABLE_CHARS_MAX, TEXT_CHARS_MAX, VALUES_MAX, KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.wire import fastjson
from metaq.wire.files import KV_CONFIG


def service(**options) -> NameService:
    return on_file(MemoryFile(), **options)


def on_file(file, **options) -> NameService:
    clock = FakeClock()
    return NameService(NamesrvOptions(**options), clock, KvTable(TableFile(file, KV_CONFIG), clock))


def end_all(file: SlowFile) -> None:
    while file.under_way:
        file.end()


def registration(broker_id=0, address="10.0.0.1:1", topic="T") -> Registration:
    who = BrokerIdentity("C", "a", broker_id, address, "10.0.0.1:2")
    return Registration(who, DataVersion(0, 1), {topic: TopicConfig(topic)})


def test_a_slave_learns_its_master_and_the_order_configuration():
    """The answer to a slave names the master and its replication address."""
    names = service()
    names.put_kv(ORDER_NAMESPACE, "T", "a:4")
    assert names.register(registration(), Link()) == Registered(order={"T": "a:4"})
    assert names.register(registration(1, "10.0.0.2:1"), Link()) == Registered("10.0.0.1:1", "10.0.0.1:2", {"T": "a:4"})


def test_a_topic_that_would_leave_its_folder_is_refused_whole():
    """A registration with a name such as ../x registers nothing."""
    names = service()
    with pytest.raises(Refused, match="characters outside"):
        names.register(registration(topic="../x"), Link())
    assert names.clusters().brokers == {}


def test_a_topic_with_a_dot_which_clients_of_metaq_1_x_make_has_a_route():
    names = service()
    names.register(registration(topic="com.shop.orders"), Link())
    assert [queues.broker for queues in names.route("com.shop.orders").queues] == ["a"]


def test_the_order_configuration_is_in_the_route_only_on_request():
    """`orderMessageEnable` adds the fixed layout of a topic to its route."""
    for enabled, order in ((False, None), (True, "a:4")):
        names = service(order_message_enable=enabled)
        names.put_kv(ORDER_NAMESPACE, "T", "a:4")
        names.register(registration(), Link())
        assert names.route("T").order == order


def test_kv_changes_are_saved_and_come_back():
    """The file holds every change in RocketMQ's form, and a restart reads it."""
    file = MemoryFile()
    names = on_file(file)
    names.put_kv("N", "k", "v")
    names.put_kv("N", 'quo"te', "two\nlines")
    names.put_kv("M", "k", "v")
    tree = {"configTable": {"N": {"k": "v", 'quo"te': "two\nlines"}, "M": {"k": "v"}}}
    assert file.text == fastjson.dumps_file(tree)
    again = on_file(file)
    assert again.get_kv("N", "k") == "v"
    assert again.kv_table("N") == tree["configTable"]["N"]
    again.delete_kv("M", "k")
    again.delete_kv("M", "k")
    with pytest.raises(Refused, match="Namespace: M Key: k"):
        again.get_kv("M", "k")
    with pytest.raises(Refused, match="Namespace: M") as caught:
        again.kv_table("M")
    assert caught.value.reason is Reason.NOT_FOUND
    assert on_file(file).kv_table("N") == tree["configTable"]["N"]


def test_a_kv_change_that_cannot_be_saved_is_refused_and_never_was():
    """Neither put nor deletion is seen; the text names the file and the disk's reason."""
    file = MemoryFile()
    names = on_file(file)
    names.put_kv("N", "k", "v")
    file.error = OSError(errno.ENOSPC, "No space left on device")
    for pending in (names.put_kv("N", "k", "w"), names.put_kv("N", "new", "v"), names.delete_kv("N", "k")):
        with pytest.raises(Refused, match=r"memory\.json.*No space left"):
            pending.settle()
    assert names.kv_table("N") == {"k": "v"}
    file.error = None
    names.put_kv("N", "k", "w").settle()
    assert on_file(file).get_kv("N", "k") == "w"


def test_the_kv_table_is_bounded():
    """A long value and one value too many are refused; a replacement is not."""
    tree = {"configTable": {"N": {str(i): "v" for i in range(VALUES_MAX)}}}
    table = KvTable(TableFile(MemoryFile(fastjson.dumps(tree).decode()), KV_CONFIG), FakeClock())
    with pytest.raises(Refused, match="full"):
        table.put("N", "one more", "v")
    table.put("N", "7", "w")
    assert table.get("N", "7") == "w"
    with pytest.raises(Refused, match="characters"):
        service().put_kv("N", "k", "v" * 70_000)


def test_the_kv_table_is_bounded_in_characters_too():
    """100 000 values of 64 Ki characters would be 6.5 GB; what is being saved counts, and what is deleted is given back."""
    file = SlowFile()
    table = KvTable(TableFile(file, KV_CONFIG), FakeClock())
    value = "v" * (TEXT_CHARS_MAX - 10)
    with pytest.raises(Refused, match=f"the KV table is full: {TABLE_CHARS_MAX} characters"):
        for number in range(TABLE_CHARS_MAX // len(value) + 1):
            table.put("N", str(number), value)
    end_all(file)
    with pytest.raises(Refused, match="full"):
        table.put("N", "one more", value)
    table.put("N", "7", value.upper())
    table.delete("N", "8")
    end_all(file)
    assert table.get("N", "7") == value.upper()
    table.put("N", "one more", value)
    end_all(file)
    assert table.get("N", "one more") == value


def test_brokers_hear_that_the_last_ordered_topic_is_none_any_more():
    """None means that there never was one: they would keep what they know."""
    names = service()
    assert names.register(registration(), Link()).order is None
    names.put_kv(ORDER_NAMESPACE, "T", "a:4")
    names.delete_kv(ORDER_NAMESPACE, "T")
    assert names.register(registration(), Link()).order == {}
    assert names.kv_table(ORDER_NAMESPACE) == {}
