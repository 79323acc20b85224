"""Signed requests between us and others: RocketMQ's tools and foreign clients at a broker of ours, our clients at RocketMQ's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.admin.traces import TraceNotFound
from metaq.client.shared.direct_links import WISHES
from metaq.errors import AccessDenied
from tests.accounts import ACCOUNTS as OF_CLIENTS
from tests.accounts import ADMIN, USER
from tests.differential import foreign
from tests.differential import program as foreign_program
from tests.interop import golang
from tests.interop.driver import ForeignClient, cpp_client
from tests.interop.servers import CLUSTER, MetaqServer, RocketmqServer, Server, mqadmin
from tests.interop.signing import WRONG, exchanged
from tests.support import PATIENCE, eventually

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


# ---------------------------------------------------------------- clients, of us and of others


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaqServer]:
    """A broker of ours with RocketMQ's file of accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "plain_acl.yml").write_text(OF_CLIENTS)
    server = MetaqServer(folder, options=["aclEnable=true", f"aclPath={folder / 'plain_acl.yml'}"])
    server.start()
    yield server
    server.stop()


def test_java_signs(java: ForeignClient, guarded: MetaqServer) -> None:
    """Client 4.9.8 with its AclClientRPCHook."""
    exchanged(java, guarded, "of-java", ("sync", "async", "oneway", "batch"))


def test_go_signs(guarded: MetaqServer, tmp_path: Path) -> None:
    client = ForeignClient([str(golang.driver())], tmp_path)
    try:
        exchanged(client, guarded, "of-go", ("sync",))
    finally:
        client.close()


def test_cpp_signs(guarded: MetaqServer, tmp_path: Path) -> None:
    client = cpp_client(tmp_path)
    try:
        exchanged(client, guarded, "of-cpp", ("sync", "oneway"))
    finally:
        client.close()


def test_node_signs(guarded: MetaqServer, tmp_path: Path) -> None:
    """Client ali-ons, which adds a field of its own and signs that, too."""
    program = foreign.node(tmp_path)
    options = {"accessKey": USER["access_key"], "secretKey": USER["secret_key"]}
    reach = {"namesrv": guarded.namesrv, "options": options}
    try:
        with Admin(guarded.namesrv, **ADMIN) as admin:
            admin.create_topic("of-node", queues=1)
        program.call("producer", name="p", group="p", **reach)
        program.call("send", name="p", topic="of-node", body="hello")
        program.when("c", "consume", lambda _event: {"status": "ok"})
        program.call("push", name="c", group="g-of-node", topics={"of-node": "*"}, **reach)
        program.wait_for(lambda: program.events("c", "consume"), lambda: "the message")
        wrong = {**reach, "options": {**options, "secretKey": "another-secret", "retryTimesWhenSendFailed": 0}}
        program.call("producer", name="w", group="w", **wrong)
        with pytest.raises(foreign_program.ForeignError):
            program.call("send", name="w", topic="of-node", body="never")
    finally:
        program.close()


def test_our_client_signs_as_a_rocketmq_verifies(tmp_path: Path) -> None:
    """By the direct link, in batches, pulls, a group with its retry topic, look-ups by key, administration; and its refusals."""
    conf = tmp_path / "rocketmq" / "conf"
    server = RocketmqServer(tmp_path / "rocketmq", options=["aclEnable=true"])
    (conf / "plain_acl.yml").write_text(OF_CLIENTS)
    server.start()
    try:
        with Admin(server.namesrv, **ADMIN) as admin:
            eventually(lambda: admin.list_brokers(), what="the broker's registration")
            admin.create_topic("orders", queues=2)
            _exchange_ours(server, admin)
    finally:
        server.stop()


def _exchange_ours(server: RocketmqServer, admin: Admin) -> None:
    with metaq.Producer(server.namesrv, timeout=PATIENCE, **USER) as producer:
        for number in range(WISHES + 1):
            producer.send("orders", b"%d" % number, tag="\u00fc", keys=[f"k{number}"])
        eventually(lambda: producer._core.links.ready, what="a direct link")
        producer.send("orders", b"direct")
        producer.send("orders", b"direct too", keys=["k-direct"], properties={"p": "%"})
        producer.send_batch([metaq.Message("orders", b"batched"), metaq.Message("orders", b"batched too")])
        [link] = producer._core.links.ready.values()
        assert not link.retired
    payer = metaq.TransactionProducer(server.namesrv, group="tx", check=lambda _: None, timeout=PATIENCE, **USER)
    with payer, payer.transaction("orders", b"committed"):
        pass
    found, again = [], 0
    with metaq.Consumer(server.namesrv, group="g", topics="orders", start="earliest", **USER) as consumer:
        for message in consumer:
            with message:
                if message.body == b"direct" and not message.reconsume_times:
                    again += 1
                    raise metaq.Later(3)
                found.append(message.body)
            if len(found) == WISHES + 1 + 5:
                break
    assert again == 1
    assert {b"direct", b"direct too", b"batched", b"batched too", b"committed"} <= set(found)
    with pytest.raises(TraceNotFound):  # asked by key (12), which was answered
        admin.message_trace("7F0000010000ABCD00000000000100FF")
    with (
        metaq.Producer(server.namesrv, timeout=PATIENCE, retries=50, **WRONG) as producer,
        pytest.raises(AccessDenied, match="signed as account-user: check its secret key"),
    ):
        producer.send("orders", b"never")
    with (
        metaq.Producer(server.namesrv, timeout=PATIENCE, retries=50) as producer,
        pytest.raises(AccessDenied, match="not signed: give access_key"),
    ):
        producer.send("orders", b"never")
    with Admin(server.namesrv, **USER) as other, pytest.raises(AccessDenied, match="signed as account-user"):
        other.create_topic("others", queues=2)
