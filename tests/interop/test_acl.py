"""RocketMQ's own tools sign what they ask, and a broker of ours with RocketMQ's file of accounts judges it as theirs does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.servers import MetaqServer, mqadmin

pytestmark = pytest.mark.interop

ACCOUNTS = """\
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


def test_mqadmin_signs_and_is_judged(tmp_path: Path) -> None:
    """Who may is served; a wrong secret, a missing right and an unsigned request get RocketMQ's exception."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    server = MetaqServer(tmp_path, options=["aclEnable=true", f"aclPath={tmp_path / 'plain_acl.yml'}"])

    def asked(key: str, secret: str, command: str, *arguments: str) -> str:
        folder = tmp_path / "tools"
        (folder / "conf").mkdir(parents=True, exist_ok=True)
        signed = f"accessKey: {key}\nsecretKey: '{secret}'\n" if key else ""
        (folder / "conf" / "tools.yml").write_text(signed)
        return mqadmin(folder, server, command, *arguments)

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
