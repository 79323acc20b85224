"""A name server and broker in one socket, scripted: holds records in memory and misbehaves on request."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from typing import Self

from metaq.model.message import host_bytes
from metaq.model.queue import MessageQueue
from metaq.model.route import BrokerData, QueueData, Route
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, decode, encode, reply
from metaq.wire.headers import OffsetReplyHeader, PullReplyHeader
from metaq.wire.record import encode_record

HOST = host_bytes("127.0.0.1", 10911)


def stored(queue: MessageQueue, offset: int, body: bytes, properties: bytes, store_ms: int) -> bytes:
    return encode_record(
        topic=queue.topic.encode(), queue_id=queue.queue_id, queue_offset=offset, log_offset=offset * 300, flag=0,
        sys_flag=0, born_ms=store_ms - 5, born_host=HOST, store_ms=store_ms, store_host=HOST, reconsume_times=0,
        prepared_offset=0, body=body, properties=properties,
    )  # fmt: skip


class FakeQueue:
    def __init__(self) -> None:
        self.first = 0
        self.records: list[bytes] = []
        self.times: list[int] = []

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def nearest(self, moment: int) -> int:
        """As every RocketMQ: the message stored *closest* to the moment, the newest one for any later; 0 if empty."""
        closest = min(range(len(self.times)), key=lambda i: abs(self.times[i] - moment), default=-self.first)
        return self.first + closest


class FakeCluster:
    """`messages_max` is the cap of one pull: 32 as a RocketMQ, more as ours. `on_pull(number)` may raise to break off."""

    def __init__(self, messages_max: int = 32) -> None:
        self.messages_max = messages_max
        self.queues: dict[MessageQueue, FakeQueue] = {}
        self.progress: dict[tuple[str, MessageQueue], int] = {}
        self.asked: list[int] = []
        self.pulls = 0
        self.on_pull: Callable[[int], None] = lambda number: None
        self.lock = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while len(size := self.rfile.read(4)) == 4:
                    try:
                        answer = outer.answer(decode(self.rfile.read(int.from_bytes(size, "big"))))
                    except ConnectionError:
                        return
                    self.wfile.write(encode(answer))

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def put(
        self, topic: str, queue_id: int, bodies_: list[bytes], store_ms: int = 1_700_000_000_000, properties: str = ""
    ) -> None:
        queue = MessageQueue(topic, "broker-a", queue_id)
        with self.lock:
            kept = self.queues.setdefault(queue, FakeQueue())
            for body in bodies_:
                text = (
                    properties or f"UNIQ_KEY\x01{hash((topic, queue_id)) & 0xFFFFFFFF:08X}{kept.end:024X}\x02TAGS\x01t"
                )
                kept.records.append(stored(queue, kept.end, body, text.encode(), store_ms))
                kept.times.append(store_ms)

    def expire(self, topic: str, queue_id: int, count: int) -> None:
        """The oldest messages leave the log."""
        with self.lock:
            kept = self.queues[MessageQueue(topic, "broker-a", queue_id)]
            del kept.records[:count], kept.times[:count]
            kept.first += count

    def answer(self, command: Command) -> Command:
        ext = command.ext
        self.asked.append(command.code)
        with self.lock:
            if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return reply(command, body=bodies.topic_list(sorted({queue.topic for queue in self.queues})))
            if command.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
                return reply(command, body=bodies.topic_list(["DefaultCluster", "broker-a"]))
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(command, ext["topic"])
            queue = MessageQueue(ext["topic"], "broker-a", int(ext["queueId"]))
            kept = self.queues[queue]
            if command.code == RequestCode.GET_MAX_OFFSET:
                return reply(command, header=OffsetReplyHeader(offset=kept.end))
            if command.code == RequestCode.GET_MIN_OFFSET:
                return reply(command, header=OffsetReplyHeader(offset=kept.first))
            if command.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return reply(command, header=OffsetReplyHeader(offset=kept.nearest(int(ext["timestamp"]))))
            if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                self.progress[ext["consumerGroup"], queue] = int(ext["commitOffset"])
                return reply(command)
            assert command.code == RequestCode.PULL_MESSAGE
            self.pulls += 1
            self.on_pull(self.pulls)
            return self._pull(command, kept)

    def _route(self, command: Command, topic: str) -> Command:
        count = sum(queue.topic == topic for queue in self.queues)
        if not count:
            return reply(command, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        broker = BrokerData("c", "broker-a", {0: self.address})
        return reply(command, body=bodies.route(Route(topic, (QueueData("broker-a", count, count, 6),), (broker,))))

    def _pull(self, command: Command, kept: FakeQueue) -> Command:
        offset, count = int(command.ext["queueOffset"]), int(command.ext["maxMsgNums"])

        def header(then: int) -> PullReplyHeader:
            return PullReplyHeader(next_offset=then, min_offset=kept.first, max_offset=kept.end)

        if offset < kept.first or offset > kept.end:
            moved = kept.first if offset < kept.first else kept.end
            return reply(command, ResponseCode.PULL_OFFSET_MOVED, header(moved))
        if offset == kept.end:
            return reply(command, ResponseCode.PULL_NOT_FOUND, header(offset))
        some = kept.records[offset - kept.first :][: min(count, self.messages_max)]
        return reply(command, header=header(offset + len(some)), body=b"".join(some))
