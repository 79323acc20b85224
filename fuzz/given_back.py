"""Invariant: whatever the log holds where a consumer's request points to, and whatever it asks for, the native module and its
pure-Python fallback give back the same message to the same delay level, to the byte, or leave the files as they are.

    python -m fuzz.given_back [--seed N] [--rounds N] [--seconds S]

Each round writes records, damages some, opens some delay levels, and gives back at places where a record begins and where none
does, between sends with delay levels.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

from fuzz.rounds import command, damaged, exactly, mostly, repeat
from tests.wire.hot.support import FALLBACK, NATIVE, RETRY, SCHEDULE, SLOW, STORE_MS, TEXT, LevelTails, send

NAMES = (
    "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "KEYS", "UNIQ_KEY", "TAGS", "CLUSTER", "a", "a", "",
)  # fmt: skip
VALUES = ("v", "v", "a b", " ", "", "\N{SNOWMAN}", "x\x01y", "z\0", "1 2 3 4 5", "9" * 30, "long" * 100)
TOPICS = (RETRY, b"a.b", b"rmq_sys_METAQ_TXN", b"T" * 127, b"\xff", SCHEDULE)
INT_MAX = (1 << 31) - 1


class Files(LevelTails):
    """The files of one round, the levels of its delay gate, and what is asked of both modules alike."""

    def __init__(self, hot: ModuleType, chance: random.Random) -> None:
        super().__init__(
            hot, delays_ms=(0, 1000, 5000, 1 << 60), levels=chance.choice((0, 1, 4, 4, 5, 18)),
            level_units=mostly(chance, 50, 0, 1), log_bytes=mostly(chance, 60_000, 700, 3000),
            entries=mostly(chance, 500, 1, 4),
        )  # fmt: skip
        self.body_bytes_max = chance.choice((4, 1 << 22))
        for queue in self.levels:
            queue.watched = chance.random() < 0.5
        for _ in range(chance.randrange(4)):
            try:
                self.delays.open(
                    chance.randrange(-1, 20), chance.choice(self.levels), chance.choice((-1, 0, 7, (1 << 60) + 1))
                )
            except ValueError as error:
                self.refused = str(error)
        self.is_open = [self.delays.is_open(level) for level in (-INT_MAX, -1, *range(20), INT_MAX)]
        facts = self.body_bytes_max, SLOW, chance.random() < 0.5, None, self.delays
        self.gates = {self.topic: hot.TopicGate(self.topic, self.queues, *facts)}

    refused = ""

    def left(self) -> tuple[Any, ...]:
        """All that there is to compare."""
        return (*self.everything(), self.is_open, self.refused)


def text_of(chance: random.Random) -> bytes:
    """Properties of a record, most often such as a sender writes."""
    pieces = [TEXT][: mostly(chance, 1, 0)]
    for _ in range(mostly(chance, 0, 1, 3, 9, 30)):
        pieces.append(chance.choice(NAMES) + ("" if chance.random() < 0.05 else "\x01") + chance.choice(VALUES))
    text = "\x02".join(pieces).encode() + mostly(chance, b"", b"\x02", b"\0")
    return text[:32_000] if chance.random() < 0.8 else damaged(chance, text)[:32_000]


def record_of(chance: random.Random) -> dict[str, Any]:
    """A record's facts."""
    v6 = chance.random() < 0.05
    return {
        "text": text_of(chance), "times": mostly(chance, chance.randrange(4), 15, 16, -4, -3, INT_MAX),
        "topic": mostly(chance, b"TopicA", *TOPICS), "queue_id": chance.choice((0, 7, INT_MAX)),
        "body": b"b" * chance.choice((0, 5, 5, 900)), "flag": chance.choice((0, -1, INT_MAX)),
        "sys_flag": 0x10 if v6 else chance.choice((0, 1, 8, 0x704)), "born_host": bytes(20 if v6 else 8),
    }  # fmt: skip


def question(chance: random.Random, starts: list[int], end: int) -> tuple[int, dict[str, Any]]:
    """A place, and what is to become of the message there."""
    place = mostly(chance, chance.choice(starts), 0, end, -1, -(1 << 63), (1 << 63) - 1, chance.randrange(-9, end + 9))
    return place, {
        "topic": mostly(chance, RETRY, b"", b"x" * 127, b"x" * 128, b"a\x02b"),
        "queue_id": mostly(chance, 0, 3, INT_MAX, -1, -INT_MAX - 1), "retries_max": mostly(chance, 16, INT_MAX, 0, -1, -INT_MAX - 1),
        "level": mostly(chance, chance.choice((0, 0, 1, 4)), 5, 18, INT_MAX, -1, -INT_MAX - 1),
        "now_ms": mostly(chance, STORE_MS, STORE_MS - 5, STORE_MS + 5, 0, 1 << 60), "index": chance.random() < 0.8,
    }  # fmt: skip


def delayed(chance: random.Random) -> bytes:
    """Sends that wait, or may not."""
    level = chance.choice(("1", "2", "5", "18", "19", "0", "x", "007", "999999999", "1000000000", "", "1\x01"))
    text = chance.choice((TEXT, "", TEXT + "\x02")) + f"\x02DELAY\x01{level}"
    return send(b"d" * chance.choice((1, 5, 300)), i=text, binary=chance.random() < 0.5)


def one(chance: random.Random) -> int:
    """One round. Returns how many messages were given back."""
    assert NATIVE is not None, "the hot module is not built: make hot"
    room, taken = chance.getrandbits(32), 0
    pair = [Files(hot, random.Random(room)) for hot in (NATIVE, FALLBACK)]
    starts = list[int]()
    for _ in range(chance.randrange(1, 5)):
        facts = record_of(chance)
        if pair[0].log.end + 1200 + len(facts["text"]) + len(facts["body"]) < len(pair[0].log_bytes):
            starts = [*starts, *{files.put(**facts) for files in pair}]
    end = pair[0].log.end
    for _ in range(chance.choice((0, 0, 0, 1, 3)) if end else 0):
        at, put = (
            chance.randrange(end),
            chance.choice((b"\0", b"\xff", b"\x02", b"\xff\xff\xff\xff", b"\x7f\xff", chance.randbytes(2))),
        )
        for files in pair:
            files.log_bytes[at : min(end, at + len(put))] = put[: end - at]
    for _ in range(chance.randrange(1, 8)):
        place, facts = question(chance, starts or [0], end)
        data = exactly(damaged(chance, delayed(chance)))
        sends = chance.random() < 0.2
        found = [files.take(data, now_ms=facts["now_ms"]) if sends else files.back(place, **facts) for files in pair]
        assert found[0] == found[1], f"native says {found[0]}, its fallback {found[1]}"
        one, other = (files.left() for files in pair)
        assert one == other, "native and fallback leave different bytes behind"
        taken += not sends and found[0] is not None
    return taken


def run(seed: int, rounds: int, seconds: float = 0.0) -> int:
    """Run rounds from `seed` on. Returns how many messages were given back. Raises AssertionError, or worse."""
    return repeat(one, seed, rounds, seconds)


if __name__ == "__main__":
    command(
        "Give back what lies in a log, and what does not.", run, "messages given back, by both in the same way", 3000
    )
