"""The dearest legal request of each code, 200 times over one connection: a bystander is served meanwhile.

What a bystander waits for is counted in CPU time of the broker's event loop, so that a busy machine fails nobody. The broker goes on
with the other client's requests while the bystander itself waits for a processor, to send its request or to read the answer: that
time is not the broker's, and is taken off.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from metaq import Producer
from metaq.admin import Admin
from metaq.model import ConsumerView, GroupConfig, Heartbeat, MessageQueue, QueueLocks
from metaq.model.filters.subscription import subscribe
from metaq.testing import EmbeddedBroker
from metaq.wire import bodies, fastjson, headers
from metaq.wire.codes import RequestCode as Code
from metaq.wire.command import Command, encode, request
from metaq.wire.connection import Connection
from tests.servers.support import open_server, pull_header, send_header
from tests.support import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads CPU times from Linux's /proc")

QUEUES, TOPICS, GROUPS = 2000, 60, 100
TIMES = 200
LOOKS = 40
"""Requests of the bystander."""
CPU_MAX = 0.1
NAME = "broker-a"


def dear(name: str) -> dict[int, tuple[headers.Header | None, bytes]]:
    """Request code → header and body of its dearest legal request. Args: name: the broker's."""
    many = ConsumerView("H", {f"t{number}": subscribe(f"t{number}", "a || b || c") for number in range(1024)})
    groups = tuple(ConsumerView(f"h{number}", {"T": subscribe("T")}) for number in range(GROUPS))
    locks = bodies.queue_locks(
        QueueLocks("G", "c@1", tuple(MessageQueue("wide", name, number) for number in range(9_000)))
    )
    text = " OR ".join(f"a = {number}" for number in range(500))
    check = {
        "clientId": "a",
        "group": "G",
        "subscriptionData": {"topic": "wide", "expressionType": "SQL92", "subString": text},
    }
    wide, group = headers.TopicHeader(topic="wide"), headers.ConsumerGroupHeader(consumer_group="H")
    queue = headers.QueueHeader(topic="wide", queue_id=0)
    return {
        Code.QUERY_MESSAGE: (headers.QueryMessageHeader(topic="wide", key="k", max_messages=64, begin_ms=0, end_ms=2**60), b""),
        Code.GET_ALL_TOPIC_CONFIG: (None, b""),
        Code.GET_BROKER_CONFIG: (None, b""),
        Code.GET_BROKER_RUNTIME_INFO: (None, b""),
        Code.SEARCH_OFFSET_BY_TIMESTAMP: (headers.SearchOffsetHeader(topic="wide", queue_id=0, timestamp=5), b""),
        Code.GET_MAX_OFFSET: (queue, b""),
        Code.GET_MIN_OFFSET: (queue, b""),
        Code.GET_EARLIEST_MSG_STORETIME: (queue, b""),
        Code.HEART_BEAT: (None, bodies.heartbeat(Heartbeat("c@1", (many, *groups), tuple(f"p{n}" for n in range(1000))))),
        Code.GET_CONSUMER_LIST_BY_GROUP: (group, b""),
        Code.LOCK_BATCH_MQ: (None, locks),
        Code.UNLOCK_BATCH_MQ: (None, locks),
        Code.GET_ALL_CONSUMER_OFFSET: (None, b""),
        Code.GET_ALL_DELAY_OFFSET: (None, b""),
        Code.CHECK_CLIENT_CONFIG: (None, json.dumps(check).encode()),
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (None, b""),
        Code.GET_TOPIC_STATS_INFO: (wide, b""),
        Code.GET_CONSUMER_CONNECTION_LIST: (group, b""),
        Code.GET_PRODUCER_CONNECTION_LIST: (headers.ProducerGroupHeader(producer_group="p1"), b""),
        Code.GET_CONSUME_STATS: (headers.ConsumeStatsHeader(consumer_group="G", topic=""), b""),
        Code.INVOKE_BROKER_TO_RESET_OFFSET: (headers.ResetOffsetHeader(group="H", topic="wide", timestamp=5, force=True), b""),
        Code.QUERY_TOPIC_CONSUME_BY_WHO: (wide, b""),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (None, b""),
        Code.QUERY_CONSUME_TIME_SPAN: (headers.TimeSpanHeader(topic="wide", group="G"), b""),
        Code.QUERY_CORRECTION_OFFSET: (headers.CorrectionHeader(topic="wide", group="H"), b""),
        Code.GET_BROKER_CONSUME_STATS: (headers.AllStatsHeader(), b""),
        Code.QUERY_CONSUME_QUEUE: (headers.ConsumeQueueHeader(topic="wide", queue_id=0, index=0, count=2**31 - 1, consumer_group="H"), b""),
        Code.GET_ALL_PRODUCER_INFO: (None, b""),
        Code.PULL_MESSAGE: (pull_header("wide", 0, max_messages=1024), b""),
        Code.LITE_PULL_MESSAGE: (pull_header("wide", 0, max_messages=1024), b""),
        Code.SEND_MESSAGE_V2: (send_header("T"), bytes(60_000)),
        Code.CONSUMER_SEND_MSG_BACK: (headers.SendBackHeader(group="G", offset=0, delay_level=1), b""),
        Code.QUERY_CONSUMER_OFFSET: (headers.QueryOffsetHeader(group="G", topic="wide", queue_id=0), b""),
        Code.UPDATE_CONSUMER_OFFSET: (headers.UpdateOffsetHeader(group="G", topic="wide", queue_id=0, commit_offset=1), b""),
        Code.UPDATE_AND_CREATE_TOPIC: (headers.CreateTopicHeader(topic="wide", read_queues=QUEUES, write_queues=QUEUES, perm=6), b""),
        Code.VIEW_MESSAGE_BY_ID: (headers.ViewMessageHeader(offset=0), b""),
        Code.RELOAD: (None, b""),
        Code.CLONE_GROUP_OFFSET: (headers.CloneOffsetsHeader(source="G", target="H"), b""),
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: (None, b""),
        Code.CLEAN_UNUSED_TOPIC: (None, b""),
        Code.DELETE_EXPIRED_COMMITLOG: (None, b""),
        Code.TRIM_TOPIC: (headers.TrimTopicHeader(topic="wide", before=5, dry_run=True), b""),
        Code.PREVIEW_CLEANING: (None, b""),
        Code.LOG_LINES: (headers.LogLinesHeader(count=500, level="DEBUG"), b""),
        Code.QUOTAS: (None, b""),
        Code.SET_QUOTA: (headers.SetQuotaHeader(kind="client", name="n" * 255, limits="requestsPerSecond=1000000"), b""),
        Code.LIST_STAGED: (headers.ListStagedHeader(), b""),
        Code.REPLICA_STATE: (None, b""),
        Code.IDENTIFY: (None, b""),
        Code.OPTIONS: (None, b""),
        Code.FOLLOW_TABLES: (headers.FollowTablesHeader(), b""),
    }  # fmt: skip


CHEAP = {
    Code.VIEW_BROKER_STATS_DATA: "one entry of a table",
    Code.SEND_MESSAGE: "as 310",
    Code.SEND_BATCH_MESSAGE: "as 310; its cost is that of its bytes",
    Code.SEND_REPLY_MESSAGE: "as 310",
    Code.SEND_REPLY_MESSAGE_V2: "as 310",
    Code.END_TRANSACTION: "one record",
    Code.JOIN_IN_SYNC: "one entry of a table, whose size is limited",
    Code.RESUME_CHECK_HALF_MESSAGE: "one record",
    Code.UNREGISTER_CLIENT: "one entry of a table",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "one entry of a table",
    Code.DELETE_SUBSCRIPTIONGROUP: "one entry of a table",
    Code.DELETE_TOPIC_IN_BROKER: "one topic, by a thread",
    Code.REGISTER_FILTER_SERVER: "always refused",
    Code.REGISTER_MESSAGE_FILTER_CLASS: "always refused",
    Code.STAGE: "one chunk, at most 1 MiB",
    Code.SEAL: "one record",
    Code.DECIDE: "one record",
    Code.APPLY: "delivers in steps",
    Code.STAGED_STATE: "one entry of a table",
    Code.FORGET_STAGED: "one record",
    Code.LIST_BRANCHES: "at most 1000 entries",
    Code.END_BRANCH: "one record",
    Code.CLOSE_PARTITIONS: "one entry of a table",
    Code.STOP: "the first one counts",
    Code.RESTART_BROKER: "the first one counts",
    Code.PROMOTE: "one at a time",
    Code.STEP_DOWN: "one at a time",
    Code.LOG_CHECKSUMS: "at most 16 MiB, read by a thread; 16 requests of all clients wait at most",
    Code.LOG_BYTES: "at most 1 MiB, as 30015",
    Code.REPAIR_LOG: "one at a time",
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "64 wait at most, each for 1024 members' answers",
    Code.GET_CONSUMER_RUNNING_INFO: "one question; as 223",
    Code.CONSUME_MESSAGE_DIRECTLY: "one question; as 223",
    Code.UPDATE_BROKER_CONFIG: "one at a time, by a thread; 64 wait at most",
    Code.UPDATE_AND_CREATE_ACL_CONFIG: "one at a time, by a thread; 1000 of all administrators wait at most",
    Code.DELETE_ACL_CONFIG: "as 50",
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "as 50",
    Code.EXPLAIN_ACCESS: "one judgement",
    Code.GET_BROKER_CLUSTER_ACL_INFO: "an entry for each of at most 1000 files, for administrators only",
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: "the accounts of the files, for administrators only",
}
"""Codes without a dear request → why."""


def test_every_code_is_in_one_of_the_tables(tmp_path):
    """A new one states what it may cost."""
    with open_server(tmp_path) as (_, server):
        served = set(server.handling.handlers)
    assert set(dear(NAME)).isdisjoint(CHEAP)
    assert {int(code) for code in (*dear(NAME), *CHEAP)} == served


class Raw:
    """A connection that sends frames and counts answers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        self._inbox = Connection()

    def ask(self, frame: bytes) -> Command:
        self.socket.sendall(frame)
        while (command := self._inbox.next_command()) is None:
            data = self.socket.recv(1 << 20)
            assert data, "the broker closed the connection"
            self._inbox.receive_data(data)
        return command

    def flood(self, frame: bytes) -> threading.Thread:
        """Send it so often, and read whatever is answered, in threads, until the end of the connection."""

        def send() -> None:
            with contextlib.suppress(OSError):
                for _ in range(TIMES):
                    self.socket.sendall(frame)

        def read() -> None:
            with contextlib.suppress(OSError):
                while self.socket.recv(1 << 20):
                    pass

        threading.Thread(target=read, daemon=True).start()
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        return sending

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def frame_of(code: int, header: headers.Header | None, body: bytes, opaque: int) -> bytes:
    command = request(code, header, body)
    command.opaque, command.version, command.language = opaque, 409, "JAVA"
    return encode(command)


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A broker with a topic of many queues, each with a message, and a group that has progress in all topics."""
    folder: pathlib.Path = tmp_path_factory.mktemp("dear")
    with EmbeddedBroker(folder / "data", options={"brokerName": NAME}) as broker:
        with Admin(broker.namesrv) as admin:
            admin.create_topic("wide", queues=QUEUES)
            for number in range(TOPICS):
                admin.create_topic(f"t{number}", queues=64)
            admin.create_topic("T", queues=1)

        with Producer(broker.namesrv) as producer:
            producer.send("T", b"hello")
        client = Raw(broker.broker)
        opaque = itertools.count(1)
        for group in ("G", "H", *(f"h{number}" for number in range(GROUPS))):
            body = fastjson.dumps(bodies.group_tree(GroupConfig(group)))
            client.ask(frame_of(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, next(opaque)))
        for number in range(QUEUES):
            client.ask(
                frame_of(
                    Code.SEND_MESSAGE_V2, send_header("wide", number, properties={"KEYS": "k"}), b"x", next(opaque)
                )
            )
        for topic, count in (("wide", QUEUES), *((f"t{number}", 64) for number in range(TOPICS))):
            for number in range(0, count, 8):
                header = headers.UpdateOffsetHeader(group="G", topic=topic, queue_id=number, commit_offset=1)
                client.ask(frame_of(Code.UPDATE_CONSUMER_OFFSET, header, b"", next(opaque)))
        client.close()
        yield SimpleNamespace(broker=broker)


def cpu_of(pid: int) -> float:
    """Seconds that the process's main thread, which runs the event loop, has had."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def waits() -> dict[str, float]:
    """Thread of this process → seconds that it was ready and had no processor: whichever it is, it may hold the interpreter's lock."""
    found = {}
    for file in pathlib.Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # it has ended
            found[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return found


def cost_of(ask: Callable[[], object], pid: int) -> float:
    """Seconds of CPU time of the broker's loop from before the request until the answer, less what this process waited for a processor."""
    waited, before = waits(), cpu_of(pid)
    ask()
    cost, now = cpu_of(pid) - before, waits()
    return cost - sum(seconds - waited.get(thread, 0.0) for thread, seconds in now.items())


@pytest.mark.slow
@pytest.mark.parametrize("code", list(dear("")), ids=lambda code: Code(code).name)
def test_a_bystander_is_served_while_one_client_asks_for_much(busy, code):
    """Its share of the loop is a slice, whatever it asks for and however often."""
    header, body = dear(NAME)[code]
    greedy, bystander = Raw(busy.broker.broker), Raw(busy.broker.broker)
    ping = frame_of(Code.GET_MAX_OFFSET, headers.QueueHeader(topic="T", queue_id=0), b"", 1)
    answers: list[Command] = []
    try:
        bystander.ask(ping)
        greedy.flood(frame_of(code, header, body, 7))
        costs = [cost_of(lambda: answers.append(bystander.ask(ping)), busy.broker.pid) for _ in range(LOOKS)]
    finally:
        greedy.close()
        bystander.close()
    assert {answer.code for answer in answers} == {0}
    assert max(costs) < CPU_MAX, sorted(costs)[-5:]
