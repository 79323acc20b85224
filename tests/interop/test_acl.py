"""RocketMQ's own tools sign what they ask, and a broker of ours with RocketMQ's file of accounts judges it as theirs does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.servers import CLUSTER, MetaqServer, RocketmqServer, Server, mqadmin
from tests.support import eventually

pytestmark = pytest.mark.interop

ACCOUNTS = """\
# by hand
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
- accessKey: write-only
  secretKey: 23456789
  defaultTopicPerm: PUB
- accessKey: reads-orders
  secretKey: 34567890
  defaultGroupPerm: SUB
  topicPerms:
  - orders=SUB
"""


class Tools:
    """RocketMQ's tools, which sign what they ask for."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        (folder / "conf").mkdir(parents=True)

    def __call__(self, key: str, secret: str, command: str, *arguments: str) -> str:
        signed = f"accessKey: {key}\nsecretKey: '{secret}'\n" if key else ""
        (self.folder / "conf" / "tools.yml").write_text(signed)
        return mqadmin(self.folder, self.server, command, *arguments)


def test_mqadmin_signs_and_is_judged(tmp_path: Path) -> None:
    """Who may is served; a wrong secret, a missing right and an unsigned request get RocketMQ's exception."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    server = MetaqServer(tmp_path, options=["aclEnable=true", f"aclPath={tmp_path / 'plain_acl.yml'}"])
    asked = Tools(tmp_path / "tools", server)
    server.start()
    try:
        made = asked("administrator", "12345678", "updateTopic", "-b", server.broker, "-t", "orders")
        assert "success" in made
        refused = asked("write-only", "23456789", "updateTopic", "-b", server.broker, "-t", "others")
        assert "AclException" in refused
        assert "Need admin permission" in refused
        send = ("sendMessage", "-t", "orders", "-p", "hello")
        assert "SEND_OK" in asked("write-only", "23456789", *send)
        assert "Check signature failed" in asked("write-only", "23456780", *send)
        assert "No default permission for topic:orders" in asked("reads-orders", "34567890", *send)
        assert "No acl config for nobody-known" in asked("nobody-known", "34567890", *send)
        assert "AclException" in asked("", "", *send)
        status = asked("reads-orders", "34567890", "topicStatus", "-t", "orders")
        rows = [line.split() for line in status.splitlines() if line and not line.startswith("#")]
        assert sum(int(row[3]) - int(row[2]) for row in rows if row[1].isdigit()) >= 1
    finally:
        server.stop()


@pytest.mark.parametrize("ours", [True, False], ids=["metaq", "rocketmq"])
def test_mqadmin_changes_and_shows_accounts(tmp_path: Path, ours: bool) -> None:
    """Each of its five commands, with the same outcome at a broker of ours as at RocketMQ's own, and the file in the end."""
    server: Server
    if ours:
        main = tmp_path / "plain_acl.yml"
        server = MetaqServer(tmp_path, options=["aclEnable=true", f"aclPath={main}"])
    else:
        server = RocketmqServer(tmp_path, options=["aclEnable=true"])
        main = tmp_path / "conf" / "plain_acl.yml"
    main.write_text(ACCOUNTS)
    tools = Tools(tmp_path / "tools", server)

    def asked(command: str, *arguments: str) -> str:
        return tools("administrator", "12345678", command, *arguments)

    server.start()
    try:
        at = ("-b", server.broker)
        assert "success" in asked("updateTopic", *at, "-t", "orders")
        send = ("sendMessage", "-t", "orders", "-p", "hello")
        new, secret = ("-a", "new-account"), "98765432"

        # 1-3: made, in force, and changed where it is
        made = asked(
            "updateAclConfig", *at, *new, "-s", secret, "-t", "orders=SUB,bills=DENY", "-u", "SUB", "-w", "10.0.0.1"
        )
        assert f"create or update plain access config to {server.broker} success" in made
        assert "No default permission for topic:orders" in tools("new-account", secret, *send)
        assert "success" in asked("updateAclConfig", *at, *new, "-s", secret, "-t", "orders=PUB|SUB")
        assert "SEND_OK" in tools("new-account", secret, *send)
        # 4-5: of the whole cluster; another secret
        assert "success" in asked("updateAclConfig", "-c", CLUSTER, *new, "-s", "98765433")
        assert "SEND_OK" in tools("new-account", "98765433", *send)
        assert "Check signature failed" in tools("new-account", secret, *send)
        # 6-9: refused
        for wrong in (
            ("-s", "short"),
            ("-s", secret, "-t", "orders"),
            ("-s", secret, "-g", "G=WHAT"),
            ("-s", secret, "-t", "a=b=c"),
        ):
            assert "CODE: 209" in asked("updateAclConfig", *at, *new, *wrong)
        # 10-11: the versions
        for where in (at, ("-c", CLUSTER)):
            versions = asked("clusterAclConfigVersion", *where)
            assert f"{main}" in versions
            row = next(line for line in versions.splitlines() if str(main) in line).split()
            assert row[:2] == [CLUSTER, row[1]]
            assert row[2] == server.broker
            assert row[4] == "3"
        # 12-13: the accounts
        for where in (at, ("-c", CLUSTER)):
            shown = "".join(asked("getAclConfig", *where).split())
            assert "globalWhiteRemoteAddresses:[]" in shown
            assert "accessKey:new-accountsecretKey:98765433whiteRemoteAddress:10.0.0.1admin:false" in shown
            assert "topicPerms:[orders=PUB|SUB]" in shown
        # 14-16: white lists
        assert "success" in asked("updateGlobalWhiteAddr", *at, "-g", "10.9.*.*,10.8.0.1")
        assert "[10.9.*.*,10.8.0.1]" in "".join(asked("getAclConfig", *at).split())
        assert "success" in asked("updateGlobalWhiteAddr", "-c", CLUSTER, "-g", "10.7.0.1", "-p", str(main))
        assert "CODE: 211" in asked("updateGlobalWhiteAddr", *at, "-g", "10.7.0.1", "-p", "/no/such/file.yml")
        # 17-19: taken away
        assert f"delete plain access config account from {server.broker} success" in asked("deleteAclConfig", *at, *new)
        gone = eventually(lambda: _refused(tools("new-account", "98765433", *send)), what="the end of an account")
        assert "No acl config for new-account" in gone
        assert "CODE: 210" in asked("deleteAclConfig", *at, *new)
        assert "success" in asked("deleteAclConfig", "-c", CLUSTER, "-a", "write-only")
        # 20-21: by whom
        by_reader = [
            tools("reads-orders", "34567890", "updateAclConfig", *at, *new, "-s", secret),
            tools("reads-orders", "34567890", "getAclConfig", *at),
        ]
        if ours:  # RocketMQ does what every account asks for, and tells it every secret
            assert all("Need admin permission" in text for text in by_reader)
            assert "12345678" not in by_reader[1]
            assert "# by hand" in main.read_text()
        text = main.read_text()
        assert "10.7.0.1" in text
        assert "write-only" not in text
    finally:
        server.stop()


def _refused(text: str) -> str:
    return text if "AclException" in text else ""
