"""The audit logs of a broker and a name server that run: who did what, and what was refused."""

from __future__ import annotations

import pathlib
import socket

import metaq
from metaq.admin import Admin
from metaq.model.acl.secret import Credentials, Secret
from metaq.model.audit import AuditRecord
from metaq.testing import EmbeddedBroker
from metaq.wire.audit import audit_record_of
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from metaq.wire.signing import sign
from tests.support import PATIENCE, eventually

SECRET = "s3cr3t-of-alice"


def lines(folder: pathlib.Path, name: str) -> list[AuditRecord]:
    path = folder / name
    return [audit_record_of(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def ask(address: str, *commands: Command) -> list[Command]:
    host, _, port = address.rpartition(":")
    answers, inbox = list[Command](), Connection()
    with socket.create_connection((host, int(port)), PATIENCE) as link:
        for command in commands:
            link.sendall(encode(command))
            while (answer := inbox.next_command()) is None:
                data = link.recv(65536)
                assert data, "the connection ended"
                inbox.receive_data(data)
            answers.append(answer)
    return answers


def test_what_was_done_and_what_was_refused_is_in_files(tmp_path: pathlib.Path) -> None:
    with EmbeddedBroker(tmp_path / "store") as server:
        with Admin(server.namesrv) as admin:
            admin.create_topic("orders", queues=3)
            admin.set_topic_order("orders")
            admin.set_quota("account", "alice", "requestsPerSecond=5")
            admin.change_broker_options(server.broker, {"fileReservedTime": "48", "deleteWhen": "05"})
            admin.change_name_server_options({"logLevel": "info"})
        group = request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"G"}')
        signed = request(RequestCode.GET_ROUTEINFO_BY_TOPIC)  # of name servers
        signed.ext = {"secretKey": SECRET}
        sign(signed, Credentials("alice", Secret(SECRET)))
        signature = signed.ext["Signature"]
        ask(server.broker, group, signed)
        broker = server.data / "audit"
        done = eventually(lambda: found if len(found := lines(broker, "audit.log")) >= 4 else None)
        by_name = {record.request: record for record in done}
        created = by_name["UPDATE_AND_CREATE_TOPIC"]
        assert (created.topic, created.code, created.outcome) == ("orders", 17, "done")
        assert created.values["writeQueueNums"] == "3"
        assert created.address.startswith("127.0.0.1:")
        assert by_name["SET_QUOTA"].values == {"kind": "account", "name": "alice", "limits": "requestsPerSecond=5"}
        assert by_name["UPDATE_AND_CREATE_SUBSCRIPTIONGROUP"].group == "G"
        assert by_name["UPDATE_BROKER_CONFIG"].values == {"fileReservedTime": "48", "deleteWhen": "05"}
        (refused,) = eventually(lambda: lines(broker, "refused.log"))
        assert (refused.code, refused.account, refused.reason) == (105, "alice", "NOT_SUPPORTED")
        eventually(
            lambda: (
                [
                    (record.request, record.values.get("logLevel"))
                    for record in lines(server.data / "namesrv" / "audit", "audit.log")
                ]
                == [("PUT_KV_CONFIG", None), ("UPDATE_NAMESRV_CONFIG", "info")]
            )
        )
    texts = b"".join(path.read_bytes() for path in server.data.rglob("audit/*"))
    assert SECRET.encode() not in texts
    assert signature.encode() not in texts


def test_without_the_log_there_are_no_files(tmp_path: pathlib.Path) -> None:
    options = {"auditLogEnable": "false"}
    with EmbeddedBroker(tmp_path / "store", options=options) as server, Admin(server.namesrv) as admin:
        admin.create_topic("orders")
    assert not (server.data / "audit").exists()


def test_lines_go_to_a_topic_too(tmp_path: pathlib.Path) -> None:
    options = {"auditLogTopic": "audit-trail"}
    with EmbeddedBroker(tmp_path / "store", options=options) as server, Admin(server.namesrv) as admin:
        admin.create_topic("orders")
        with metaq.Reader(server.namesrv, "audit-trail", start="earliest") as reader:
            message = next(iter(reader))
    record = audit_record_of(message.body)
    assert (record.request, record.topic, record.outcome) == ("UPDATE_AND_CREATE_TOPIC", "orders", "done")
