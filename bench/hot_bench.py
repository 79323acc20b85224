"""Nanoseconds per row of the compiled extension's paths, for the native module and its pure-Python fallback.

    python bench/hot_bench.py            # both, about ten seconds
    python bench/hot_bench.py native     # one of them
    python bench/hot_bench.py --quick    # a smoke run

Each figure is the best of several rounds: the machine is shared, and the fastest round is the one least disturbed.
"""

import argparse
import importlib
import itertools
import json
import struct
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from metaq.broker.log.admit import SLOW_PROPERTIES
from metaq.model import StoredMessage
from metaq.model.acl.secret import Credentials, Secret
from metaq.model.filters.sql import compile_sql
from metaq.wire.command import decode, encode
from metaq.wire.record import encode_batch, encode_record
from metaq.wire.signing import sign

TOPIC = b"orders"
HOST = bytes.fromhex("7f00000100002a9f")
PEER = bytes.fromhex("7f0000010000de4e")
PREFIX = "7F00000128E55FFD2B27"
NOW_MS = 1_795_226_546_516
WHO = Credentials("bench-account", Secret("a secret of an account"))
QUICK = False


def best_ns(work: Callable[[], None], rows: int, rounds: int = 25) -> float:
    work()
    times = []
    for _ in range(3 if QUICK else rounds):
        started = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - started)
    return min(times) / rows


def send_frame(code: int, body: bytes, opaque: int, properties: str) -> bytes:
    ext = {
        "a": "producers", "b": TOPIC.decode(), "c": "TBW102", "d": "4", "e": str(opaque % 4), "f": "0", "g": str(NOW_MS),
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "true" if code == 320 else "false",
    }  # fmt: skip
    head = json.dumps(
        {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque,
         "serializeTypeCurrentRPC": "JSON", "version": 409},
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body


def signed_frame(frame: bytes) -> bytes:
    """The same request, signed by WHO."""
    command = decode(frame[4:])
    sign(command, WHO)
    return encode(command)


def end_frame(opaque: int, slot: int, log_offset: int, message_id: str) -> bytes:
    ext = {
        "commitLogOffset": str(log_offset), "commitOrRollback": "8", "fromTransactionCheck": "false",
        "msgId": message_id, "producerGroup": "producers", "tranStateTableOffset": str(slot),
    }  # fmt: skip
    head = json.dumps(
        {"code": 37, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 409},
        separators=(",", ":"),
    ).encode()
    return struct.pack(">ii", 4 + len(head), len(head)) + head


def back_frame(opaque: int, log_offset: int) -> bytes:
    ext = {
        "delayLevel": "0", "group": "consumers", "maxReconsumeTimes": "16", "offset": str(log_offset),
        "originMsgId": f"{PREFIX}{opaque:012X}", "originTopic": TOPIC.decode(), "unitMode": "false",
    }  # fmt: skip
    head = json.dumps(
        {"code": 36, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 409},
        separators=(",", ":"),
    ).encode()
    return struct.pack(">ii", 4 + len(head), len(head)) + head


class Bench:
    """Tails over plain memory, large enough for one round and attached afresh for the next."""

    def __init__(self, hot: ModuleType) -> None:
        self.hot = hot
        self.log_bytes = bytearray(96 << 20)
        self.queue_bytes = [bytearray(20 * 300_000) for _ in range(4)]
        self.index_bytes = bytearray(40 + 4 * 5_000_000 + 20 * 2_000_000)
        self.ids = itertools.count(1_000_000 << 16)

    def fresh(self) -> None:
        hot = self.hot
        self.log = hot.LogTail(HOST, b"DefaultCluster", 4 << 20)
        self.log.attach(self.log_bytes, 0, len(self.log_bytes), 0)
        self.queues = [hot.QueueTail(TOPIC, number) for number in range(4)]
        for queue, units in zip(self.queues, self.queue_bytes, strict=True):
            queue.attach(units, 0, 300_000)
        self.index_bytes[:40] = bytes(40)
        self.index = hot.IndexTail()
        self.index.attach(self.index_bytes, 5_000_000, 2_000_000)
        self.gates = {TOPIC: hot.TopicGate(TOPIC, self.queues, 4 << 20, SLOW_PROPERTIES)}

    def properties(self) -> str:
        return f"UNIQ_KEY\x01{PREFIX}{next(self.ids):012X}\x02WAIT\x01true\x02TAGS\x01TagA"

    def rows(self, frames: list[bytes], messages: int, again: int, key: Any = None) -> float:
        """scan + append + take of one read event, per message; `key`: and the verification of their signatures."""
        hot, data = self.hot, bytearray(b"".join(frames))
        table = hot.FrameTable(16 << 20, signed=key is not None)
        replies, outcome = hot.Replies(b"DefaultRegion", True), hot.AppendOutcome()

        def work() -> None:
            self.fresh()
            log, index, gates = self.log, self.index, self.gates
            for _ in range(again):
                table.scan(data, 0, len(data))
                assert key is None or hot.signed_rows(table, 0, len(table), key) == len(table)
                hot.append(table, 0, len(table), gates, log, index, NOW_MS, PEER, replies, outcome)
                replies.take()
            assert outcome.stop == 0

        return best_ns(work, messages * again)

    def single(self, body_bytes: int, frames: int = 64, *, signed: bool = False) -> float:
        body = b"x" * body_bytes
        sent = [send_frame(310, body, opaque, self.properties()) for opaque in range(frames)]
        key = None
        if signed:
            sent = [signed_frame(frame) for frame in sent]
            key = self.hot.SignKey(WHO.access_key.encode(), WHO.secret_key.reveal().encode())
        return self.rows(sent, frames, 4 if QUICK else 640 // frames, key)

    def levels(self) -> Any:
        """A gate for four delay levels, which begin anew."""
        delays = self.hot.DelayGate(b"SCHEDULE_TOPIC_XXXX", 4)
        for level, units in enumerate(self.queue_bytes, 1):
            queue = self.hot.QueueTail(b"SCHEDULE_TOPIC_XXXX", level - 1)
            queue.attach(units, 0, 300_000)
            delays.open(level, queue, 10_000)
        return delays

    def delayed(self, body_bytes: int, count: int = 64) -> float:
        """Sends with a delay level, 64 frames a read, per message."""
        hot, body = self.hot, b"x" * body_bytes
        sent = [
            send_frame(310, body, opaque, f"{self.properties()}\x02DELAY\x01{1 + opaque % 4}")
            for opaque in range(count)
        ]
        data, again = bytearray(b"".join(sent)), 4 if QUICK else 10
        table, replies, outcome = hot.FrameTable(16 << 20), hot.Replies(b"DefaultRegion", True), hot.AppendOutcome()

        def work() -> None:
            self.fresh()
            gate = hot.TopicGate(TOPIC, self.queues, 4 << 20, SLOW_PROPERTIES, False, None, self.levels())
            for _ in range(again):
                table.scan(data, 0, len(data))
                hot.append(table, 0, len(table), {TOPIC: gate}, self.log, self.index, NOW_MS, PEER, replies, outcome)
                replies.take()
            assert outcome.stop == 0

        return best_ns(work, count * again)

    def given_back(self, body_bytes: int, count: int = 64) -> float:
        """Messages that consumers give back, 64 frames a read, per message."""
        hot, body = self.hot, b"x" * body_bytes
        sent = bytearray(b"".join(send_frame(310, body, opaque, self.properties()) for opaque in range(count)))
        table, replies, outcome = hot.FrameTable(16 << 20), hot.Replies(b"DefaultRegion", True), hot.AppendOutcome()
        backs, again = bytearray(), 4 if QUICK else 10

        def work() -> None:
            nonlocal backs
            self.fresh()
            delays = self.levels()
            table.scan(sent, 0, len(sent))
            hot.append(table, 0, count, self.gates, self.log, self.index, NOW_MS, PEER, replies, outcome)
            size = self.log.end // count
            backs = backs or bytearray(b"".join(back_frame(number, number * size) for number in range(count)))
            for _ in range(again):
                table.scan(backs, 0, len(backs))
                for row in range(count):
                    _, place, level, most, _, _ = table.back(row)
                    hot.give_back(
                        self.log, self.index, delays, place, b"%RETRY%consumers", 0, most, level, NOW_MS, outcome
                    )
                    replies.add_done(row, False)
                    assert outcome.messages == 1
                replies.take()

        return best_ns(work, count * again)

    def batch(self, body_bytes: int, entries: int = 100) -> float:
        body = encode_batch([(0, b"x" * body_bytes, self.properties().encode()) for _ in range(entries)])
        return self.rows([send_frame(320, body, 0, "WAIT\x01true")], entries, 4 if QUICK else 40)

    def puts(self, body_bytes: int, lines: int = 64) -> float:
        """A run of puts of MetaQ 1.x, per message."""
        hot, body = self.hot, b"x" * body_bytes
        data = b"".join(b"put %b %d %d 0 %d\r\n%b" % (TOPIC, n % 4, body_bytes, n, body) for n in range(lines))
        units = 20_000
        places = [bytearray(8 * units) for _ in range(4)]
        replies, outcome = hot.Replies(b"", False), hot.AppendOutcome()

        def work() -> None:
            self.fresh()
            tails = [hot.PositionTail() for _ in self.queues]
            for tail, memory in zip(tails, places, strict=True):
                tail.attach(memory, 0, units)
            gates = {TOPIC: hot.PartitionGate(TOPIC, self.queues, tails, 4 << 20, 1)}
            for _ in range(again):
                hot.put_lines(data, 0, gates, self.log, 1 << 60, lines, NOW_MS, PEER, replies, outcome, [])
                replies.take()
            assert outcome.messages == lines

        again = 4 if QUICK else 10
        return best_ns(work, lines * again)

    def records(self, count: int, body_bytes: int) -> bytes:
        found, offset = [], 0
        for number in range(count):
            found.append(encode_record(
                topic=TOPIC, queue_id=1, queue_offset=number, log_offset=offset, flag=0, sys_flag=0, born_ms=NOW_MS,
                born_host=PEER, store_ms=NOW_MS, store_host=HOST, reconsume_times=0, prepared_offset=0,
                body=b"x" * body_bytes, properties=self.properties().encode(),
            ))  # fmt: skip
            offset += len(found[-1])
        return b"".join(found)

    def pull(self, body_bytes: int, tags: frozenset[int] | None = None) -> float:
        hot, data = self.hot, self.records(3200, body_bytes)
        wanted = None if tags is None else hot.Filter(tags)
        size = len(data) // 3200
        units = b"".join(struct.pack(">qiq", number * size, size, 2598919) for number in range(3200))

        def work() -> None:
            for start in range(0, 3200, 32):
                chosen = hot.select(units, 0, start, min(start + 800, 3200), wanted, 32, 262_144, 0, len(data))
                hot.gather(chosen, data, 0)

        return best_ns(work, 100)

    def look(self, expression: str, passing: int) -> float:
        """One message looked at by a condition on its properties, of which so many in 3 200 pass."""
        hot, data = self.hot, self.records(3200, 100)
        wanted = hot.Filter((), hot.Condition(compile_sql(expression)))
        size = len(data) // 3200
        units = b"".join(struct.pack(">qiq", number * size, size, 2598919) for number in range(3200))
        taken = 0

        def work() -> None:
            nonlocal taken
            taken, place = 0, 0
            while place < 3200:
                chosen = hot.select(
                    units, 0, place, min(place + 800, 3200), wanted, 800, 1 << 20, 0, len(data), data, 0
                )
                taken, place = taken + chosen.count, chosen.next_offset

        nanoseconds = best_ns(work, 3200)
        assert taken == passing
        return nanoseconds

    def decode(self, body_bytes: int, columns: bool) -> float:
        hot, data, rows = self.hot, self.records(5000, body_bytes), 5000

        def work() -> None:
            if columns:
                hot.decode_columns(data, 0, len(data))
            else:
                hot.decode_records(data, 0, len(data), StoredMessage, "broker-a", 0, rows)

        return best_ns(work, rows, 10)

    def deliver(self, body_bytes: int, rows: int = 128) -> float:
        """Copies of delayed records, per message."""
        hot, schedule, found, units = self.hot, b"SCHEDULE_TOPIC_XXXX", [], []
        for number in range(rows):
            text = f"{self.properties()}\x02DELAY\x011\x02REAL_TOPIC\x01{TOPIC.decode()}\x02REAL_QID\x01{number % 4}"
            found.append(encode_record(
                topic=schedule, queue_id=0, queue_offset=number, log_offset=number, flag=0, sys_flag=0, born_ms=NOW_MS,
                born_host=PEER, store_ms=NOW_MS, store_host=HOST, reconsume_times=0, prepared_offset=0,
                body=b"x" * body_bytes, properties=text.encode(),
            ))  # fmt: skip
            units.append(struct.pack(">qiq", number, len(found[-1]), NOW_MS))
        records, places, outcome = b"".join(found), b"".join(units), hot.AppendOutcome()

        def work() -> None:
            self.fresh()
            for _ in range(5):
                hot.deliver(records, places, 0, rows, schedule, 0, self.gates, self.log, self.index, NOW_MS, outcome)
            assert outcome.stop == 0

        return best_ns(work, 5 * rows)

    def expand(self, body_bytes: int, rows: int = 100) -> float:
        """A chunk of a staged transaction to its queue, per message."""
        hot, outcome = self.hot, self.hot.AppendOutcome()
        entries = [(0, b"x" * body_bytes, self.properties().encode()) for _ in range(rows)]
        record = encode_record(
            topic=b"rmq_sys_METAQ_STAGE", queue_id=0, queue_offset=0, log_offset=0, flag=0, sys_flag=0, born_ms=NOW_MS,
            born_host=PEER, store_ms=NOW_MS, store_host=HOST, reconsume_times=0, prepared_offset=0,
            body=encode_batch(entries), properties=b"REAL_TOPIC\x01%b\x02REAL_QID\x011" % TOPIC,
        )  # fmt: skip

        def work() -> None:
            self.fresh()
            for _ in range(5):
                hot.expand(record, 0, 0, self.gates, self.log, self.index, whole=True, now_ms=NOW_MS, outcome=outcome)
            assert outcome.stop == 0

        return best_ns(work, 5 * rows)

    def transactions(self, body_bytes: int, count: int = 64) -> float:
        """Half messages, 64 frames a read, and their commits, per transaction."""
        hot, body, ended = self.hot, b"x" * body_bytes, list[int]()
        text = "\x02TRAN_MSG\x01true\x02PGROUP\x01producers"
        texts = [self.properties() + text for _ in range(count)]
        halves = [send_frame(310, body, opaque, text) for opaque, text in enumerate(texts)]
        gate = hot.TransactionGate(
            b"WAIT\x01true\x02TAGS\x01d", 100, lambda slot: slot >= len(ended), lambda slot, _: ended.append(slot)
        )
        units, more_units = bytearray(20 * 10_000), bytearray(20 * 10_000)
        table, replies, outcome = hot.FrameTable(16 << 20), hot.Replies(b"DefaultRegion", True), hot.AppendOutcome()

        def run(data: bytearray) -> None:
            table.scan(data, 0, len(data))
            hot.append(table, 0, len(table), self.gates, self.log, self.index, NOW_MS, PEER, replies, outcome)
            replies.take()
            assert outcome.stop == 0

        def fresh() -> None:
            self.fresh()
            ended.clear()
            half, op = hot.QueueTail(b"HALF", 0), hot.QueueTail(b"OP", 0)
            half.attach(units, 0, 10_000)
            op.attach(more_units, 0, 10_000)
            gate.half, gate.op = hot.TopicGate(b"HALF", [half], 1), hot.TopicGate(b"OP", [op], 1)
            self.gates = {TOPIC: hot.TopicGate(TOPIC, self.queues, 4 << 20, SLOW_PROPERTIES, False, gate)}

        fresh()
        sent, events = bytearray(b"".join(halves)), list[bytearray]()
        for _ in range(4 if QUICK else 10):
            before = self.log.end
            run(sent)
            size = (self.log.end - before) // count
            first = len(ended)
            commits = bytearray(b"".join(
                end_frame(opaque, first + opaque, before + opaque * size, text[9:41]) for opaque, text in enumerate(texts)
            ))  # fmt: skip
            run(commits)
            events += sent, commits

        def work() -> None:
            fresh()
            for data in events:
                run(data)

        return best_ns(work, count * len(events) // 2)

    def scan_records(self, body_bytes: int) -> float:
        data = self.records(5000, body_bytes)
        return best_ns(lambda: self.hot.scan_records(data, 0, len(data), 0, 10_000, True), 5000, 10)

    def add_message(self) -> float:
        prefix, body = f"{PREFIX}{next(self.ids):012X}"[:28].encode(), b"x" * 100

        def work() -> None:
            batch = self.hot.Batch(prefix)
            for _ in range(1000):
                batch.add_message(body, b"TagA", None)
            batch.take()

        return best_ns(work, 1000)


def figures(bench: Bench) -> dict[str, float]:
    return {
        "send 100 B, 64 frames a read": bench.single(100),
        "send 1 KB, 64 frames a read": bench.single(1024),
        "send 100 B, 1 frame a read": bench.single(100, frames=1),
        "signed send 100 B, 64 frames a read": bench.single(100, signed=True),
        "signed send 1 KB, 64 frames a read": bench.single(1024, signed=True),
        "batch of 100 x 100 B, a message": bench.batch(100),
        "batch of 100 x 1 KB, a message": bench.batch(1024),
        "put 100 B of MetaQ 1.x, 64 lines a read": bench.puts(100),
        "put 1 KB of MetaQ 1.x, 64 lines a read": bench.puts(1024),
        "pull of 32 x 100 B, a pull": bench.pull(100),
        "pull of 32 x 100 B by tag, a pull": bench.pull(100, frozenset({2598919, 1})),
        "a message looked at by a condition": bench.look("TAGS = 'x' OR WAIT = FALSE AND amount > 7", 0),
        "decode 100 B to objects, a record": bench.decode(100, columns=False),
        "decode 1 KB to objects, a record": bench.decode(1024, columns=False),
        "decode 100 B to columns, a record": bench.decode(100, columns=True),
        "decode 1 KB to columns, a record": bench.decode(1024, columns=True),
        "recover 100 B, a record": bench.scan_records(100),
        "deliver delayed 100 B, 128 a run": bench.deliver(100),
        "expand a chunk of 100 x 100 B, a message": bench.expand(100),
        "expand a chunk of 3 x 100 B, a message": bench.expand(100, 3),
        "half message and commit, 100 B, 64 frames a read": bench.transactions(100),
        "delayed send 100 B, 64 frames a read": bench.delayed(100),
        "given back 100 B, 64 frames a read": bench.given_back(100),
        "producer add 100 B, a message": bench.add_message(),
    }


def main() -> None:
    global QUICK  # noqa: PLW0603  one switch of a script
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=["native", "plain"])
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, not how fast")
    chosen = parser.parse_args()
    QUICK = chosen.quick
    results: dict[str, dict[str, float]] = {}
    for label, name in (("native", "_native"), ("plain", "fallback")):
        if chosen.which not in {None, label}:
            continue
        try:
            module = importlib.import_module(f"metaq.wire.hot.{name}")
        except ImportError as error:
            print(f"{label}: not built ({error})")
            continue
        results[label] = figures(Bench(module))
    print(f"{'nanoseconds':36}" + "".join(f"{label:>12}" for label in results))
    for line in next(iter(results.values()), {}):
        print(f"{line:36}" + "".join(f"{found[line]:12,.0f}" for found in results.values()))


if __name__ == "__main__":
    main()
