"""A whole broker with access control, over sockets."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from metaq.app.broker import start_broker
from metaq.errors import ConfigError
from metaq.model.acl.secret import Credentials, Secret
from metaq.options import BrokerOptions, StoreOptions
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request
from metaq.wire.signing import sign
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
