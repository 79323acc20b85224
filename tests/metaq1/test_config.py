"""Settings: defaults of the reference, and values that are refused where they are made."""

from __future__ import annotations

import os

import pytest
from msgspec import structs

from metaq.errors import ConfigError
from metaq.metaq1 import CONSIST, MAX_OFFSET, NEVER_SKIP, ConsumerConfig, MetaClientConfig, ZKConfig
from metaq.metaq1.config import server_address

CLIENT_DEFAULTS = {
    "server_url": None,
    "recover_message_interval": 300.0,
    "recover_thread_count": os.cpu_count(),
    "partitions_info": {},
    "max_message_bytes": 1 << 20,
    "max_read_buffer": 2 << 20,
    "max_pending_messages": 100_000,
    "max_pending_bytes": 64 << 20,
    "max_reconnect_times": 350,
    "loopback_connection": False,
    "callback_threads": 4,
    "message_ids_cache_size": 4096,
    "recover_path": "~/.meta_recover",
    "local_message_path": "~/.meta_localmessage",
    "async_storage_path": "~/.meta_async_storage",
    "offsets_path": "~/.meta_offsets",
    "save_to_local_when_failed": False,
}
ZK_DEFAULTS = {
    "zk_root": "/meta",
    "zk_connect": "localhost:2181",
    "zk_session_timeout": 30.0,
    "zk_connection_timeout": 30.0,
    "zk_sync_time": 5.0,
}
CONSUMER_DEFAULTS = {
    "consumer_id": None,
    "partition": None,
    "offset": 0,
    "consume_from_max_offset": False,
    "always_consume_from_max_offset": False,
    "fetch_runner_count": os.cpu_count(),
    "fetch_timeout": 10.0,
    "max_delay_fetch_time": 5.0,
    "commit_offset_period": 5.0,
    "max_fetch_retries": 5,
    "max_increase_fetch_data_retries": 5,
    "load_balance_strategy_type": "DEFAULT",
    "read_from": "master_first",
    "refuse_shared_consumer_id": False,
}


@pytest.mark.parametrize(
    ("made", "wanted", "given"),
    [
        (MetaClientConfig(zk_config=ZKConfig()), CLIENT_DEFAULTS, {"zk_config": ZKConfig()}),
        (ZKConfig(), ZK_DEFAULTS, {}),
        (ConsumerConfig("g"), CONSUMER_DEFAULTS, {"group": "g"}),
    ],
    ids=["client", "zookeeper", "consumer"],
)
def test_defaults_are_those_of_the_original(made, wanted, given):
    """Every option, so that a new one needs a row here."""
    assert structs.asdict(made) == wanted | given


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MetaClientConfig(), "no zk config offered"),
        (lambda: MetaClientConfig(server_url="meta://a:b"), "meta://a:b"),
        (lambda: MetaClientConfig(server_url="http://a:1/x"), "meta://host:port"),
        (lambda: MetaClientConfig(server_url="a", max_message_bytes=20), "max_message_bytes=20: need 21"),
        (lambda: MetaClientConfig(server_url="a", recover_thread_count=0), "recover_thread_count=0"),
        (lambda: MetaClientConfig(server_url="a", recover_message_interval=0), "recover_message_interval=0"),
        (lambda: MetaClientConfig(server_url="a", max_pending_messages=0), "max_pending_messages=0"),
        (lambda: ZKConfig(zk_connect=" "), "zk_connect is empty"),
        (lambda: ZKConfig(zk_session_timeout=-1), "zk_session_timeout=-1"),
        (lambda: ConsumerConfig(""), "group=''"),
        (lambda: ConsumerConfig("a b"), "group='a b'"),
        (lambda: ConsumerConfig("a/b"), "group='a/b'"),
        (lambda: ConsumerConfig("g", consumer_id="a/b"), "consumer_id='a/b'"),
        (lambda: ConsumerConfig("g", partition="x"), "need brokerId-number"),
        (lambda: ConsumerConfig("g", offset=-1), "offset=-1"),
        (lambda: ConsumerConfig("g", offset=MAX_OFFSET + 1), "need at most"),
        (lambda: ConsumerConfig("g", fetch_runner_count=0), "fetch_runner_count=0: need 1"),
        (lambda: ConsumerConfig("g", fetch_timeout=0), "fetch_timeout=0"),
        (lambda: ConsumerConfig("g", load_balance_strategy_type="consist"), "need 'DEFAULT', 'CONSIST' or a function"),
        (lambda: ConsumerConfig("g", read_from="slave"), "master_first, random, slave_first"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_name(make, says):
    with pytest.raises(ConfigError) as refused:
        make()
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MetaClientConfig(server_url=8123), "server_url is 8123"),
        (lambda: MetaClientConfig(zk_config="localhost:2181"), "pass a ZKConfig"),
        (lambda: MetaClientConfig(server_url="a", loopback_connection="no"), "loopback_connection is 'no'"),
        (lambda: MetaClientConfig(server_url="a", callback_threads=1.5), "callback_threads is 1.5"),
        (lambda: ConsumerConfig(1), "group is 1"),
        (lambda: ConsumerConfig("g", always_consume_from_max_offset=1), "always_consume_from_max_offset is 1"),
        (lambda: ConsumerConfig("g", max_fetch_retries="5"), "max_fetch_retries is '5'"),
        (lambda: ConsumerConfig("g", commit_offset_period="5"), "commit_offset_period='5'"),
    ],
)
def test_a_value_of_another_type_is_a_type_error(make, says):
    with pytest.raises(TypeError) as refused:
        make()
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("meta://10.0.0.5:8124", "10.0.0.5:8124"),
        ("10.0.0.5:8124", "10.0.0.5:8124"),
        ("meta://host/", "host:8123"),
        ("host", "host:8123"),
        ("meta://[::1]:8124", "[::1]:8124"),
        ("meta://[::1]", "[::1]:8123"),
    ],
)
def test_an_address_may_leave_scheme_and_port_out(url, address):
    assert server_address(url) == address
    assert MetaClientConfig(server_url=url).address == address


def test_where_a_consumer_begins():
    assert ConsumerConfig("g", offset=7).first_offset == 7
    assert ConsumerConfig("g", consume_from_max_offset=True).first_offset == MAX_OFFSET
    assert ConsumerConfig("g", always_consume_from_max_offset=True).first_offset == MAX_OFFSET


def test_values_of_one_s_own_are_taken():
    """The largest number of retries, and any strategy."""

    def mine(topic, consumer, consumers, partitions):
        return partitions

    made = ConsumerConfig("g-1_x", "id", max_fetch_retries=NEVER_SKIP, load_balance_strategy_type=mine)
    assert (made.consumer_id, made.load_balance_strategy_type) == ("id", mine)
    assert ConsumerConfig("g", load_balance_strategy_type=CONSIST).load_balance_strategy_type == CONSIST
