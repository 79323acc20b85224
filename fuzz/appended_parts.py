"""Invariant: what one pass read from many connections is stored and answered as if each had been read by itself, whatever
the bytes are and wherever they are cut; and the native module does to the byte what its pure-Python fallback does.

    python -m fuzz.appended_parts [--seed N] [--rounds N] [--seconds S]

Each round makes pieces of read events, good and damaged, for senders of several kinds, and files with much or little room, and
compares `append_parts` of both modules, and one `append` for each piece.
"""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any

from fuzz.rounds import command, damaged, exactly, mostly, repeat
from tests.wire.hot.support import BORN_HOST, FALLBACK, NATIVE, RETRY, SLOW, STORE_MS, TEXT, LevelTails, send

from metaq.wire.record import encode_batch

COLUMNS, USED, ANSWERED = 6, 4, 5
HOSTS = (BORN_HOST, bytes(8), bytes.fromhex("0a00000100001f90"))
LEVELS = (None, None, None, "1", "2", "3", "4", "0", "03", "x", "9" * 20)
TEXTS = (
    "", "a\x01b", TEXT + "\x02", TEXT + "\x02a\x01\N{SNOWMAN}", TEXT + "\x02REAL_QID\x0100", TEXT + "\x02KEYS\x01again",
    TEXT.replace("WAIT\x01true", "WAIT\x01false"), TEXT + "\x02RETRY_TOPIC\x01TopicA", "KEYS\x01" + "k " * 50, "\x02", "a\x01" + "x" * 2000,
)  # fmt: skip


class Pass(LevelTails):
    """The files and senders of one round."""

    def __init__(self, hot: ModuleType, chance: random.Random) -> None:
        super().__init__(
            hot, delays_ms=(1000, 5000, 10_000), levels=chance.choice((0, 3, 4)), level_units=mostly(chance, 500, 0, 2),
            log_bytes=mostly(chance, 90_000, 300, 2000), units=mostly(chance, 500, 0, 2),
            entries=mostly(chance, 1000, 1, 9), body_bytes_max=mostly(chance, 1 << 22, 4),
        )  # fmt: skip
        self.table = hot.FrameTable(mostly(chance, 1 << 24, 200), mostly(chance, 4096, 1, 3))
        wait_is_slow = chance.random() < 0.3
        facts = self.body_bytes_max, SLOW, wait_is_slow, None, self.delays
        for queue in self.queues:
            queue.watched = chance.random() < 0.5
        self.gates = {
            self.topic: hot.TopicGate(self.topic, self.queues, *facts),
            RETRY: hot.TopicGate(RETRY, self.queues[:1], *facts, chance.choice((16, 3, None))),
        }
        self.senders = [*((self.gates, host) for host in HOSTS), ({}, BORN_HOST), None]
        if chance.random() < 0.2:
            self.index = None

    def left(self) -> tuple[Any, ...]:
        """All that a pass leaves behind."""
        ends = [(queue.next_offset, queue.log_end) for queue in (*self.queues, *self.levels)]
        files = bytes(self.log_bytes), *map(bytes, (*self.queue_bytes, *self.level_bytes)), bytes(self.index_bytes)
        index = (self.index.count, self.index.end_log) if self.index is not None else None
        return files, ends, index, self.log.end, self.log.store_ms, self.replies.take()

    def did(self) -> tuple[Any, ...]:
        """What the outcome says of it."""
        outcome = self.outcome
        return outcome.messages, outcome.size, [(queue.topic, queue.queue_id) for queue in outcome.touched]


def frame(chance: random.Random) -> bytes:
    """A send, most often one that is plain."""
    text, level = mostly(chance, TEXT, *TEXTS), chance.choice(LEVELS)
    if level is not None:
        text += f"\x02DELAY\x01{level}"
    facts: dict[str, Any] = {
        "opaque": chance.randrange(-3, 1 << 31), "flag": chance.choice((0, 0, 0, 2)), "binary": chance.random() < 0.4,
        "e": str(mostly(chance, chance.randrange(2), -1, 2, "00")), "f": str(mostly(chance, 0, 1, 4, 0x704)),
        "j": str(mostly(chance, 0, 1, 3, 16)),
    }  # fmt: skip
    if chance.random() < 0.2:
        facts |= {"b": RETRY.decode(), "l": chance.choice((None, "16", "0", "x"))}
    if chance.random() < 0.2:
        entries = [(n, b"b" * chance.randrange(9), text.encode()[:300]) for n in range(chance.randrange(5))]
        body = damaged(chance, encode_batch(entries)) if chance.random() < 0.5 else encode_batch(entries)
        return send(body, code=320, **facts | {"i": "WAIT\x01true", "m": "true"})
    return send(b"x" * mostly(chance, 1, 0, 5, 700), i=text, code=chance.choice((310, 310, 10)), **facts)


def pieces_of(chance: random.Random) -> list[tuple[int, bytes]]:
    """What was read: the sender's slot, and bytes that begin at a frame and may end anywhere."""
    found = []
    for _ in range(chance.choice((1, 3, 8, 64))):
        data = b"".join(frame(chance) for _ in range(chance.choice((0, 1, 1, 1, 2, 5))))
        if chance.random() < 0.2:
            data = damaged(chance, data)
        if chance.random() < 0.2:
            data = data[: chance.randrange(len(data) + 1)]
        found.append((mostly(chance, chance.randrange(3), 3, 4), data))
    return found


def laid_out(chance: random.Random, pieces: list[tuple[int, bytes]]) -> tuple[memoryview, list[int]]:
    """A buffer that ends with the last piece, and the rows that say whose is what, some of them of nothing that there is."""
    gap, data, rows = chance.choice((b"", b"", b"\xffgap")), b"", list[int]()
    for place, (slot, piece) in enumerate(pieces):
        data += gap if place else b""
        rows += [slot, chance.randrange(1, 9), len(data), len(data) + len(piece), len(data), 0]
        data += piece
    if rows and chance.random() < 0.1:
        row = COLUMNS * chance.randrange(len(pieces))
        column = chance.randrange(4)
        far = -1, -(1 << 31), (1 << 31) - 1, len(data) + 1, 5, 0
        rows[row + column] = chance.choice(far)
        rows[row + USED] = rows[row + 2]
    return exactly(data), rows


def passed(tails: Pass, data: memoryview, rows: list[int]) -> tuple[Any, ...]:
    """Append the parts. Returns what is said of each, and the kind of error."""
    parts = memoryview(bytearray(struct.pack(f"{len(rows)}i", *rows))).cast("i")
    error = None
    try:
        tails.hot.append_parts(
            data, parts, tails.senders, tails.table, tails.log, tails.index, STORE_MS, tails.replies, tails.outcome
        )
    except (IndexError, ValueError) as raised:
        error = type(raised)
    return parts.tolist(), error


def singly(tails: Pass, data: memoryview, rows: list[int]) -> tuple[Any, ...]:
    """Append each part by itself. Returns what `passed` does."""
    rows = list(rows)
    for at in range(0, len(rows), COLUMNS):
        slot, _, start, end = rows[at : at + USED]
        sender = tails.senders[slot]
        if sender is None or start == end:
            continue
        used = tails.table.scan(data, start, end)
        count = len(tails.table)
        tails.hot.append(
            tails.table, 0, count, sender[0], tails.log, tails.index, STORE_MS, sender[1], tails.replies, tails.outcome
        )
        if tails.outcome.row < count:
            used = sum(4 + len(tails.table.frame(row)) for row in range(tails.outcome.row))
        rows[at + USED], rows[at + ANSWERED] = start + used, len(tails.replies)
    tails.table.release()
    return rows, None


def one(chance: random.Random) -> int:
    """One round. Returns how many messages were stored."""
    assert NATIVE is not None, "the hot module is not built: make hot"
    room = chance.getrandbits(32)
    native, fallback, alone = (Pass(hot, random.Random(room)) for hot in (NATIVE, FALLBACK, NATIVE))
    data, rows = laid_out(chance, pieces_of(chance))
    found = passed(native, data, rows)
    left = native.left()
    assert passed(fallback, data, rows) == found, "native and fallback use different parts"
    assert fallback.left() == left, "native and fallback leave different bytes behind"
    assert fallback.did() == native.did()
    if found[1] is None and all(
        0 <= start <= end <= len(data) for start, end in zip(rows[2::6], rows[3::6], strict=True)
    ):
        assert singly(alone, data, rows) == found, "a pass uses other parts than one connection after the other"
        assert alone.left() == left, "a pass leaves other bytes behind than one connection after the other"
    return native.outcome.messages


def run(seed: int, rounds: int, seconds: float = 0.0) -> int:
    """Run rounds from `seed` on. Returns how many messages were stored. Raises AssertionError, or worse."""
    return repeat(one, seed, rounds, seconds)


if __name__ == "__main__":
    command(
        "Throw what many connections sent at one append pass.", run, "messages stored, by all in the same way", 3000
    )
