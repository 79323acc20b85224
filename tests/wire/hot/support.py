"""Both compiled extension for parametrised tests, the frames they read, and memory for the tails they write."""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from metaq.wire.record import decode_record, encode_record

FALLBACK: ModuleType = importlib.import_module("metaq.wire.hot.fallback")
try:
    NATIVE: ModuleType | None = importlib.import_module("metaq.wire.hot._native")
except ImportError as error:
    NATIVE, WHY_NOT = None, f"the native hot module is not built: {error}"
else:
    WHY_NOT = ""

needs_native = pytest.mark.skipif(NATIVE is None, reason=WHY_NOT)
both = pytest.mark.parametrize(
    "hot", [pytest.param(FALLBACK, id="fallback"), pytest.param(NATIVE, id="native", marks=needs_native)]
)
"""Runs a test over the fallback and the native module as its argument `hot`."""

STORE_HOST = bytes.fromhex("7f00000100002a9f")
BORN_HOST = bytes.fromhex("7f0000010000de4e")
BORN_MS = 1_795_226_546_496
SLOW = (b"DELAY", b"TRAN_MSG", b"RETRY_TOPIC", b"MSG_TYPE")
"""What the broker's gates leave to the slow path."""
STORE_MS = 1_795_226_546_516
UNIQUE_ID = "7F00000128E55FFD2B27676F493F0000"
SCHEDULE, RETRY = b"SCHEDULE_TOPIC_XXXX", b"%RETRY%payers"
TEXT = f"UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1 k2"
"""The properties of a message that has all that is looked up."""

GOLDEN_RECORD = bytes.fromhex(
    "000000bfdaa320a73610a68600000001000000000000000000000000000000000000000000000000"
    "000001a1fbd731407f0000010000de4e000001a1fbd731547f00000100002a9f0000000000000000"
    "000000000000000568656c6c6f06546f706963410059"
    "610135024b455953016b31206b3202554e49515f4b455901374630303030303132384535354646443242323736373646343933463030303002"
    "434c55535445520144656661756c74436c757374657202544147530154616741"
)
"""Appendix A.1: one record of a captured commit log."""

GOLDEN_SEND = (
    rb'{"code":310,"extFields":{"a":"PG","b":"TopicA","c":"TBW102","d":"4","e":"1","f":"0","g":"1795226546496","h":"0",'
    rb'"i":"a\u00015\u0002KEYS\u0001k1 k2\u0002UNIQ_KEY\u00017F00000128E55FFD2B27676F493F0000\u0002WAIT\u0001true'
    rb'\u0002TAGS\u0001TagA","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":8,'
    rb'"serializeTypeCurrentRPC":"JSON","version":409}'
)
"""Appendix A.8: the header of the send that made a record like it."""

SEND_EXT = {
    "a": "PG", "b": "TopicA", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(BORN_MS), "h": "0",
    "i": f"UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02TAGS\x01TagA", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
PULL_EXT = {
    "consumerGroup": "CG", "topic": "TopicA", "queueId": "3", "queueOffset": "17", "maxMsgNums": "32", "sysFlag": "6",
    "commitOffset": "12", "suspendTimeoutMillis": "15000", "subscription": "TagA || TagB", "subVersion": "1795226548705",
    "expressionType": "TAG",
}  # fmt: skip
ENDING_EXT = {
    "commitLogOffset": "4711", "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": UNIQUE_ID,
    "producerGroup": "payers", "tranStateTableOffset": "7",
}  # fmt: skip


def walled(data: bytes) -> memoryview:
    """A copy that ends where no memory follows: who reads further dies of it, with or without a sanitizer."""
    room = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    wall = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + room
    no_access = 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(mmap.PAGESIZE), no_access) == 0
    found = memoryview(memory)[room - len(data) : room]
    found[:] = data
    return found


def frame(head: bytes, body: bytes = b"", form: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(head) + len(body), form << 24 | len(head)) + head + body


def json_head(code: int, ext: dict[str, Any] | None, *, opaque: int = 8, flag: int = 0) -> bytes:
    tree: dict[str, Any] = {"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 409}
    if ext is not None:
        tree["extFields"] = ext
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()


def binary_head(code: int, ext: dict[str, str], *, opaque: int = 8, flag: int = 0, remark: bytes = b"") -> bytes:
    pairs = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in ext.items()
    )
    return (
        struct.pack(">hBhiii", code, 0, 409, opaque, flag, len(remark)) + remark + struct.pack(">i", len(pairs)) + pairs
    )


def send_ext(**changes: Any) -> dict[str, Any]:
    """The ext fields of a 310; a change to None leaves the field out."""
    return {name: value for name, value in {**SEND_EXT, **changes}.items() if value is not None}


def send(
    body: bytes = b"hello", *, code: int = 310, opaque: int = 8, flag: int = 0, binary: bool = False, **ext: Any
) -> bytes:
    """A whole send frame."""
    fields = send_ext(**ext)
    if code == 10:
        fields = {LONG_NAMES[name]: value for name, value in fields.items()}
    if binary:
        return frame(binary_head(code, fields, opaque=opaque, flag=flag), body, 1)
    return frame(json_head(code, fields, opaque=opaque, flag=flag), body)


def scanned(hot: ModuleType, data: Any, *, frame_bytes_max: int = 1 << 24, rows_max: int = 4096) -> tuple[Any, int]:
    """A table over the frames of `data`, and how many bytes it took."""
    table = hot.FrameTable(frame_bytes_max, rows_max)
    return table, table.scan(data, 0, len(data))


class Tails:
    """A log file, two queues and an index file in plain memory, and one append call over them."""

    def __init__(
        self, hot: ModuleType, *, log_bytes: int = 1 << 20, units: int = 1000, slots: int = 100, entries: int = 5000,
        topic: bytes = b"TopicA", queues: int = 2, cluster: bytes = b"DefaultCluster", store_host: bytes = STORE_HOST,
        body_bytes_max: int = 1 << 22, region: bytes = b"DefaultRegion",
    ) -> None:  # fmt: skip
        self.hot = hot
        self.log_bytes = bytearray(log_bytes)
        self.queue_bytes = [bytearray(20 * units) for _ in range(queues)]
        self.index_bytes = bytearray(40 + 4 * slots + 20 * entries)
        self.log = hot.LogTail(store_host, cluster, 1 << 22)
        self.log.attach(self.log_bytes, 0, log_bytes, 0)
        self.queues = [hot.QueueTail(topic, number) for number in range(queues)]
        for queue, memory in zip(self.queues, self.queue_bytes, strict=True):
            queue.attach(memory, 0, units)
        self.index = hot.IndexTail()
        self.index.attach(self.index_bytes, slots, entries)
        self.topic, self.body_bytes_max = topic, body_bytes_max
        self.gates = {topic: hot.TopicGate(topic, self.queues, body_bytes_max, SLOW)}
        self.replies = hot.Replies(region, True)
        self.outcome = hot.AppendOutcome()
        self.table = hot.FrameTable(1 << 24)

    def append(
        self, data: Any, *, now_ms: int = STORE_MS, born_host: bytes = BORN_HOST, wait_is_slow: bool = False,
        index: bool = True, row: int = 0,
    ) -> Any:  # fmt: skip
        """Scan `data` and append its rows. Returns the outcome."""
        self.table.scan(data, 0, len(data))
        gate = self.hot.TopicGate(self.topic, self.queues, self.body_bytes_max, SLOW, wait_is_slow)
        self.hot.append(
            self.table, row, len(self.table), {self.topic: gate}, self.log, self.index if index else None, now_ms,
            born_host, self.replies, self.outcome,
        )  # fmt: skip
        return self.outcome

    def take(self, data: Any, *, now_ms: int = STORE_MS, index: bool = True) -> list[tuple[int, int]]:
        """Append all rows by way of the gates, those that are not plain left out. Returns these, and what stopped each."""
        self.table.scan(data, 0, len(data))
        left, row, end = [], 0, len(self.table)
        while row < end:
            self.hot.append(
                self.table, row, end, self.gates, self.log, self.index if index else None, now_ms, BORN_HOST, self.replies,
                self.outcome,
            )  # fmt: skip
            row = self.outcome.row
            if row < end:
                left.append((row, self.outcome.stop))
                row += 1
        return left

    def written(self) -> bytes:
        return bytes(self.log_bytes[: self.log.end])

    def everything(self) -> tuple[Any, ...]:
        """All that an append leaves behind, for comparing the two modules."""
        return (
            bytes(self.log_bytes), [bytes(memory) for memory in self.queue_bytes], bytes(self.index_bytes),
            [(queue.next_offset, queue.log_end) for queue in self.queues], self.index.count, self.index.end_log,
            self.log.end, self.log.store_ms, self.replies.take(), self.outcome.stop,
            self.outcome.row, self.outcome.messages, self.outcome.size, self.outcome.needed,
            [queue.queue_id for queue in self.outcome.touched],
        )  # fmt: skip


class LevelTails(Tails):
    """The tails of a topic and of the queues of delay levels: as many as there are delays, the levels above have none yet."""

    def __init__(
        self, hot: ModuleType, *, delays_ms: Sequence[int], levels: int, level_units: int = 1000, **more: Any
    ) -> None:
        super().__init__(hot, **more)
        self.level_bytes = [bytearray(20 * level_units) for _ in delays_ms]
        self.levels = [hot.QueueTail(SCHEDULE, number) for number in range(len(delays_ms))]
        self.delays = hot.DelayGate(SCHEDULE, levels)
        for number, (queue, memory) in enumerate(zip(self.levels, self.level_bytes, strict=True)):
            queue.attach(memory, 0, level_units)
            if number < levels:
                self.delays.open(number + 1, queue, delays_ms[number])

    def due(self, level: int) -> list[int]:
        """What the units of a level hold."""
        queue = self.levels[level - 1]
        return [unit[2] for unit in struct.iter_unpack(">qiq", self.level_bytes[level - 1][: 20 * queue.next_offset])]

    def put(self, text: str | bytes = TEXT, times: int = 0, **more: Any) -> int:
        """A record of the topic's first queue. Returns its place."""
        facts = {
            "topic": self.topic, "queue_id": 0, "queue_offset": 0, "flag": 5, "sys_flag": 1, "born_ms": BORN_MS,
            "born_host": BORN_HOST, "store_ms": STORE_MS, "store_host": STORE_HOST, "body": b"hello", "prepared_offset": 0,
        } | more  # fmt: skip
        properties = text if isinstance(text, bytes) else text.encode()
        place = self.log.end
        record = encode_record(log_offset=place, reconsume_times=times, properties=properties, **facts)
        self.log_bytes[place : place + len(record)] = record
        self.log.end = place + len(record)
        return place

    def back(
        self, place: int, *, topic: bytes = RETRY, queue_id: int = 0, retries_max: int = 16, level: int = 0,
        now_ms: int = STORE_MS, index: bool = True,
    ) -> tuple[int, int, int, int] | None:  # fmt: skip
        """Give a record back."""
        return self.hot.give_back(
            self.log, self.index if index else None, self.delays, place, topic, queue_id, retries_max, level, now_ms,
            self.outcome,
        )  # fmt: skip

    def everything(self) -> tuple[Any, ...]:
        ends = [(queue.next_offset, queue.log_end) for queue in self.levels]
        return (*super().everything(), [bytes(memory) for memory in self.level_bytes], ends)


def replies_of(data: bytes) -> list[dict[str, Any]]:
    """The JSON answers in a buffer of frames."""
    found = []
    while data:
        length, head_bytes = struct.unpack_from(">ii", data)
        assert head_bytes == length - 4, "answers to sends have no body"
        found.append(json.loads(data[8 : 8 + head_bytes]))
        data = data[4 + length :]
    return found


def stored(tails):
    """The records that the log holds."""
    found, at = [], 0
    while at < tails.log.end:
        found.append(decode_record(tails.log_bytes, at))
        assert found[-1].log_offset == at
        at += int.from_bytes(tails.log_bytes[at : at + 4], "big")
    return found


def units(tails, queue):
    """The units of one of its queues: log offset, size, tags code."""
    return list(struct.iter_unpack(">qiq", tails.queue_bytes[queue][: 20 * tails.queues[queue].next_offset]))
