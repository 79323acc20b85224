"""TLS with foreign clients and servers: RocketMQ's files of TLS, on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

import metaq
from metaq.errors import MetaqError
from tests.certificates import Authority, Issued
from tests.interop.driver import java_client
from tests.interop.servers import MetaqServer, RocketmqServer
from tests.support import PATIENCE

pytestmark = pytest.mark.interop


def properties(folder: Path, authority: Authority, side: str, shown: Issued) -> Path:
    """RocketMQ's `tls.properties` of a server or client that shows a certificate and verifies the other's."""
    path = folder / f"{side}.properties"
    lines = ["tls.test.mode.enable=false", f"tls.{side}.certPath={shown.cert}", f"tls.{side}.keyPath={shown.key}"]
    lines += [f"tls.{side}.trustCertPath={authority.cert}"]
    lines += [
        "tls.client.authServer=true"
        if side == "client"
        else "tls.server.authClient=true\ntls.server.need.client.auth=require"
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rocketmqs_java_client_sends_and_consumes_with_tls(tmp_path: Path) -> None:
    """Both show certificates, both verify; the name server is ours, too, and takes TLS only."""
    authority = Authority(tmp_path)
    server_file = properties(tmp_path, authority, "server", authority.issue("server"))
    own = authority.issue("broker-as-client")
    options = [
        f"tls.config.file={server_file}", "tls.server.mode=enforcing", f"tls.client.trustCertPath={authority.cert}",
        f"tls.client.certPath={own.cert}", f"tls.client.keyPath={own.key}",
    ]  # fmt: skip
    client_file = properties(tmp_path, authority, "client", authority.issue("java"))
    server = MetaqServer(tmp_path, options=options)
    server.start()
    java = java_client(tmp_path, "-Dtls.enable=true", f"-Dtls.config.file={client_file}")
    try:
        java.producer("p", server.namesrv)
        java.consumer("c", server.namesrv, "tls-group", {"tls": "*"})
        bodies = [f"{number}" for number in range(50)]
        assert {receipt["status"] for receipt in java.send("p", "tls", bodies)} == {"SEND_OK"}
        assert {receipt["status"] for receipt in java.send("p", "tls", ["x" * 300_000])} == {"SEND_OK"}
        got = sorted(event["body"] for event in java.wait("c", 51))
        assert got == sorted([*bodies, "x" * 300_000])
        with pytest.raises(MetaqError), metaq.Producer(server.namesrv, timeout=3.0) as plain:
            plain.send("tls", b"in plain text")
    finally:
        java.close()
        server.stop()


def test_our_client_talks_tls_with_rocketmq(tmp_path: Path) -> None:
    """Its broker and name server want TLS and a certificate; ours verifies theirs by name."""
    authority = Authority(tmp_path)
    server_file = properties(tmp_path, authority, "server", authority.issue("server"))
    own = authority.issue("rocketmq-as-client")
    server_file.write_text(
        server_file.read_text() + f"tls.client.certPath={own.cert}\ntls.client.keyPath={own.key}\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={authority.cert}\n"
    )
    shown = authority.issue("ours")
    folder = tmp_path / "rocketmq"
    folder.mkdir()
    server = RocketmqServer(folder, jvm=[f"-Dtls.config.file={server_file}", "-Dtls.server.mode=enforcing"])
    server.start()
    tls = {"tls": True, "ca": authority.cert, "cert": shown.cert, "key": shown.key}
    try:
        with metaq.Producer(server.namesrv, timeout=PATIENCE, **tls) as producer:
            receipts = [producer.send("tls", b"%d" % number) for number in range(20)]
            producer.send("tls", bytes(300_000))
        assert len({receipt.message_id for receipt in receipts}) == 20
        with metaq.Reader(server.namesrv, "tls", start="earliest", **tls) as reader:
            found = [message.body for _, message in zip(range(21), reader, strict=False)]
        assert sorted(found) == sorted([*(b"%d" % number for number in range(20)), bytes(300_000)])
        with pytest.raises(MetaqError), metaq.Producer(server.namesrv, timeout=3.0) as plain:
            plain.send("tls", b"in plain text")
    finally:
        server.stop()
