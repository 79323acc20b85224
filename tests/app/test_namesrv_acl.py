"""A name server with accounts, over sockets: who looks up, registers and administers."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Mapping

from metaq.app.broker import start_broker
from metaq.app.configuration import load
from metaq.app.namesrv import start_namesrv
from metaq.model.acl.secret import Credentials, Secret
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.wire import headers
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode, request_name
from metaq.wire.command import Command, request
from metaq.wire.headers import Header
from metaq.wire.signing import sign
from tests.accounts import ACCOUNTS, SECRET, tools_yml
from tests.accounts import ADMIN as ADMIN_KEYS
from tests.support import PATIENCE, eventually, exchange

USER, ADMIN, NOBODY = "account-user", "account-admin", ""
ANY, ADMINS, EVERYBODY = {USER, ADMIN}, {ADMIN}, {USER, ADMIN, NOBODY}
ASKED: Mapping[Code, tuple[Header | None, set[str]]] = {
    Code.GET_ROUTEINFO_BY_TOPIC: (headers.RouteHeader(topic="orders"), ANY),
    Code.GET_BROKER_CLUSTER_INFO: (None, ANY),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (None, ANY),
    Code.GET_TOPICS_BY_CLUSTER: (headers.ClusterHeader(cluster="c"), ANY),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: (None, ANY),
    Code.GET_KV_CONFIG: (headers.KvKeyHeader(namespace="n", key="k"), ANY),
    Code.GET_KVLIST_BY_NAMESPACE: (headers.NamespaceHeader(namespace="n"), ANY),
    Code.PUT_KV_CONFIG: (headers.PutKvHeader(namespace="n", key="k", value="v"), ADMINS),
    Code.DELETE_KV_CONFIG: (headers.KvKeyHeader(namespace="n", key="k"), ADMINS),
    Code.DELETE_TOPIC_IN_NAMESRV: (headers.DeleteRouteHeader(topic="orders"), ADMINS),
    Code.WIPE_WRITE_PERM_OF_BROKER: (headers.BrokerNameHeader(broker_name="b"), ADMINS),
    Code.ADD_WRITE_PERM_OF_BROKER: (headers.BrokerNameHeader(broker_name="b"), ADMINS),
    Code.GET_NAMESRV_CONFIG: (None, ADMINS),
    Code.OPTIONS: (None, ADMINS),
    Code.UNREGISTER_BROKER: (headers.BrokerHeader(broker_name="b", broker_address="127.0.0.1:1", cluster="c", broker_id=0), ADMINS),
    Code.GET_BROKER_CLUSTER_ACL_INFO: (None, ADMINS),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: (None, ADMINS),
}  # fmt: skip


def accounts(tmp_path: pathlib.Path, text: str = ACCOUNTS) -> str:
    main = tmp_path / "plain_acl.yml"
    main.write_text(text)
    return str(main)


def namesrv_options(tmp_path: pathlib.Path, **more) -> NamesrvOptions:
    table = {"listen_port": 0, "kv_config_path": str(tmp_path / "kv.json"), "acl_enable": True}
    return NamesrvOptions(**{**table, "acl_path": accounts(tmp_path), **more})


def command(who: str, code: int, header: Header | None) -> Command:
    made = request(code, header)
    if who:
        sign(made, Credentials(who, Secret(SECRET)))
    return made


def allowed(address: str, code: Code, header: Header | None) -> set[str]:
    answers = exchange(address, [command(who, code, header) for who in (USER, ADMIN, NOBODY)])
    return {
        who
        for who, answer in zip((USER, ADMIN, NOBODY), answers, strict=True)
        if "AclException" not in (answer.remark or "")
    }


def test_each_request_is_for_those_who_may(tmp_path) -> None:
    """Look-ups for any account; with aclLookupsOpen for everybody, and nothing else."""

    async def act(open_lookups: bool) -> None:
        server = await start_namesrv(namesrv_options(tmp_path, acl_lookups_open=open_lookups))
        try:
            for code, (header, may) in ASKED.items():
                expected = EVERYBODY if open_lookups and may is ANY else may
                found = await asyncio.to_thread(allowed, server.address, code, header)
                assert found == expected, request_name(code)
        finally:
            await server.close()

    for open_lookups in (False, True):
        asyncio.run(asyncio.wait_for(act(open_lookups), PATIENCE))


def test_a_broker_signs_its_registration_and_a_topic_is_deleted_at_both(tmp_path) -> None:
    """By an administrator; the account of another may not. Nobody is in a white list."""
    tools = tmp_path / "tools.yml"
    tools.write_text(tools_yml(ADMIN_KEYS))
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}

    async def act() -> None:
        namesrv = await start_namesrv(namesrv_options(tmp_path))
        table = {"acl_enable": True, "acl_path": str(tmp_path / "plain_acl.yml"), "acl_credentials": str(tools)}
        broker = await start_broker(
            BrokerOptions(listen_port=0, broker_name="b", namesrv_addr=namesrv.address, **table),
            StoreOptions(store_path_root_dir=str(tmp_path / "data"), **small),
        )

        def ask(address: str, who: str, code: int, header: Header) -> int:
            (answer,) = exchange(address, [command(who, code, header)])
            return answer.code

        def steps() -> None:
            create = headers.CreateTopicHeader(topic="orders", read_queues=1, write_queues=1, perm=6)
            route, both = headers.RouteHeader(topic="orders"), (broker.address, namesrv.address)
            assert ask(broker.address, ADMIN, Code.UPDATE_AND_CREATE_TOPIC, create) == 0
            eventually(lambda: ask(namesrv.address, USER, Code.GET_ROUTEINFO_BY_TOPIC, route) == 0, what="a route")
            deletions = (
                (Code.DELETE_TOPIC_IN_BROKER, headers.TopicHeader(topic="orders")),
                (Code.DELETE_TOPIC_IN_NAMESRV, headers.DeleteRouteHeader(topic="orders")),
            )
            for who, code_then in ((USER, 1), (ADMIN, 0)):
                for address, (code, header) in zip(both, deletions, strict=True):
                    assert ask(address, who, code, header) == code_then
            assert ask(namesrv.address, USER, Code.GET_ROUTEINFO_BY_TOPIC, route) == ResponseCode.TOPIC_NOT_EXIST

        try:
            await asyncio.to_thread(steps)
        finally:
            await broker.close()
            await namesrv.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_a_broker_conf_turns_accounts_on_at_the_broker_alone(tmp_path) -> None:
    """RocketMQ's name servers have none; a section of its own does it there."""
    accounts(tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\naclEnable=true\n")
    both = ("broker", "store", "namesrv")
    found = load(str(conf), serving=both, environment={})
    assert (found.broker.acl_enable, found.namesrv.acl_enable) == (True, False)
    alone = load(str(conf), serving=("namesrv",), environment={})
    assert alone.namesrv.acl_enable
    assert alone.namesrv.acl_path == str(tmp_path / "plain_acl.yml")
    assert not any("without access control" in warning for warning in alone.warnings)
    asked = load(None, settings=["namesrv.aclEnable=true"], serving=both, environment={"ROCKETMQ_HOME": str(tmp_path)})
    assert (asked.broker.acl_enable, asked.namesrv.acl_enable) == (False, True)
    assert asked.namesrv.acl_path == str(tmp_path / "conf" / "plain_acl.yml")
