"""What raw connections say to a MetaQ 1.x server, and how what comes back is written down.

A scenario is a list of steps, run against a server of `TOPICS` whose wildcard `t-*` admits a topic for each scenario. Every
step sends bytes on a connection and reads so many answers. What differs from run to run is masked: ids, ports, times.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from tests.interop.metaq1 import Answer, TextConnection

TOPICS = {"shut": {}, "t-*": {}}
SYSTEM = {"numPartitions": 3, "maxTransferSize": 1 << 16}
"""A topic that a wildcard admits has the partitions of [system]."""

SESSION = "10.0.0.5-1373971200000-1"
LONG_MAX = (1 << 63) - 1


class Step(NamedTuple):
    data: bytes
    answers: int = 1
    on: int = 0
    """Which of the scenario's connections; each is opened when it is used first. -1: all are closed, nothing is sent."""


def s(text: str, answers: int = 1, on: int = 0) -> Step:
    """A step whose lines are written with their CRLF as `|`."""
    return Step(text.replace("|", "\r\n").encode(), answers, on)


CLOSE = Step(b"", 0, -1)


def crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def attribute(text: bytes, payload: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text + payload


def put(topic: str, body: bytes, opaque: int, partition: int = 0, flag: int = 0, checksum: str = "") -> Step:
    words = f"put {topic} {partition} {len(body)} {flag} {checksum + ' ' if checksum else ''}{opaque}\r\n"
    return Step(words.encode() + body)


def closing(name: str, data: str, prepare: Sequence[Step] = ()) -> tuple[str, list[Step]]:
    """A malformed line: its connection closes unanswered, a connection opened before does not."""
    return name, [s("version 1|", on=1), *prepare, s(data), s("version 2|", on=1)]


def tx(verb: str, key: str, opaque: int, extra: str = "", answers: int = 1, on: int = 0) -> Step:
    return s(f"transaction {key} {SESSION} {verb} {extra + ' ' if extra else ''}{opaque}|", answers, on)


def tx_put(topic: str, body: str, key: str, opaque: int, partition: int = 0, checksum: str = "") -> Step:
    checksum = checksum or str(crc(body.encode()))
    return s(f"put {topic} {partition} {len(body)} 0 {checksum} {key} {opaque}|{body}")


def written_behind(*partitions: int) -> list[Step]:
    """A put behind a commit, which the original answers before it has written anything."""
    return [put("{t}", b"behind", 100 + partition, partition) for partition in partitions]


LOCAL = f"TX:{SESSION}:1"
MIN = -(1 << 31)
HELLO = [put("{t}", b"hello", 1), put("{t}", b"hello", 2, checksum="907060870")]
"""Two frames of 25 bytes."""
THREE = [*HELLO, put("{t}", attribute(b"attr1", b"hi"), 3, flag=1)]

SCENARIOS: dict[str, list[Step]] = {
    # ---- put
    "put": [
        *HELLO,
        put("{t}", attribute(b"attr1", b"hi"), -2147483647, flag=1, checksum="1871851234"),
        s("get {t} g 0 0 1024 8|"),
        s("get {t} g 0 50 1024 9|"),
    ],
    "put without a checksum": [put("{t}", b"hello", 1, checksum="-1"), s("get {t} g 0 0 1024 2|")],
    "put of nothing": [put("{t}", b"", 1), put("{t}", b"x", 2), s("get {t} g 0 0 1024 3|")],
    "put with a wrong checksum": [put("{t}", b"hello", 1, checksum="7"), put("{t}", b"hello", 2)],
    "put of lines": [put("{t}", b"put x 0 1 0 5\r\n\r\n", 1), s("get {t} g 0 0 1024 2|")],
    "put of any bytes": [put("{t}", bytes(range(256)), 1), s("get {t} g 0 0 1024 2|")],
    "put with flags": [
        put("{t}", b"a", 1, flag=2),
        put("{t}", b"b", 2, flag=-2),
        put("{t}", b"c", 3, flag=2147483646),
        put("{t}", attribute(b"red", b"d"), 4, flag=-2147483647),
        s("get {t} g 0 0 1024 5|"),
    ],
    "put with attributes that are no tags": [
        put("{t}", attribute(b"", b"empty"), 1, flag=1),
        put("{t}", attribute(b"a||b", b"bars"), 2, flag=1),
        put("{t}", attribute(b" two words ", b"blanks"), 3, flag=1),
        put("{t}", attribute(b"line\r\nend", b"lines"), 4, flag=1),
        put("{t}", attribute(b"\x01", b"one"), 5, flag=1),
        put("{t}", attribute(b"\x02", b"two"), 6, flag=1),
        put("{t}", attribute("grün".encode(), b"unicode"), 7, flag=1),
        put("{t}", attribute(b"\xff\xfe", b"no text"), 8, flag=1),
        put("{t}", attribute(b"a" * 40000, b"long"), 9, flag=1),
        s("get {t} g 0 0 65536 10|"),
    ],
    "put with a malformed attribute block": [
        put("{t}", b"", 1, flag=1),
        put("{t}", b"ab", 2, flag=1),
        put("{t}", struct.pack(">i", 100) + b"short", 3, flag=1),
        put("{t}", struct.pack(">i", -1) + b"negative", 4, flag=1),
        s("get {t} g 0 0 1024 5|"),
    ],
    "put to partitions": [
        put("{t}", b"a", 1, partition=2),
        put("{t}", b"b", 2, partition=1),
        s("get {t} g 1 0 1024 3|"),
        s("get {t} g 2 0 1024 4|"),
        s("get {t} g 0 0 1024 5|"),
    ],
    "put to a partition that is not there": [
        put("{t}", b"a", 1, partition=3),
        put("{t}", b"a", 2, partition=-2),
        put("{t}", b"a", 3, partition=2147483647),
    ],
    "put to a topic that is not accepted": [put("unknown", b"a", 1), put("unknown", b"a", 2, partition=9)],
    "put of a message that no get could deliver": [put("{t}", b"x" * ((1 << 16) - 19), 1), put("{t}", b"y", 2)],
    "put of the largest message": [put("{t}", b"x" * ((1 << 16) - 20), 1), s("get {t} g 0 0 1048576 2|")],
    "opaque to the ends of an int": [s("version -2147483648|"), s("version 2147483647|"), s("version 0|")],
    # ---- get
    "get": [
        *THREE,
        s("get {t} g 0 0 1024 8|"),
        s("get {t} g 0 25 1024 9|"),
        s("get {t} g 0 0 25 10|"),
        s("get {t} g 0 0 30 11|"),
        s("get {t} g 0 0 1 12|"),
        s("get {t} g 0 0 2147483647 13|"),
    ],
    "get within a frame": [*THREE, s("get {t} g 0 7 1024 8|"), s("get {t} g 0 24 3 9|"), s("get {t} g 0 49 1024 10|")],
    "get at and behind the end": [
        *HELLO,
        s("get {t} g 0 50 1024 10|"),
        s("get {t} g 0 51 1024 11|"),
        s("get {t} g 0 9223372036854775807 1024 12|"),
        s("get {t} g 0 9223372036854775806 1024 13|"),
    ],
    "get before the beginning": [*HELLO, s("get {t} g 0 -1 1024 13|"), s("get {t} g 0 -9223372036854775808 1024 14|")],
    "get of no bytes": [*HELLO, s("get {t} g 0 0 0 1|"), s("get {t} g 0 0 -5 2|"), s("get {t} g 0 50 0 3|")],
    "get of what was never put": [
        s("get {t} g 0 0 1024 1|"),
        s("get {t} g 0 0 0 2|"),
        s("get {t} g 7 0 1024 3|"),
        s("get {t} g -1 0 1024 4|"),
        s("get unknown g 0 0 1024 5|"),
        s("get {t} g 0 9223372036854775807 1024 6|"),
    ],
    "get more than may be transferred": [
        *[put("{t}", b"x" * 30000, number) for number in range(3)],
        s("get {t} g 0 0 1048576 8|"),
    ],
    "get with surplus words": [*HELLO, s("get {t} g 0 0 1024 8 and more|"), s("get {t} g 0 0 25 9 10|")],
    # ---- offset
    "offset": [
        *HELLO,
        s("offset {t} g 0 0 16|"),
        s("offset {t} g 0 7 17|"),
        s("offset {t} g 0 25 18|"),
        s("offset {t} g 0 49 19|"),
        s("offset {t} g 0 50 20|"),
        s("offset {t} g 0 5000 21|"),
        s("offset {t} g 0 -7 22|"),
        s("offset {t} g 0 9223372036854775807 23|"),
        s("offset {t} g 0 7 24 and more|"),
    ],
    "offset of what was never put": [s("offset {t} g 0 0 1|"), s("offset unknown g 0 0 2|")],
    # ---- version, quit, stats
    "version": [s("version 5|"), s("version|"), s("vxx 3|"), s("v 4|"), s("version 6 7|")],
    "quit": [s("quit|"), s("q|", on=1)],
    "stats of a topic": [*HELLO, s("stats {t} 7|"), s("stats {t}|"), s("stats shut 8|"), s("stats nothing-such 9|")],
    "stats": [*HELLO, s("stats 7 8|"), s("stats  9|"), s("stats|"), s("stats realtime 10|"), s("stats reset 11|")],
    "stats of all topics": [*HELLO, put("{t}", b"x", 3, partition=2), s("stats topics 7|"), s("stats offsets 8|")],
    "stats asks for a topic called 1": [s("stats 1|")],
    "stats help": [s("stats help 7|"), s("stats help 8 9|")],
    # ---- pipelining: an original answers in any order
    "commands in one piece": [Step(b"version 1\r\nversion 2\r\nversion 3\r\n", 3)],
    "a put and more in one piece": [s("put {t} 0 5 0 1|helloversion 2|", 2), s("get {t} g 0 0 1024 3|")],
    "a command in pieces": [
        s("put {t} 0", 0),
        s(" 5 0 1|", 0),
        s("he", 0),
        s("llo"),
        s("vers", 0),
        s("ion 5\r", 0),
        s("\n"),
    ],
    "answers to a server are ignored": [s("result 200 2 7|okvalue 3 8|abcversion 9|"), s("result 200 0 7|version 10|")],
    "sync to a server that is no slave": [s("sync {t} 0 5 0 -5468925858225827840 907060870 7|hello"), s("version 8|")],
    # ---- what closes a connection
    **dict(
        [
            closing("a word that is none", "nonsense 1|"),
            closing("an empty line", "|"),
            closing("a line of spaces", "   |"),
            closing("capital letters", "PUT {t} 0 5 0 1|hello"),
            closing("a word that begins like put", "putt {t} 0 5 0 1|hello"),
            closing("a word that begins like get", "gets {t} g 0 0 1024 1|"),
            closing("a word that begins like offset", "off {t} g 0 0 1|"),
            closing("a word that begins like transaction", "tx 1|"),
            closing("a word that begins like stats", "status 1|"),
            closing("put with too few words", "put {t} 0 5 1|hello"),
            closing("put with too many words", "put {t} 0 5 0 1 2 3 4|hello"),
            closing("put with two spaces", "put  {t} 0 5 0 1|hello"),
            closing("put into no number", "put {t} a 5 0 1|hello"),
            closing("put of no number", "put {t} 0 five 0 1|"),
            closing("put with a flag that is none", "put {t} 0 5 x 1|hello"),
            closing("put with a plus", "put {t} 0 5 0 opaque|hello"),
            closing("put of less than nothing", "put {t} 0 -1 0 1|"),
            closing("put of too large a number", "put {t} 0 2147483648 0 1|"),
            closing("put with too large an opaque", "put {t} 0 5 0 2147483648|hello"),
            closing("get with too few words", "get {t} g 0 0 1|"),
            closing("get without anything", "get|"),
            closing("get from no number", "get {t} g 0 zero 1024 1|"),
            closing("get from too large a number", "get {t} g 0 9223372036854775808 1024 1|"),
            closing("get of too large a number", "get {t} g 0 0 2147483648 1|"),
            closing("get with an opaque that is none", "get {t} g 0 0 1024 x|"),
            closing("offset with too few words", "offset {t} g 0 1|"),
            closing("offset of no number", "offset {t} g 0 x 1|"),
            closing("version of no number", "version x|"),
            closing("stats with an opaque that is none", "stats topics x|"),
            closing("a transaction of an unknown kind", f"transaction {LOCAL} {SESSION} BEGINS 1|"),
            closing("a transaction with too few words", f"transaction {LOCAL} {SESSION} BEGIN|"),
            closing("a transaction with too many words", f"transaction {LOCAL} {SESSION} BEGIN 1 q 2 3|"),
            closing("a transaction whose key has two fields", f"transaction TX:s {SESSION} BEGIN 1|"),
            closing("a transaction whose number is none", f"transaction TX:s:x {SESSION} BEGIN 1|"),
            closing("a transaction whose key is of no kind", f"transaction NO:s:1 {SESSION} BEGIN 1|"),
            closing("a branch whose key has four fields", f"transaction XID:7:6731:6231 {SESSION} BEGIN 1|"),
            closing("a branch whose id is no hex", f"transaction XID:7:67zz:6231:q {SESSION} BEGIN 1|"),
            closing("a branch whose format is no number", f"transaction XID:x:6731:6231:q {SESSION} BEGIN 1|"),
            closing("a put with a key of no kind", "put {t} 0 5 0 -1 NO:s:1 1|hello"),
        ]
    ),
    "a line that ends in LF alone is not one yet": [s("version 1\nversion 2|")],
    # ---- local transactions
    "local transaction": [
        tx("BEGIN", LOCAL, -2147483645, "20"),
        tx_put("{t}", "t1", LOCAL, -2147483644),
        tx_put("{t}", "t2", LOCAL, -2147483643, partition=1),
        s("get {t} g 0 0 1024 1|"),
        tx("COMMIT_ONE_PHASE", LOCAL, -2147483642),
        *written_behind(0, 1),
        s("get {t} g 0 0 1024 2|"),
        s("get {t} g 1 0 1024 3|"),
        tx("COMMIT_ONE_PHASE", LOCAL, 4),
    ],
    "local rollback": [
        put("{t}", b"before", 1),
        tx("BEGIN", LOCAL, 2),
        tx_put("{t}", "t1", LOCAL, 3),
        tx("ROLLBACK", LOCAL, 4),
        s("get {t} g 0 0 1024 5|"),
        tx_put("{t}", "t2", LOCAL, 6),
        tx("ROLLBACK", LOCAL, 7),
    ],
    "local transaction of nothing": [tx("BEGIN", LOCAL, 1), tx("COMMIT_ONE_PHASE", LOCAL, 2)],
    "local transaction begun twice": [
        tx("BEGIN", LOCAL, 1),
        tx("BEGIN", LOCAL, 2),
        tx_put("{t}", "t1", LOCAL, 3),
        tx("COMMIT_ONE_PHASE", LOCAL, 4),
        *written_behind(0),
        s("get {t} g 0 0 1024 5|"),
    ],
    "put into a transaction that was not begun": [tx_put("{t}", "t1", LOCAL, 1)],
    "put into a transaction with any partition": [
        tx("BEGIN", LOCAL, 1),
        tx_put("{t}", "t1", LOCAL, 2, partition=-1),
        tx("ROLLBACK", LOCAL, 3),
    ],
    "put into a transaction that the topic refuses": [
        tx("BEGIN", LOCAL, 1),
        tx_put("unknown", "t1", LOCAL, 2),
        tx_put("{t}", "t2", LOCAL, 3, partition=7),
        tx_put("{t}", "t3", LOCAL, 4, checksum="7"),
        tx("COMMIT_ONE_PHASE", LOCAL, 5),
        *written_behind(0),
        s("get {t} g 0 0 1024 6|"),
    ],
    "a put that names no transaction": [s("put {t} 0 5 0 -1 null 1|hello")],
    "an old put with a transaction": [
        tx("BEGIN", LOCAL, 1),
        s(f"put {{t}} 0 5 0 {LOCAL} 2|hello"),
        tx("COMMIT_ONE_PHASE", LOCAL, 3),
        *written_behind(0),
        s("get {t} g 0 0 1024 4|"),
    ],
    "END is not answered": [tx("BEGIN", LOCAL, 1), tx("END", LOCAL, 2, answers=0), s("version 3|"), tx("ROLLBACK", LOCAL, 4)],
    "a local transaction cannot be prepared": [tx("BEGIN", LOCAL, 1), tx("PREPARE", LOCAL, 2), tx("ROLLBACK", LOCAL, 3)],
    "a local transaction belongs to its connection": [
        tx("BEGIN", LOCAL, 1),
        tx_put("{t}", "t1", LOCAL, 2),
        tx("COMMIT_ONE_PHASE", LOCAL, 3, on=1),
        tx("COMMIT_ONE_PHASE", LOCAL, 4),
        *written_behind(0),
        s("get {t} g 0 0 1024 5|"),
    ],
    "a local transaction ends with its connection": [
        put("{t}", b"before", 1),
        tx("BEGIN", LOCAL, 2),
        tx_put("{t}", "t1", LOCAL, 3),
        CLOSE,
        tx("COMMIT_ONE_PHASE", LOCAL, 4),
        s("get {t} g 0 0 1024 5|"),
    ],
    "transactions of an unknown local key": [
        tx("COMMIT_ONE_PHASE", f"TX:{SESSION}:9", 1),
        tx("ROLLBACK", f"TX:{SESSION}:9", 2),
        tx("COMMIT_TWO_PHASE", f"TX:{SESSION}:9", 3),
        tx("PREPARE", f"TX:{SESSION}:9", 4),
        tx("FORGET", f"TX:{SESSION}:9", 5),
    ],
    # ---- XA
    "branch": [
        tx("BEGIN", "XID:7:6731:6231:uqA", -2147483638, "uqA"),
        tx_put("{t}", "x1", "XID:7:6731:6231:uqA", 1),
        tx_put("{t}", "x2", "XID:7:6731:6231:uqA", 2, partition=1),
        tx("END", "XID:7:6731:6231:uqA", 3, "uqA", answers=0),
        s("get {t} g 0 0 1024 4|"),
        tx("PREPARE", "XID:7:6731:6231:uqA", -2147483635, "uqA"),
        tx("RECOVER", "null", -2147483634, "uqA"),
        tx("RECOVER", "null", 5, "other"),
        s("get {t} g 0 0 1024 6|"),
        tx("COMMIT_TWO_PHASE", "XID:7:6731:6231:uqA", 7, "uqA"),
        *written_behind(0, 1),
        s("get {t} g 0 0 1024 9|"),
        s("get {t} g 1 0 1024 10|"),
        tx("RECOVER", "null", 11, "uqA"),
    ],
    "branch rolled back": [
        put("{t}", b"before", 1),
        tx("BEGIN", "XID:7:6732:6231:uqB", 2, "uqB"),
        tx_put("{t}", "x1", "XID:7:6732:6231:uqB", 3),
        tx("PREPARE", "XID:7:6732:6231:uqB", 4, "uqB"),
        tx("ROLLBACK", "XID:7:6732:6231:uqB", 5, "uqB"),
        s("get {t} g 0 0 1024 6|"),
        tx("RECOVER", "null", 7, "uqB"),
        tx("ROLLBACK", "XID:7:6732:6231:uqB", 8, "uqB"),
    ],
    "branch in one phase": [
        tx("BEGIN", "XID:7:6733:6231:uqC", 1, "uqC"),
        tx_put("{t}", "x1", "XID:7:6733:6231:uqC", 2),
        tx("COMMIT_ONE_PHASE", "XID:7:6733:6231:uqC", 3, "uqC"),
        *written_behind(0),
        s("get {t} g 0 0 1024 4|"),
    ],
    "branch of nothing": [
        tx("BEGIN", "XID:7:6734:6231:uqD", 1, "uqD"),
        tx("PREPARE", "XID:7:6734:6231:uqD", 2, "uqD"),
        tx("COMMIT_TWO_PHASE", "XID:7:6734:6231:uqD", 3, "uqD"),
    ],
    "branch committed without being prepared": [
        tx("BEGIN", "XID:7:6735:6231:uqE", 1, "uqE"),
        tx_put("{t}", "x1", "XID:7:6735:6231:uqE", 2),
        tx("COMMIT_TWO_PHASE", "XID:7:6735:6231:uqE", 3, "uqE"),
        tx("ROLLBACK", "XID:7:6735:6231:uqE", 4, "uqE"),
    ],
    "branch prepared twice": [
        tx("BEGIN", "XID:7:6736:6231:uqF", 1, "uqF"),
        tx_put("{t}", "x1", "XID:7:6736:6231:uqF", 2),
        tx("PREPARE", "XID:7:6736:6231:uqF", 3, "uqF"),
        tx("PREPARE", "XID:7:6736:6231:uqF", 4, "uqF"),
        tx_put("{t}", "x2", "XID:7:6736:6231:uqF", 5),
        tx("COMMIT_ONE_PHASE", "XID:7:6736:6231:uqF", 6, "uqF"),
        tx("ROLLBACK", "XID:7:6736:6231:uqF", 7, "uqF"),
    ],
    "branch prepared and begun again": [
        tx("BEGIN", "XID:7:6737:6231:uqG", 1, "uqG"),
        tx_put("{t}", "x1", "XID:7:6737:6231:uqG", 2),
        tx("PREPARE", "XID:7:6737:6231:uqG", 3, "uqG"),
        tx("BEGIN", "XID:7:6737:6231:uqG", 4, "uqG"),
        tx("ROLLBACK", "XID:7:6737:6231:uqG", 5, "uqG"),
    ],
    "branch goes on without its connection": [
        tx("BEGIN", "XID:7:6738:6231:uqH", 1, "uqH"),
        tx_put("{t}", "x1", "XID:7:6738:6231:uqH", 2),
        tx("PREPARE", "XID:7:6738:6231:uqH", 3, "uqH"),
        CLOSE,
        tx("RECOVER", "null", 4, "uqH"),
        tx("COMMIT_TWO_PHASE", "XID:7:6738:6231:uqH", 5, "uqH"),
        *written_behind(0),
        s("get {t} g 0 0 1024 6|"),
    ],
    "unknown branch": [
        tx("PREPARE", "XID:7:00:6231:uqI", 1, "uqI"),
        tx("COMMIT_ONE_PHASE", "XID:7:00:6231:uqI", 2, "uqI"),
        tx("COMMIT_TWO_PHASE", "XID:7:00:6231:uqI", 3, "uqI"),
        tx("ROLLBACK", "XID:7:00:6231:uqI", 4, "uqI"),
        tx("FORGET", "XID:7:00:6231:uqI", 5, "uqI"),
        tx_put("{t}", "x1", "XID:7:00:6231:uqI", 6),
    ],
    "branch without ids": [
        tx("BEGIN", "XID:-1:::uqJ", 1, "uqJ"),
        tx_put("{t}", "x1", "XID:-1:::uqJ", 2),
        tx("PREPARE", "XID:-1:::uqJ", 3, "uqJ"),
        tx("RECOVER", "null", 4, "uqJ"),
        tx("ROLLBACK", "XID:-1:::uqJ", 5, "uqJ"),
    ],
    "transactions without a key": [
        tx("FORGET", "null", 1),
        tx("COMMIT_ONE_PHASE", "null", 2),
        tx("ROLLBACK", "null", 3),
        tx("PREPARE", "null", 4),
        tx("BEGIN", "null", 5),
    ],
}  # fmt: skip


def run(name: str, address: str) -> list[str]:
    """Run a scenario against the MetaQ 1.x server at `address`. Returns what came back, one line an answer."""
    topic = "t-" + re.sub(r"[^a-z0-9]", "-", name.lower())
    connections: dict[int, TextConnection] = {}
    lines: list[str] = []
    try:
        for number, step in enumerate(SCENARIOS[name]):
            if step.on < 0:
                while connections:
                    connections.popitem()[1].close()
                continue
            connection = connections.get(step.on) or connections.setdefault(step.on, TextConnection(address))
            connection.write(step.data.replace(b"{t}", topic.encode()))
            answers = [connection.read() for _ in range(step.answers)]
            answers.sort(key=lambda answer: answer.opaque if answer else 0)
            lines += [f"{number}: {written(answer, topic)}" for answer in answers]
    finally:
        for connection in connections.values():
            connection.close()
    return lines


def written(answer: Answer | None, topic: str) -> str:
    """An answer in one line, masked."""
    if answer is None:
        return "closed"
    if answer.code is None:
        return f"value {answer.opaque} {frames(answer.body)}"
    text = answer.body.decode(errors="backslashreplace")
    text = re.sub(r"-?\b(?!9223372036854775)\d{16,}\b", "<id>", text).replace(topic, "{t}")
    text = re.sub(r"meta://[\d.]+:\d+", "meta://<broker>", text)
    text = re.sub(r"(Count/Duration|Duration)=([\d.]+|invalid)", r"\1=<time>", text)
    if text.startswith("STATS\r\n"):
        text = "\r\n".join(_own_lines(text.split("\r\n"), topic))
    text = re.sub(r"^\d+(\.\d+)+$", "<version>", text)
    text = re.sub(r"@[0-9a-f]{4,}\b", "@<address>", text)
    return f"result {answer.code} {answer.opaque} {text!r}"


_WHOLE_SERVER = re.compile(
    r"(pid|port|uptime|version|curr_connections|threads|cmd_\w+|tx_\w+|get_miss|put_failed|total_messages|topics|config_checksum"
    r"|realtime_\w+) (?=\d|Count=|null)"
)


def _own_lines(lines: list[str], topic: str) -> list[str]:
    """Of statistics, what other scenarios do not change."""
    found = []
    for line in lines:
        if matched := _WHOLE_SERVER.match(line):
            found.append(f"{matched[0]}<number>")
        elif not re.match(r"(t-|shut )", line) or line.split(" ")[0] in {topic, "{t}"}:
            found.append(line)
    return found


def frames(data: bytes) -> str:
    """Frames without their ids; of what is no whole frame, its size."""
    found, at = [], 0
    while len(data) - at >= 20:
        size, checksum, _, flag = struct.unpack_from(">iiqi", data, at)
        body = data[at + 20 : at + 20 + size] if size >= 0 else b""
        if size < 0 or len(body) < size or crc(body) != checksum:
            break
        found.append(f"flag {flag} {body!r}" if size < 300 else f"flag {flag} {size} bytes {zlib.crc32(body)}")
        at += 20 + size
    rest = f" and {len(data) - at} bytes" if at < len(data) else ""
    return f"{len(data)} bytes: {'; '.join(found)}{rest}"
