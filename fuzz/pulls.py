"""Invariant: whatever a log and its queues hold, and whatever consumers ask for in one read event, among sends or alone, the native
module and its pure-Python fallback answer the same pulls with the same bytes, leave the same ones to others, and keep the same positions;
and a run of pulls is answered as one after the other.

    python -m fuzz.pulls [--seed N] [--rounds N] [--seconds S]

Each round writes records and their units, damages some, opens gates, and feeds read events of pulls and sends, good and damaged,
as a session does: what no gate answers is read for itself, what finds nothing is held and looked at again when its queue has grown.
The log's file and the queues' have not a byte behind them.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from types import ModuleType, SimpleNamespace
from typing import Any

from fuzz.rounds import command, damaged, exactly, mostly, repeat
from tests.wire.hot.support import (
    BORN_HOST,
    BORN_MS,
    FALLBACK,
    NATIVE,
    PULL_EXT,
    SLOW,
    STORE_HOST,
    STORE_MS,
    TEXT,
    binary_head,
    frame,
    send,
)  # fmt: skip

from metaq.model.filters.sql import compile_sql
from metaq.wire.record import encode_record, java_hash

TOPIC, QUEUES = b"TopicA", 3
COMMITS, WAITS, BRINGS = 1, 2, 4
ONEWAY = 2
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
SCAN_UNITS = 800
FOUND, NOT_FOUND = 0, 19
TAGS = (b"TagA", b"TagB", b"")
TAG_LISTS = ((TAGS[0],), (TAGS[1],), TAGS[:2], tuple(b"%d" % number for number in range(20)) + TAGS[:1], ())
EXPRESSIONS = ("TAGS = 'TagA'", "a > 3", "a IS NULL OR b BETWEEN -1 AND 1e3", "KEYS NOT IN ('k1', 'x')")
RECORD_PLACES = (0, 3, 4, 8, 12, 16, 20, 28, 36, 39, 84, 88)
"""Where fields of a record begin, and its SYSFLAG's IPv6 bits."""
NUMBERS = (
    "-1",
    "00",
    "+1",
    "",
    "x",
    "1.5",
    " 1",
    "true",
    str(INT_MAX),
    str(INT_MAX + 1),
    str(LONG_MAX),
    "9" * 30,
    None,
)
TEXTS = ("*", "TagA", "TagA || TagB", "", "\N{SNOWMAN}", '"\\', "\x00\x01\x02", "t" * 1100, None)

Asked = tuple[bytes, int, Any]
"""A pull that is not answered yet: its key, the place that it goes on from, and its facts."""


def seldom(chance: random.Random, usual: Any, *others: Any) -> Any:
    """As `mostly`, for what has many fields: most pulls should have nothing wrong with them."""
    return chance.choice(others) if chance.random() < 1 / 40 else usual


def record_of(chance: random.Random, topic: bytes, queue_id: int, number: int, log_offset: int) -> tuple[bytes, int]:
    """A record of a queue, and the code of its tag."""
    tag = chance.choice(TAGS)
    text = TEXT.replace("TagA", tag.decode()) + mostly(
        chance, "", "\x02a\x015", "\x02RETRY_TOPIC\x01orders", "\x02", "\x02x"
    )
    born_v6, store_v6 = (chance.random() < 0.05 for _ in range(2))
    record = encode_record(
        topic=topic, queue_id=queue_id, queue_offset=number, log_offset=log_offset,
        flag=0, sys_flag=chance.choice((0, 1, 8)) | 0x10 * born_v6 | 0x20 * store_v6, born_ms=BORN_MS, born_host=bytes(20 if born_v6 else 8),
        store_ms=STORE_MS, store_host=bytes(20 if store_v6 else 8), reconsume_times=0, prepared_offset=0,
        body=b"b" * mostly(chance, 5, 0, 900), properties=chance.choice((text.encode(), text.encode(), b"", damaged(chance, text.encode()))),
    )  # fmt: skip
    return record, java_hash(tag) if tag else 0


class Place:
    """The log and the queues of one round, and a path with its gates."""

    def __init__(self, hot: ModuleType, chance: random.Random) -> None:
        self.hot = hot
        self.base = mostly(chance, 0, 1 << 30, 1 << 62)
        # What this process wrote the native module takes for whole; its fallback looks at all of it.
        self.is_old = chance.random() < 0.25
        self.firsts = [mostly(chance, 0, 7, (1 << 60) - 1) for _ in range(QUEUES)]
        log, units = self._written(chance)
        used = max(1, len(log)) + mostly(chance, 9000, 0, 300)
        self.log_bytes = exactly(log + bytes(used - len(log)))
        self.log = hot.LogTail(STORE_HOST, b"DefaultCluster", 1 << 22)
        self.log.attach(self.log_bytes, self.base, used, self.base + len(log))
        self.queue_bytes = list[memoryview]()
        self.queues = list[Any]()
        for number, (first, held) in enumerate(zip(self.firsts, units, strict=True)):
            room = len(held) // 20 + mostly(chance, 50, 0, 1)
            tail = hot.QueueTail(TOPIC, number)
            self.queue_bytes.append(exactly(held + bytes(20 * room - len(held))))
            tail.attach(self.queue_bytes[-1], first, room)
            tail.next_offset, tail.log_end = first + len(held) // 20, self.log.end
            self.queues.append(tail)
        self.consumed = [
            SimpleNamespace(tail=tail, min_offset=first + mostly(chance, 0, 1, 5, -1))
            for first, tail in zip(self.firsts, self.queues, strict=True)
        ]
        self.fresh_from = LONG_MAX if self.is_old else chance.choice((0, self.log.end, self.base + len(log) // 2))
        self.fast_path = hot.PullPath(
            self.log, fresh_from=self.fresh_from, near_bytes=mostly(chance, 1 << 30, 0, 500, -1, LONG_MAX),
            behind_max=mostly(chance, 1000, 0, 2, LONG_MAX), body_bytes_max=mostly(chance, 65_535, 0, 600, LONG_MAX),
            bytes_max=mostly(chance, 262_144, 1, 700, -1, LONG_MAX), count_max=mostly(chance, 32, 2, 0, -1, LONG_MAX),
        )  # fmt: skip
        self.bytes_max = chance.choice((262_144, 700, 1))
        self.filters = [None, None, *(hot.Filter(map(java_hash, tags)) for tags in TAG_LISTS)]
        self.slow_filters = [hot.Filter((), hot.Condition(compile_sql(text))) for text in EXPRESSIONS]
        self.slow_filters.append(hot.Filter((), None, {b"orders": self.slow_filters[1].condition}))
        self.table = hot.FrameTable(mostly(chance, 1 << 24, 300), mostly(chance, 4096, 1, 3))
        gate = hot.TopicGate(TOPIC, self.queues, 1 << 22, SLOW)
        self.topics = {TOPIC: gate}
        self.replies, self.acks = hot.Replies(b"DefaultRegion", True), hot.Replies(b"DefaultRegion", True)
        self.outcome = hot.AppendOutcome()
        self.salt = chance.getrandbits(16)
        self.held = list[Asked]()
        self.answers = list[bytes]()

    def _written(self, chance: random.Random) -> tuple[bytes, list[bytes]]:
        """A log of some records with the units of each queue, and what is wrong with them."""
        log, units = bytearray(), [bytearray() for _ in range(QUEUES)]
        for _ in range(mostly(chance, chance.randrange(25), 60)):
            queue_id = mostly(chance, 1, 0, 2)
            number, place = self.firsts[queue_id] + len(units[queue_id]) // 20, self.base + len(log)
            topic = mostly(chance, TOPIC, TOPIC, b"T", b"T" * 127) if self.is_old else TOPIC
            record, code = record_of(chance, topic, queue_id, number, place)
            size = seldom(chance, len(record), len(record) + 50, len(record) - 1, 91, 0, -1, INT_MAX)
            units[queue_id] += struct.pack(">qiq", seldom(chance, place, -1, 0, place + 1), size, code)
            log += record
        starts = [unit[0] - self.base for unit in struct.iter_unpack(">qiq", b"".join(units))]
        for _ in range(chance.choice((0, 0, 1, 3)) if log and self.is_old else 0):
            start = max(0, mostly(chance, chance.choice(starts), chance.randrange(len(log))))
            at = start + chance.choice((39, 39, *RECORD_PLACES, chance.randrange(200)))
            put = chance.choice(
                (b"\0", b"\x10", b"\x20", b"\x30", b"\xff", b"\x7f\xff", bytes(4), b"\xff" * 8, b"\0\x09")
            )
            log[at : min(len(log), at + len(put))] = put[: max(0, len(log) - at)]
        return bytes(log), [bytes(held) for held in units]

    def filter_of(self, key: bytes, *, slow: bool) -> Any:
        """Which filter pulls of a key have: any, and the same one each time."""
        number = zlib.crc32(key, self.salt) >> 4
        known = self.slow_filters if slow else self.filters
        return known[number % len(known)]

    def open(self, key: bytes, queue_id: int, version: int) -> None:
        """A gate for pulls like this one, for three keys of four; some are wrong about the queue."""
        number = zlib.crc32(key, self.salt)
        if number % 4 and key not in self.fast_path.gates:
            queue = self.consumed[(number if number % 61 == 0 else queue_id) % QUEUES]
            wanted = self.filter_of(key, slow=False)
            self.fast_path.gates[key] = self.hot.PullGate(queue, wanted, version, number % 3, (key, queue_id))

    def take_over(self) -> tuple[Any, ...]:
        """What the path counted, and the positions it kept."""
        answered, moved = self.fast_path.take()
        return answered, [(gate.owner, gate.committed) for gate in moved]

    def look(self, asked: Asked) -> tuple[Any, ...]:
        """Read for a pull that no gate answers. It is answered, or held with the place that must be there first."""
        key, offset, facts = asked
        opaque, binary, queue_id, count_max, can_wait = facts
        if not 0 <= queue_id < QUEUES:
            return ("no queue",)
        tail, first = self.queues[queue_id], self.firsts[queue_id]
        low, high = self.consumed[queue_id].min_offset, tail.next_offset
        place = offset
        if max(low, first) <= offset < high:
            wanted = self.filter_of(key, slow=zlib.crc32(key, self.salt) % 2 == 0)
            stop = min(high, offset + max(SCAN_UNITS, count_max))
            found: tuple[Any, ...] = self.hot.read(
                self.queue_bytes[queue_id], first, offset, stop, wanted, count_max, self.bytes_max, self.base, self.log.end,
                self.log_bytes, self.base, 300, tail, self.fresh_from,
            )  # fmt: skip
            count, size, place, start, _, body, _ = found
            if count:
                body = self.log_bytes[start - self.base :][:size] if body is None else body
                self.replies.add_pull(opaque, binary, FOUND, "FOUND", 0, place, low, high, body)
                return found
        if can_wait and place == high:
            self.held.append((key, place, facts))
            return ("held", place)
        self.replies.add_pull(opaque, binary, NOT_FOUND, "", 0, place, low, high, b"")
        return ("nothing", place)

    def wake(self) -> list[tuple[Any, ...]]:
        """Look at those again that wait for what has come."""
        held, self.held = self.held, []
        found = list[tuple[Any, ...]]()
        for asked in held:
            if self.queues[asked[2][2]].next_offset > asked[1]:
                found.append(self.look(asked))
            else:
                self.held.append(asked)
        return found

    def left(self) -> tuple[Any, ...]:
        """All that the round leaves behind."""
        ends = [(queue.next_offset, queue.log_end) for queue in self.queues]
        return bytes(self.log_bytes), [bytes(held) for held in self.queue_bytes], ends, self.log.end, self.held

    def read_event(self, data: memoryview, reply_bytes_max: int, *, singly: bool) -> list[Any]:
        """What came, row by row as a session takes them. Returns what it says of each, the same for runs and singly."""
        table, told, row = self.table, list[Any](), 0
        told.append(table.scan(data, 0, len(data)))
        rows = len(table)
        while row < rows:
            kind = table.kind(row)
            if kind == self.hot.KIND_PULL:
                done = self.hot.answer_pulls(
                    table,
                    row,
                    row + 1 if singly else rows,
                    self.fast_path,
                    self.replies,
                    LONG_MAX if singly else reply_bytes_max,
                )
                told += [("answered", number) for number in range(row, done)]
                if done == row and (singly or len(self.replies) < reply_bytes_max):
                    told.append(self.judged(row))
                    done += 1
                row = done
            elif kind in {self.hot.KIND_SEND, self.hot.KIND_BATCH}:
                self.hot.append(
                    table, row, rows, self.topics, self.log, None, STORE_MS, BORN_HOST, self.acks, self.outcome
                )
                told += [("sent", self.outcome.row, self.outcome.stop), *self.wake()]
                row = max(row + 1, self.outcome.row)
            else:
                told.append(("other", table.code(row), table.opaque(row)))
                row += 1
            if len(self.replies) >= reply_bytes_max:
                self.answers.append(self.replies.take())
        self.answers.append(self.replies.take())
        table.release()
        return told

    def judged(self, row: int) -> tuple[Any, ...]:
        """A pull that the path leaves: its gate is opened for the next ones like it, and it is looked at."""
        table, key = self.table, self.hot.pull_key(self.table, row)
        _, _, queue_id, offset, count_max, flags, _, _, _, version, _, _ = facts = table.pull(row)
        if table.flag(row) & ONEWAY:
            return key, facts
        self.open(key, queue_id, version if zlib.crc32(key, self.salt) % 3 else LONG_MAX)
        asked = table.opaque(row), table.binary(row), queue_id, max(1, min(count_max, 32)), flags & WAITS != 0
        return key, facts, self.look((key, offset, asked))


def pull(chance: random.Random, place: Place) -> bytes:
    """A pull's frame, most often one that finds something."""
    queue_id = seldom(chance, 1, 0, 2, -1, 3)
    first = place.firsts[queue_id % QUEUES]
    ext: dict[str, Any] = {
        **PULL_EXT, "queueId": str(queue_id), "queueOffset": str(first + seldom(chance, chance.choice((0, 0, 0, 1, 1, 2, 4, 8)), -1, 12, 40, LONG_MAX - first)),
        "maxMsgNums": str(seldom(chance, 32, 1, 2, 0, -1, INT_MAX)), "sysFlag": str(seldom(chance, chance.choice((0, 1, 2, 3, 3, 6, 7)), 0x7FFF_FFF8, 15)),
        "commitOffset": str(seldom(chance, chance.randrange(9), -1, LONG_MAX, -LONG_MAX - 1)), "subscription": seldom(chance, "*", *TEXTS),
        "subVersion": str(seldom(chance, 7, 6, 8, LONG_MAX, -1)), "expressionType": seldom(chance, "TAG", "SQL92", "", None),
        "consumerGroup": seldom(chance, "CG", "other", "g" * 255), "topic": seldom(chance, "TopicA", "TopicB", ""),
    }  # fmt: skip
    if chance.random() < 0.03:
        ext["maxMsgBytes"] = chance.choice(("0", "-1", "100", "x"))
    if chance.random() < 0.1:
        ext[chance.choice(sorted(ext))] = chance.choice((*NUMBERS, *TEXTS))
    if chance.random() < 0.1:
        ext[chance.choice(("", "x", "queueid", "a", "n" * 300))] = chance.choice(TEXTS)
    names = [name for name, value in ext.items() if value is not None or chance.random() < 0.2]
    if chance.random() < 0.2:
        chance.shuffle(names)
    code, opaque, flag = (
        seldom(chance, 11, 361, 9999),
        chance.randrange(-3, 1 << 31),
        seldom(chance, 0, 1, ONEWAY, 3, -1),
    )
    if chance.random() < 0.5:
        texts = {name: ext[name] for name in names if ext[name] is not None}
        return frame(binary_head(code, texts, opaque=opaque, flag=flag, remark=seldom(chance, b"", b"told")), form=1)
    tree = {
        "code": code,
        "extFields": {name: ext[name] for name in names},
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "version": 409,
    }
    separators, ascii_only = seldom(chance, (",", ":"), (" ,\n", "\t: ")), chance.random() < 0.5
    head = json.dumps(tree, separators=separators, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    return frame(head, seldom(chance, b"", b"body"))


def event(chance: random.Random, place: Place) -> bytes:
    """What one read brings: pulls, and sends between them."""
    pieces = list[bytes]()
    for _ in range(chance.choice((1, 1, 3, 8, 30))):
        if chance.random() < 0.2:
            pieces.append(
                send(b"x" * mostly(chance, 5, 0, 700), e=str(mostly(chance, 1, 0, 2)), opaque=chance.randrange(9))
            )
        else:
            piece = pull(chance, place)
            pieces.append(damaged(chance, piece) if chance.random() < 0.05 else piece)
    if chance.random() < 0.3:
        pieces *= 2  # the second ones meet the gates that the first ones opened
    data = b"".join(pieces)
    return damaged(chance, data) if chance.random() < 0.1 else data


def lived(hot: ModuleType, seed: int, *, singly: bool = False) -> tuple[list[Any], bytes, int]:
    """One round with one module. Returns all that can be seen of it, the answers, and how many pulls the path answered."""
    chance = random.Random(seed)
    place = Place(hot, chance)
    reply_bytes_max = mostly(chance, 1 << 18, 1, 600)
    told, pulls = list[Any](), 0
    for _ in range(chance.randrange(1, 5)):
        told.append(place.read_event(exactly(event(chance, place)), reply_bytes_max, singly=singly))
        counted = place.take_over()
        pulls += sum(pulled for _, pulled, _, _ in counted[0])
        told.append(counted)
    return [told, place.left(), place.acks.take()], b"".join(place.answers), pulls


def one(chance: random.Random) -> int:
    """One round. Returns how many pulls were answered by gates."""
    assert NATIVE is not None, "the hot module is not built: make hot"
    seed = chance.getrandbits(32)
    native = lived(NATIVE, seed)
    assert lived(FALLBACK, seed) == native, "native and fallback answer otherwise, or leave other things behind"
    assert lived(NATIVE, seed, singly=True) == native, "a run is answered otherwise than one pull after the other"
    return native[2]


def run(seed: int, rounds: int, seconds: float = 0.0) -> int:
    """Run rounds from `seed` on. Returns how many pulls were answered by gates. Raises AssertionError, or worse."""
    return repeat(one, seed, rounds, seconds)


if __name__ == "__main__":
    command(
        "Ask for what lies in a log, and for what does not.",
        run,
        "pulls answered by gates, by both in the same way",
        3000,
    )
