"""Foreign clients that sign at a port with TLS: who has TLS does both at once, who has none is served where plain text is.

At a broker of ours, and in `make test-all` at RocketMQ's with the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metaq.admin import Admin
from tests.accounts import ACCOUNTS, ADMIN, USER
from tests.certificates import Authority
from tests.differential import foreign
from tests.differential.program import ForeignError, ForeignProgram
from tests.interop import golang
from tests.interop.driver import DriverError, ForeignClient, cpp_client, java_client
from tests.interop.servers import MetaqServer, RocketmqServer, Server
from tests.interop.signing import exchanged
from tests.support import eventually

pytestmark = pytest.mark.interop


class Guarded(NamedTuple):
    """A broker with accounts and TLS, and how our clients connect to it."""

    server: Server
    tls: dict[str, Any]


def _running(folder: Path, peer: str, mode: str) -> Iterator[Guarded]:
    authority = Authority(folder)
    shown, file = authority.issue("server"), folder / "tls.properties"
    file.write_text(
        f"tls.test.mode.enable=false\ntls.server.certPath={shown.cert}\ntls.server.keyPath={shown.key}\n"
        f"tls.server.need.client.auth=none\ntls.client.authServer=true\ntls.client.trustCertPath={authority.cert}\n"
    )
    accounts = folder / "conf" / "plain_acl.yml"
    server: Server
    if peer == "metaq":
        accounts.parent.mkdir()
        options = ["aclEnable=true", f"aclPath={accounts}", f"tls.config.file={file}", f"tls.server.mode={mode}"]
        server = MetaqServer(folder, options=options)
    else:
        jvm = [f"-Dtls.config.file={file}", f"-Dtls.server.mode={mode}"]
        server = RocketmqServer(folder, options=["aclEnable=true"], jvm=jvm)
    accounts.write_text(ACCOUNTS)
    tls = {"tls": True, "ca": str(authority.cert)}
    server.start()
    try:
        with Admin(server.namesrv, **ADMIN, **tls) as admin:
            eventually(lambda: admin.list_brokers(), what="the broker's registration")
        yield Guarded(server, tls)
    finally:
        server.stop()


BOTH = ["metaq", pytest.param("rocketmq", marks=pytest.mark.all)]


@pytest.fixture(scope="module", params=BOTH)
def enforcing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from _running(tmp_path_factory.mktemp("enforcing"), request.param, "enforcing")


@pytest.fixture(scope="module", params=BOTH)
def permissive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    yield from _running(tmp_path_factory.mktemp("permissive"), request.param, "permissive")


@pytest.fixture
def go(tmp_path: Path) -> Iterator[ForeignClient]:
    """The newest Go client."""
    client = ForeignClient([str(golang.driver_with_tls())], tmp_path)
    yield client
    client.close()


@pytest.fixture
def cpp(tmp_path: Path) -> Iterator[ForeignClient]:
    client = cpp_client(tmp_path)
    yield client
    client.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ForeignProgram]:
    program = foreign.node(tmp_path)
    yield program
    program.close()


def test_java_signs_and_encrypts(enforcing: Guarded, tmp_path: Path) -> None:
    java = java_client(tmp_path, "-Dtls.enable=true")
    try:
        exchanged(java, enforcing.server, "of-java", ("sync", "async", "oneway", "batch"), ours=enforcing.tls)
    finally:
        java.close()


def test_go_signs_and_encrypts(enforcing: Guarded, go: ForeignClient) -> None:
    exchanged(go, enforcing.server, "of-go", ("sync",), ours=enforcing.tls, theirs={"tls": True})


def _account(server: Server, **more: Any) -> dict[str, Any]:
    """How the Node client is told where to go, and as whom."""
    options = {"accessKey": USER["access_key"], "secretKey": USER["secret_key"], **more}
    return {"namesrv": server.namesrv, "options": options}


def test_clients_with_tls_and_without_share_a_permissive_port(
    permissive: Guarded, go: ForeignClient, cpp: ForeignClient, node: ForeignProgram
) -> None:
    """Go encrypts, C++ and Node cannot; each receives what all three have sent."""
    server = permissive.server
    with Admin(server.namesrv, **ADMIN, **permissive.tls) as admin:
        admin.create_topic("mixed", queues=2)
    go.producer("go", server.namesrv, **USER, tls=True)
    cpp.producer("cpp", server.namesrv, **USER)
    node.call("producer", name="node", group="node", **_account(server))
    go.send("go", "mixed", ["from go"])
    cpp.send("cpp", "mixed", ["from cpp"])
    node.call("send", name="node", topic="mixed", body="from node")
    wanted = ["from cpp", "from go", "from node"]
    go.consumer("by-go", server.namesrv, "by-go", {"mixed": "*"}, **USER, tls=True)
    cpp.consumer("by-cpp", server.namesrv, "by-cpp", {"mixed": "*"}, **USER)
    node.when("by-node", "consume", lambda _event: {"status": "ok"})
    node.call("push", name="by-node", group="by-node", topics={"mixed": "*"}, **_account(server))
    for client, name in ((go, "by-go"), (cpp, "by-cpp")):
        assert sorted(event["body"] for event in client.wait(name, 3)) == wanted
    node.wait_for(lambda: len(node.events("by-node", "consume")) >= 3, lambda: "the three messages")
    got = [event["messages"][0]["body"] for event in node.events("by-node", "consume")]
    assert sorted(got) == wanted
    go.shutdown_all()
    cpp.shutdown_all()


def test_node_has_no_tls_and_gets_nothing_from_an_enforcing_port(enforcing: Guarded, node: ForeignProgram) -> None:
    """Its connection to the name server ends; nothing of its is stored."""
    server = enforcing.server
    with Admin(server.namesrv, **ADMIN, **enforcing.tls) as admin:
        admin.create_topic("not-for-node", queues=1)
        node.call("producer", name="node", group="node", **_account(server, retryTimesWhenSendFailed=0))
        with pytest.raises(ForeignError, match=r"ECONNRESET|closed"):
            node.call("send", name="node", topic="not-for-node", body="never")
        assert admin.describe_topic("not-for-node").messages == 0


@pytest.mark.all  # it looks for a route for a minute
def test_cpp_has_no_tls_and_gets_nothing_from_an_enforcing_port(enforcing: Guarded, cpp: ForeignClient) -> None:
    server = enforcing.server
    with Admin(server.namesrv, **ADMIN, **enforcing.tls) as admin:
        admin.create_topic("not-for-cpp", queues=1)
        cpp.producer("cpp", server.namesrv, **USER)
        with pytest.raises(DriverError, match="No route info of this topic"):
            cpp.send("cpp", "not-for-cpp", ["never"])
        assert admin.describe_topic("not-for-cpp").messages == 0
