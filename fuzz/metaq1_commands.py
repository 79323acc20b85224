"""Invariant: whatever bytes a peer sends, cut wherever, its session at the MetaQ 1.x server answers or ends the connection, nothing
else; what it answered with success is in the partitions, whole and in order; and a neighbour gets the same answers as before.

    python fuzz/metaq1_commands.py [--seed N] [--rounds N]

Each round damages a run of well-formed lines (bits, lengths, numbers, words, whole pieces), feeds it to a session of a broker
in random cuts, and then reads the partitions and asks the neighbour's questions. A failure prints the seed of its round: run
it again with `--seed N --rounds 1`.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import random
import sys
import tempfile
from typing import TYPE_CHECKING

from metaq.model.transactions.metaq1 import BranchKey, LocalKey
from metaq.servers.metaq1.server import Metaq1Server
from metaq.wire.hot import crc31
from metaq.wire.metaq1.commands import (
    NO_CHECKSUM,
    GetLine,
    Line,
    OffsetLine,
    PutLine,
    QuitLine,
    ResultLine,
    StatsLine,
    Step,
    SyncLine,
    TransactionLine,
    ValueLine,
    VersionLine,
    encode,
)
from metaq.wire.metaq1.frame import frames, with_attribute

if TYPE_CHECKING:
    from tests.servers.metaq1.support import TextClient

ROOT = pathlib.Path(__file__).parent.parent

HOSTILE_WORDS = [
    b"", b"-1", b"2147483648", b"-9223372036854775809", b"9" * 5000, b"1e9", b"NaN", b"../../etc/passwd", b"T" * 70_000,
    b"\x00", b"%RETRY%g", b"\xff\xfe", b"null", b"TX:a:1", b"XID:1:2", b"test", b"0", b"+1", b"\xd9\xa1",
]  # fmt: skip
TOPICS = ["test", "test", "test", "nobody"]
FRAME_MAX = 4096


def line(chance: random.Random) -> Line:
    """A well-formed line."""
    topic, partition, opaque = chance.choice(TOPICS), chance.randrange(-1, 4), chance.randrange(-(2**31), 2**31)
    body, flag, checksum = chance.randbytes(chance.randrange(60)), chance.randrange(-(2**31), 2**31) & ~1, NO_CHECKSUM
    if chance.random() < 0.3:
        body, flag = with_attribute(chance.choice(["", "red", "a b", "\x01", "é"]), body), flag | 1
    if chance.random() < 0.5:
        checksum = crc31(body)
    key = chance.choice([LocalKey("s", chance.randrange(3)), BranchKey(1, b"g", chance.randbytes(1), "q")])
    return chance.choice([
        *[PutLine(topic, partition, flag, body, opaque, checksum)] * 6,
        PutLine(topic, partition, flag, body, opaque, checksum, transactional=True, key=chance.choice([key, None])),
        *[GetLine(topic, "g", partition, chance.randrange(-5, 500), chance.choice([0, 20, 100, 5000]), opaque)] * 2,
        OffsetLine(topic, "g", partition, chance.randrange(-5, 500), opaque),
        *[TransactionLine(chance.choice([key, key, None]), "s", step, opaque) for step in Step],
        SyncLine(topic, partition, flag, 7, body, opaque),
        StatsLine(chance.choice([None, "topics", "offsets", "realtime", "help", topic]), opaque),
        VersionLine(opaque), QuitLine(), ResultLine(200, body, opaque), ValueLine(body, opaque),
    ])  # fmt: skip


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The bytes of a line with something wrong in it, some of the time."""
    if chance.random() < 0.6:
        return data
    text = bytearray(data)
    match chance.randrange(7):
        case 0:
            text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
        case 1:
            del text[chance.randrange(len(text)) :]
        case 2:
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(20)] = chance.randbytes(chance.randrange(20))
        case 3 | 4 | 5:
            head, end, body = data.partition(b"\r\n")
            words = head.split(b" ")
            words[chance.randrange(len(words))] = chance.choice(HOSTILE_WORDS)
            return b" ".join(words) + end + body
        case 6:
            head, end, body = data.partition(b"\r\n")
            words = head.split(b" ")
            words.insert(chance.randrange(len(words) + 1), chance.choice(HOSTILE_WORDS))
            return b" ".join(words) + end + body
    return bytes(text)


def feed(chance: random.Random, client: TextClient, data: bytes) -> bool:
    """Present the bytes in random cuts, as a transport does. False if the connection ended."""
    while data and not client.peer.closed:
        size = chance.randrange(1, len(data) + 1)
        left = client.feed(data[:size])
        data = data[size:]
        client.go_on()
        needed = client.session.frame_needed()
        assert client.peer.closed or client.peer.paused or needed == 0 or needed > left, "a whole line was left lying"
    return not client.peer.closed


def fresh(client: TextClient, ends: list[int]) -> int:
    """How many frames the partitions of `test` hold behind these positions, which move to their ends; each is whole."""
    count = 0
    for partition in range(3):
        while True:
            client.feed(b"get test g %d %d %d 1\r\n" % (partition, ends[partition], FRAME_MAX))
            (answer,) = client.answers()
            if not isinstance(answer, ValueLine):
                assert isinstance(answer, ResultLine)
                assert answer.code == 404, answer
                break
            found = list(frames(answer.body))
            assert found, "a get of a whole frame brings one"
            count += len(found)
            ends[partition] += sum(frame.size for frame in found)
    return count


class Failures(logging.Handler):
    """Turns a logged exception, which the peer only sees as an answer, into a failure of the fuzzer."""

    def emit(self, record: logging.LogRecord) -> None:
        assert not record.exc_info, record.getMessage() + "\n" + str(record.exc_info)


def _is_place(body: bytes) -> bool:
    """Whether this tells the place of a message of `test` that is stored, rather than one in a transaction or elsewhere."""
    words = body.split(b" ")
    return len(words) == 3 and words[2] != b"-1"


def run(seed: int, rounds: int) -> int:
    """Run `rounds` rounds from `seed` on. Returns how many connections ended. Raises AssertionError, or worse."""
    sys.path.insert(0, str(ROOT))
    from tests.servers.metaq1.support import open_metaq1_server, settings

    log, failures = logging.getLogger("metaq"), Failures()
    log.addHandler(failures)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # Nothing waits for the disk: every answer is there when its line was taken.
            options = {"max_transfer_size": FRAME_MAX, "unflush_threshold": 1 << 30, "flush_tx_log_at_commit": 0}
            text = settings({"test": 3}, **options)
            with open_metaq1_server(pathlib.Path(folder), metaq1=text) as (_, protocol_server):
                return _fuzz(protocol_server, seed, rounds)
    finally:
        log.removeHandler(failures)


def _fuzz(protocol_server: Metaq1Server, seed: int, rounds: int) -> int:
    from tests.servers.metaq1.support import TextClient

    neighbour = TextClient(protocol_server)
    for partition in range(3):
        neighbour.put(b"first", partition=partition)
    ends, ended = [0, 0, 0], 0
    assert fresh(neighbour, ends) == 3
    for current in range(seed, seed + rounds):
        chance = random.Random(current)
        try:
            client = TextClient(protocol_server)
            data = b"".join(damaged(chance, encode(line(chance))) for _ in range(chance.randrange(1, 12)))
            neighbour.feed(b"put test 0 5 0 1\r\nhe")
            ended += not feed(chance, client, data)
            promised = sum(getattr(answer, "code", 0) == 200 and _is_place(answer.body) for answer in client.answers())
            client.leave()
            neighbour.feed(b"llo")
            (answer,) = neighbour.answers()
            assert isinstance(answer, ResultLine), "the neighbour noticed"
            assert answer.code == 200, "the neighbour noticed"
            assert fresh(neighbour, ends) >= 1 + promised, "an acknowledged message is gone"
        except BaseException:
            print(f"seed {current} failed", file=sys.stderr)
            raise
    return ended


def main() -> None:
    parser = argparse.ArgumentParser(description="Throw damaged lines at a MetaQ 1.x server.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10_000)
    args = parser.parse_args()
    logging.getLogger("metaq").propagate = False
    ended = run(args.seed, args.rounds)
    print(f"{args.rounds} rounds from seed {args.seed}: {ended} connections ended, no neighbour noticed")


if __name__ == "__main__":
    main()
