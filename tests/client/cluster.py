"""A name server and a broker in one scripted peer: it answers as RocketMQ would, or as a test tells it.

It runs in a thread of its own over `metaq.net`, so that the client under test is the real one down to its sockets.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container
from typing import Self

from metaq.model import BrokerData, ClusterInfo, QueueData, Route
from metaq.net.budget import ListenLimits
from metaq.net.listener import listen
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import LENGTH_BYTES, Command, decode, encode, frame_bytes, reply
from metaq.wire.record import decode_batch, encode_record
from tests.support import PATIENCE

Answer = Callable[[Command], Command | None]


class Session:
    def __init__(self, cluster: FakeCluster, peer) -> None:
        self.cluster, self.peer = cluster, peer
        self.first: int | None = None
        cluster.sessions.append(self)

    def data_received(self, data: memoryview) -> int:
        start = 0
        while (size := frame_bytes(data, start, len(data))) and start + size <= len(data):
            command = decode(bytes(data[start + LENGTH_BYTES : start + size]))
            start += size
            if self.first is None:
                self.first = command.code
            answer = self.cluster.answer(self, command)
            if answer is not None and not command.is_oneway:
                self.peer.write(encode(answer))
        return start

    def frame_needed(self) -> int:
        return 0

    def connection_lost(self, why: str) -> None:
        if self in self.cluster.sessions:
            self.cluster.sessions.remove(self)


class FakeCluster:
    """`topics` maps a topic to its queue count. `script[code]` may answer a request instead of us, or swallow it."""

    def __init__(self, brokers: int = 1) -> None:
        self.topics = {"orders": 4}
        self.sessions: list[Session] = []
        self.accepted = 0
        self.to_broker: list[Session] = []
        """Every connection to a broker, also those that are gone."""
        self.seen: list[Command] = []
        self.script: dict[int, Callable[[Session, Command], Command | None]] = {}
        self.stored: dict[tuple[str, int], list[tuple[int, bytes, bytes]]] = defaultdict(list)
        self.min_offsets: dict[tuple[str, int], int] = defaultdict(int)
        self.committed: dict[tuple[str, int], int] = {}
        self.members: dict[str, set[str]] = defaultdict(set)
        self.broker_names = [f"broker-{letter}" for letter in "abc"[:brokers]]
        self.ports: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _listen(self) -> None:
        def make(port_index: int):
            def session(peer) -> Session:
                self.accepted += 1
                made = Session(self, peer)
                made.broker = port_index
                if port_index < len(self.broker_names):
                    self.to_broker.append(made)
                return made

            return session

        self._listeners = [
            await listen("127.0.0.1", 0, make(index), ListenLimits()) for index in range(len(self.broker_names) + 1)
        ]
        self.ports = [listener.port for listener in self._listeners]

    async def _close(self) -> None:
        for listener in self._listeners:
            await listener.close()

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.ports[-1]}"

    def count(self, code: int) -> int:
        return sum(command.code == code for command in list(self.seen))

    def store(self, *contents: bytes, topic: str = "orders", queue_id: int = 0) -> None:
        """Messages as if a producer had sent them."""
        self.stored[topic, queue_id].extend((0, content, b"") for content in contents)

    def drop_connections(self, *, to_name_server: bool = False) -> None:
        """Every connection to a broker breaks at once, or every one to the name server."""

        def drop() -> None:
            for session in list(self.sessions):
                if (session.broker >= len(self.broker_names)) == to_name_server:
                    session.peer.abort("the test says so")

        self._loop.call_soon_threadsafe(drop)

    def push(self, command: Command) -> None:
        """A request of the broker's own, to every client."""
        self.push_bytes(encode(command))

    def sessions_to_broker(self) -> list[Session]:
        """The connections to brokers that there are now."""
        return [session for session in list(self.sessions) if session.broker < len(self.broker_names)]

    def ask(self, command: Command, brokers: Container[int] = range(100)) -> None:
        """A request of the brokers' own, to every client that is connected to one."""
        data = encode(command)
        self._loop.call_soon_threadsafe(
            lambda: [session.peer.write(data) for session in self.sessions_to_broker() if session.broker in brokers]
        )

    def push_bytes(self, data: bytes) -> None:
        """Several of them, in one piece."""
        self._loop.call_soon_threadsafe(lambda: [session.peer.write(data) for session in self.sessions])

    def answer(self, session: Session, command: Command) -> Command | None:
        self.seen.append(command)
        if command.is_response:
            return None
        if (scripted := self.script.get(command.code)) is not None:
            answer = scripted(session, command)
            if answer is not NotImplemented:
                return answer
        return _HANDLERS.get(command.code, _unknown)(self, session, command)

    def route(self, topic: str) -> Route:
        queues = self.topics[topic]
        return Route(
            topic,
            tuple(QueueData(name, queues, queues, 6) for name in self.broker_names),
            tuple(
                BrokerData("C", name, {0: f"127.0.0.1:{port}"})
                for name, port in zip(self.broker_names, self.ports, strict=False)
            ),
        )


def _route(cluster: FakeCluster, session: Session, command: Command) -> Command:
    topic = command.ext["topic"]
    if topic not in cluster.topics:
        return reply(command, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
    return reply(command, body=bodies.route(cluster.route(topic)))


def _cluster(cluster: FakeCluster, session: Session, command: Command) -> Command:
    brokers = {data.broker: data for data in cluster.route("orders").brokers}
    return reply(command, body=bodies.cluster_info(ClusterInfo(brokers, {"C": tuple(brokers)})))


def _send(cluster: FakeCluster, session: Session, command: Command) -> Command:
    header = headers.SendHeader.from_ext(command.ext)
    entries = (
        decode_batch(command.body) if header.batch else [(header.flag, bytes(command.body), header.properties.encode())]
    )
    log = cluster.stored[header.topic, header.queue_id]
    offset = len(log)
    log.extend(entries)
    ids = ",".join(f"{offset + index:032X}" for index in range(len(entries)))
    said = headers.SendReplyHeader(message_id=ids, queue_id=header.queue_id, queue_offset=offset)
    return reply(command, 0, {**said.to_ext(), "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})


def _ok(cluster: FakeCluster, session: Session, command: Command) -> Command:
    return reply(command)


def _unknown(cluster: FakeCluster, session: Session, command: Command) -> Command:
    return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="no")


def _pull(cluster: FakeCluster, session: Session, command: Command) -> Command:
    """Never held; answers plain, without commits."""
    header = headers.PullHeader.from_ext(command.ext)
    log = cluster.stored[header.topic, header.queue_id]
    low, high, start = cluster.min_offsets[header.topic, header.queue_id], len(log), header.queue_offset
    if header.sys_flag & header.COMMIT_OFFSET:
        cluster.committed[header.topic, header.queue_id] = header.commit_offset
    code, next_offset, body = ResponseCode.PULL_NOT_FOUND, start, b""
    if not low <= start <= high:
        code, next_offset = ResponseCode.PULL_OFFSET_MOVED, low if start < low else high
    elif start < high:
        stop = min(high, start + min(header.max_messages, 32))
        code, next_offset = ResponseCode.SUCCESS, stop
        body = b"".join(
            encode_record(
                topic=header.topic.encode(), queue_id=header.queue_id, queue_offset=offset, log_offset=offset * 1000,
                flag=flag, sys_flag=0, born_ms=1, born_host=bytes(8), store_ms=offset, store_host=bytes(8),
                reconsume_times=0, prepared_offset=0, body=content, properties=properties,
            )
            for offset, (flag, content, properties) in enumerate(log[start:stop], start)
        )  # fmt: skip
    said = headers.PullReplyHeader(next_offset=next_offset, min_offset=low, max_offset=high)
    return reply(command, code, said, body=body)


def _offset(cluster: FakeCluster, session: Session, command: Command) -> Command:
    key = command.ext["topic"], int(command.ext["queueId"])
    if command.code == RequestCode.GET_MIN_OFFSET:
        offset = cluster.min_offsets[key]
    elif command.code == RequestCode.GET_MAX_OFFSET:
        offset = len(cluster.stored[key])
    elif key in cluster.committed:
        offset = cluster.committed[key]
    else:
        return reply(command, ResponseCode.QUERY_NOT_FOUND, remark="no offset")
    return reply(command, 0, headers.OffsetReplyHeader(offset=offset))


def _keep_offset(cluster: FakeCluster, session: Session, command: Command) -> Command:
    header = headers.UpdateOffsetHeader.from_ext(command.ext)
    cluster.committed[header.topic, header.queue_id] = header.commit_offset
    return reply(command)


def _heartbeat(cluster: FakeCluster, session: Session, command: Command) -> Command:
    beat = bodies.heartbeat_of(command.body)
    for consumer in beat.consumers:
        cluster.members[consumer.group].add(beat.client_id)
    return reply(command)


def _members(cluster: FakeCluster, session: Session, command: Command) -> Command:
    ids = cluster.members.get(command.ext["consumerGroup"])
    if not ids:
        return reply(command, ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
    return reply(command, body=bodies.consumer_ids(ids))


_HANDLERS = {
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.GET_MIN_OFFSET: _offset,
    RequestCode.GET_MAX_OFFSET: _offset,
    RequestCode.QUERY_CONSUMER_OFFSET: _offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: _keep_offset,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _members,
    RequestCode.CONSUMER_SEND_MSG_BACK: _ok,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _cluster,
    RequestCode.SEND_MESSAGE_V2: _send,
    RequestCode.SEND_BATCH_MESSAGE: _send,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _ok,
}


def refuse(code: int, remark: str = "refused", times: int = 1_000_000) -> Callable[[Session, Command], object]:
    """A script entry: answer with an error code, the first `times` times."""
    left = [times]

    def script(session: Session, command: Command) -> object:
        if left[0] <= 0:
            return NotImplemented
        left[0] -= 1
        return reply(command, code, remark=remark)

    return script


def swallow(session: Session, command: Command) -> None:
    """A script entry: never answer."""


def slowly(seconds: float) -> Callable[[Session, Command], object]:
    """A script entry: the peer's whole thread is slow."""

    def script(session: Session, command: Command) -> object:
        time.sleep(seconds)
        return NotImplemented

    return script
