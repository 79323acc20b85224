"""The name server's requests, as values."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.errors import BadRequest
from metaq.model import DataVersion, TopicConfig
from metaq.namesrv.kv import ORDER_NAMESPACE, VALUES_MAX, KvTable
from metaq.namesrv.routes import Registration
from metaq.namesrv.service import KvNotFound, NameService
from metaq.options import NamesrvOptions


def service(**options) -> NameService:
    return NameService(NamesrvOptions(**options), FakeClock())


def said(broker_id=0, address="10.0.0.1:1", topic="T") -> Registration:
    return Registration("C", "a", broker_id, address, "10.0.0.1:2", DataVersion(0, 1), {topic: TopicConfig(topic)})


def test_a_slave_learns_its_master_and_the_order_configuration():
    """The answer to a slave names the master and its replication address."""
    names = service()
    names.put_kv(ORDER_NAMESPACE, "T", "a:4")
    assert names.register(said(), "one") == (None, None, {"T": "a:4"})
    assert names.register(said(1, "10.0.0.2:1"), "two") == ("10.0.0.1:1", "10.0.0.1:2", {"T": "a:4"})


def test_a_topic_that_would_leave_its_folder_is_refused_whole():
    """A registration with a name such as ../x registers nothing."""
    names = service()
    with pytest.raises(BadRequest, match="characters outside"):
        names.register(said(topic="../x"), "one")
    assert names.routes.clusters().brokers == {}


def test_the_order_configuration_is_in_the_route_only_on_request():
    """`orderMessageEnable` adds the fixed layout of a topic to its route."""
    for enabled, order in ((False, None), (True, "a:4")):
        names = service(order_message_enable=enabled)
        names.put_kv(ORDER_NAMESPACE, "T", "a:4")
        names.register(said(), "one")
        assert names.route("T").order == order


def test_kv_changes_are_saved_and_come_back():
    """Every change hands the whole tree to the saver; the tree loads back."""
    saved = []
    names = NameService(NamesrvOptions(), FakeClock(), save_kv=saved.append)
    names.put_kv("N", "k", "v")
    assert saved == [{"configTable": {"N": {"k": "v"}}}]
    again = NameService(NamesrvOptions(), FakeClock(), KvTable(saved[0]["configTable"]))
    assert again.get_kv("N", "k") == "v"
    assert again.kv_table("N") == {"k": "v"}
    again.delete_kv("N", "k")
    again.delete_kv("N", "k")
    with pytest.raises(KvNotFound, match="Namespace: N Key: k"):
        again.get_kv("N", "k")
    with pytest.raises(KvNotFound):
        again.kv_table("N")


def test_the_kv_table_is_bounded():
    """A long value and one value too many are refused; a replacement is not."""
    table = KvTable({"N": {str(i): "v" for i in range(VALUES_MAX)}})
    with pytest.raises(ValueError, match="full"):
        table.put("N", "one more", "v")
    table.put("N", "7", "w")
    assert table.get("N", "7") == "w"
    with pytest.raises(BadRequest, match="characters"):
        service().put_kv("N", "k", "v" * 70_000)
