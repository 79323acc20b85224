"""A whole broker with access control, over sockets."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.app.peers import BrokerPeers
from metaq.broker.staged.peers import NoAnswer, StateOf
from metaq.client.shared.transport import Transport
from metaq.errors import ConfigError
from metaq.model.acl.secret import Credentials, Secret
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.headers import Header
from metaq.wire.signing import sign
from tests.app.test_pair import opened, until
from tests.servers.support import pull_header, send_header
from tests.support import PATIENCE, eventually, exchange, metaq_command, process, read_line

SECRET = "12345678-secret"
ACCOUNT = f"- accessKey: account-one\n  secretKey: {SECRET}\n"
MAY_SEND = f"accounts:\n{ACCOUNT}  topicPerms: [orders=PUB]\n"
MAY_READ = f"accounts:\n{ACCOUNT}  topicPerms: [orders=SUB]\n  defaultGroupPerm: SUB\n"


def signed(command: Command, secret: str = SECRET) -> Command:
    sign(command, Credentials("account-one", Secret(secret)))
    return command


def send() -> Command:
    return request(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"hello")


def outcomes(address: str) -> list[str]:
    """What becomes of a send, a pull, and sends with a wrong and without a signature."""
    pull = request(RequestCode.PULL_MESSAGE, pull_header("orders"))
    asked = [signed(send()), signed(pull), signed(send(), "another one"), send()]
    return ["refused" if "AclException" in (one.remark or "") else str(one.code) for one in exchange(address, asked)]


def options(tmp_path: pathlib.Path, main: pathlib.Path) -> tuple[BrokerOptions, StoreOptions]:
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return (
        BrokerOptions(listen_port=0, broker_name="b", acl_enable=True, acl_path=str(main)),
        StoreOptions(store_path_root_dir=str(tmp_path / "data"), **small),
    )


def test_a_changed_file_is_in_force_without_a_restart(tmp_path) -> None:
    """For an embedded broker, too: its own thread sees the change, and the next requests are judged by it."""
    main = tmp_path / "plain_acl.yml"
    main.write_text(MAY_SEND)

    async def act() -> None:
        broker = await start_broker(*options(tmp_path, main))
        try:
            assert await asyncio.to_thread(outcomes, broker.address) == ["0", "refused", "refused", "refused"]
            main.write_text(MAY_READ)
            changed = ["refused", "0", "refused", "refused"]
            await asyncio.to_thread(eventually, lambda: outcomes(broker.address) == changed, what="the new rules")
        finally:
            await broker.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_a_broken_file_at_the_start_touches_nothing(tmp_path) -> None:
    """No store is made, and no port stays taken."""
    main = tmp_path / "plain_acl.yml"
    main.write_text("accounts: what")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml, line 1"):
        asyncio.run(start_broker(*options(tmp_path, main)))
    assert not (tmp_path / "data").exists()


def test_metaq_broker_starts_with_a_rocketmq_configuration_as_it_stands(tmp_path) -> None:
    """`aclEnable=true`, and the accounts beside the file; `--print-config` shows no secret, nor does the log."""
    (tmp_path / "plain_acl.yml").write_text(MAY_SEND)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerName=b\naclEnable=true\nlistenPort=0\nhaListenPort=0\nvipPortEnable=false\nstorePathRootDir={tmp_path}/data\n"
    )
    command = metaq_command("broker", "-c", str(conf), "--host", "127.0.0.1")
    with process(*command, "--print-config") as printing:
        printed = printing.communicate(timeout=PATIENCE)[0]
    assert "aclEnable = true" in printed
    assert SECRET not in printed
    with process(*command, "-o", "mappedFileSizeCommitLog=1048576") as child:
        address = read_line(child, "ready broker").split()[-1]
        assert outcomes(address) == ["0", "refused", "refused", "refused"]
        child.terminate()
        _, errors = child.communicate(timeout=PATIENCE)
    assert "access control is on: 1 accounts" in errors
    assert "without access control" not in errors
    assert SECRET not in errors


# ---------------------------------------------------------------- brokers among themselves

OF_BROKERS = f"accounts:\n- accessKey: account-broker\n  secretKey: {SECRET}\n  admin: true\n{ACCOUNT}  topicPerms: [orders=PUB]\n"
TOOLS = f"accessKey: account-broker\nsecretKey: {SECRET}\n"


def guarded(tmp_path: pathlib.Path) -> dict[str, object]:
    """Options of a broker with accounts, one of which is the brokers'."""
    main, tools = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    main.write_text(OF_BROKERS)
    tools.write_text(TOOLS)
    return {"acl_enable": True, "acl_path": str(main), "acl_credentials": str(tools)}


def test_a_slave_that_signs_follows_the_tables_of_its_master(tmp_path) -> None:
    """As without access control: the log, topics, and the positions of groups; nobody is in a white list."""

    async def act() -> None:
        both = guarded(tmp_path)
        async with opened(tmp_path, slave_options=both, **both) as pair:
            assert await asyncio.to_thread(outcomes, pair.master.address) == ["0", "refused", "refused", "refused"]
            await pair.same()
            await until(lambda: "orders" in pair.follower.topics.table)
            pair.leader.offsets.put("G", "orders", 0, 1)
            await until(lambda: pair.follower.offsets.get("G", "orders", 0) == 1)

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_a_slave_that_does_not_sign_copies_nothing_and_both_say_why(tmp_path, caplog) -> None:
    """Neither tables nor log. In haAllowedAddresses, as a slave of RocketMQ must be, its log follows."""

    async def act(allowed: str) -> None:
        root = tmp_path / (allowed or "none")
        root.mkdir()
        unsigned = {**guarded(root), "acl_credentials": None, "ha_allowed_addresses": allowed}
        caplog.clear()
        async with opened(root, slave_options=unsigned, **unsigned) as pair:
            assert await asyncio.to_thread(outcomes, pair.master.address) == ["0", "refused", "refused", "refused"]
            await until(lambda: "No accessKey is configured" in caplog.text)
            if allowed:
                await pair.same()
            else:
                await until(lambda: "nobody at 127.0.0.1 has proven to be a broker" in caplog.text)
                assert pair.follower.store.log.end == 0
            assert "orders" not in pair.follower.topics.table

    for allowed in ("", "10.0.0.1, 127.0.0.*"):
        asyncio.run(asyncio.wait_for(act(allowed), PATIENCE))


def test_only_addresses_of_the_list_copy_the_log_where_there_are_no_accounts(tmp_path, caplog) -> None:
    """A list that cannot be read stops the start, before anything is touched."""

    async def act() -> None:
        async with opened(tmp_path, ha_allowed_addresses="10.0.0.1") as pair:
            await asyncio.to_thread(exchange, pair.master.address, [send()])
            await until(lambda: "127.0.0.1 is not in haAllowedAddresses" in caplog.text)
            assert pair.follower.store.log.end == 0

    asyncio.run(asyncio.wait_for(act(), PATIENCE))
    table, store = options(tmp_path / "other", tmp_path)
    with pytest.raises(ConfigError, match=r"haAllowedAddresses: .*10\.0\.0\.300"):
        asyncio.run(start_broker(table.replace(acl_enable=False, ha_allowed_addresses="10.0.0.300"), store))
    assert not (tmp_path / "other").exists()


def test_a_brokers_questions_to_others_are_signed(tmp_path) -> None:
    """About staged transactions: a broker that signs is answered, one that does not hears why it is not."""

    async def act() -> None:
        namesrv = await start_namesrv(NamesrvOptions(listen_port=0, kv_config_path=str(tmp_path / "kv.json")))
        table = BrokerOptions(broker_name="b", listen_port=0, namesrv_addr=namesrv.address, **guarded(tmp_path))
        broker = await start_broker(table, options(tmp_path, tmp_path)[1])
        found = []
        for credentials in (Credentials("account-broker", Secret(SECRET)), None):
            peers = BrokerPeers([namesrv.address], credentials=credentials)
            answer = asyncio.get_running_loop().create_future()
            peers.ask("b", StateOf("t1@b"), answer.set_result)
            found.append(await asyncio.wait_for(answer, PATIENCE))
            await peers.close()
        await broker.close()
        await namesrv.close()
        assert not isinstance(found[0], NoAnswer) or "AclException" not in found[0].why
        assert "No accessKey is configured" in str(found[1])

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


def test_credentials_that_cannot_be_read_stop_the_start(tmp_path) -> None:
    """With the file's name, and without what is in it."""
    table = guarded(tmp_path)
    (tmp_path / "tools.yml").write_text(f"secretKey: {SECRET}\n")
    with pytest.raises(ConfigError, match=r"tools\.yml.*accessKey of the file is missing") as caught:
        asyncio.run(start_broker(BrokerOptions(listen_port=0, **table), options(tmp_path, tmp_path)[1]))
    assert SECRET not in str(caught.value)


def test_a_transport_signs_each_request_anew_and_leaves_the_callers_fields_alone(tmp_path) -> None:
    """Also those without an answer."""

    async def act() -> None:
        broker = await start_broker(
            BrokerOptions(listen_port=0, broker_name="b", **guarded(tmp_path)), options(tmp_path, tmp_path)[1]
        )
        nothing: dict[str, str] = {}
        transport = Transport(
            lambda _address, _asked: None, lambda _address: None, lambda _address: None,
            Credentials("account-broker", Secret(SECRET)),
        )  # fmt: skip
        for _ in range(2):
            asked = Command(RequestCode.GET_BROKER_CONFIG, ext=nothing)
            assert (await transport.call(broker.address, asked, PATIENCE)).code == 0
        sent = send()
        await transport.send_oneway(broker.address, sent)
        await until(lambda: broker._broker.topics.get("orders") and broker._broker.lookup.max_offset("orders", 0) == 1)
        assert nothing == {}
        await transport.close()
        await broker.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))


# ---------------------------------------------------------------- accounts over the wire

ADMIN = "accounts:\n- accessKey: account-admin\n  secretKey: 12345678-admin\n  admin: true\n"


def asked_by(key: str, secret: str, code: RequestCode, header: Header | None = None) -> Command:
    command = request(code, header)
    sign(command, Credentials(key, Secret(secret)))
    return command


def test_accounts_are_changed_over_the_wire_and_the_next_request_is_judged_by_them(tmp_path, caplog) -> None:
    """Made, shown with its data version, and taken away; the answer comes when the file is on the disk."""
    main = tmp_path / "plain_acl.yml"
    main.write_text(ADMIN)
    put = headers.PutAccountHeader(access_key="account-one", secret_key=SECRET, topic_perms="orders=PUB")

    async def act() -> None:
        broker = await start_broker(*options(tmp_path, main))

        async def admin(code: RequestCode, header: Header | None = None, key: str = "account-admin") -> Command:
            secret = SECRET if key == "account-one" else "12345678-admin"
            (answer,) = await asyncio.to_thread(exchange, broker.address, [asked_by(key, secret, code, header)])
            return answer

        try:
            assert (await admin(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, put)).code == 0
            assert await asyncio.to_thread(outcomes, broker.address) == ["0", "refused", "refused", "refused"]
            assert "account-one" in main.read_text()
            told = headers.AclVersionReplyHeader.from_ext((await admin(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)).ext)
            assert (told.broker_addr, told.broker_name) == (broker.address, "b")
            versions = bodies.acl_versions_of(told.all_acl_file_version.encode())
            assert versions[str(main)].counter == 1
            assert bodies.data_version_of(told.version.encode()) == versions[str(main)]
            shown = await admin(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
            assert SECRET.encode() in shown.body
            assert [one.access_key for one in bodies.acl_view_of(shown.body).accounts] == [
                "account-admin",
                "account-one",
            ]
            for code in (RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_INFO):
                refused = await admin(code, key="account-one")
                assert "Need admin permission" in (refused.remark or "")
            drop = headers.DropAccountHeader(access_key="account-one")
            assert (await admin(RequestCode.DELETE_ACL_CONFIG, drop)).code == 0
            assert await asyncio.to_thread(outcomes, broker.address) == ["refused"] * 4
            again = await admin(RequestCode.DELETE_ACL_CONFIG, drop)
            assert again.code == ResponseCode.DELETE_ACL_CONFIG_FAILED
            assert "deleted failed. org.apache.rocketmq.acl.common.AclException: there is no account" in again.remark
            # From a white list nobody has proven to know a secret: none is told.
            white = headers.PutWhiteHeader(global_white_addrs="127.0.0.1")
            assert (await admin(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white)).code == 0
            (unsigned,) = await asyncio.to_thread(
                exchange, broker.address, [request(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)]
            )
            assert b"account-admin" in unsigned.body
            assert b"12345678-admin" not in unsigned.body
        finally:
            await broker.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))
    assert SECRET not in caplog.text
    assert "12345678-admin" not in caplog.text


def test_without_access_control_requests_about_accounts_are_refused_with_the_reason(tmp_path) -> None:
    """RocketMQ answers two of them never, and the others with an error that has no text."""
    put = headers.PutAccountHeader(access_key="account-one", secret_key=SECRET)
    asked = [
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, put, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),
        (RequestCode.DELETE_ACL_CONFIG, headers.DropAccountHeader(access_key="account-one"), ResponseCode.DELETE_ACL_CONFIG_FAILED),
        (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, headers.PutWhiteHeader(global_white_addrs="*"), ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED),
        (RequestCode.GET_BROKER_CLUSTER_ACL_INFO, None, ResponseCode.SERVICE_NOT_AVAILABLE),
        (RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, None, ResponseCode.SERVICE_NOT_AVAILABLE),
    ]  # fmt: skip

    async def act() -> None:
        table, store = options(tmp_path, tmp_path)
        broker = await start_broker(table.replace(acl_enable=False), store)
        requests = [request(code, header) for code, header, _ in asked]
        answers = await asyncio.to_thread(exchange, broker.address, requests)
        assert [answer.code for answer in answers] == [code for _, _, code in asked]
        assert all("start it with aclEnable=true" in (answer.remark or "") for answer in answers)
        assert all(SECRET not in (answer.remark or "") for answer in answers)
        await broker.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))
