"""Synchronous pairs of MetaQ 1.x in all combinations of the original server and ours, as processes at a real ZooKeeper."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest

from metaq.wire.metaq1.frame import frames as wire_frames
from tests.interop.metaq1 import Answer, Metaq1Client, TextConnection, Zookeeper, bodies, consumer, masked, sends
from tests.interop.metaq1_pair import PAIR_SERVERS, OurPairServer, PairServer
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

CRC = 907060870
MAX_SIZE = 1 << 20
TOPICS = {"test": {"numPartitions": 2}, "meta-test": {}}
_roots = (f"/pair-{number}" for number in itertools.count())


class Pair:
    def __init__(self, folder: Path, zookeeper: Zookeeper, master: str, slave: str, **samsa: object) -> None:
        self.root = next(_roots)
        self.zookeeper, registry = zookeeper, {"zk.zkRoot": self.root}
        self.slave = PAIR_SERVERS[slave](folder / "slave", zookeeper, TOPICS, role="gregor", registry=registry)
        self.master = PAIR_SERVERS[master](
            folder / "master",
            zookeeper,
            TOPICS,
            role="samsa",
            pair={"slave": self.slave.text, **samsa},
            registry=registry,
        )

    def __enter__(self) -> Self:
        try:
            self.slave.start()  # first, as the original's start program says
            self.master.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.master.kill()
        self.slave.kill()

    def registered(self) -> set[str]:
        """Nodes of brokers, without the root and without those that stay."""
        with self.zookeeper.nodes() as nodes:
            return {path.removeprefix(self.root) for path, node in nodes.tree(self.root).items() if node.ephemeral}


@pytest.fixture(
    scope="module",
    params=["ours-ours", "ours-original", "original-ours", pytest.param("original-original", marks=pytest.mark.all)],
)
def pair(
    request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """One pair for the tests of a combination; each leaves it as it was."""
    master, _, slave = request.param.partition("-")
    with Pair(tmp_path_factory.mktemp("pair"), zookeeper, master, slave) as made:
        yield made


def asked(server: PairServer, *lines: tuple[str, bytes]) -> list[Answer | None]:
    with TextConnection(server.text) as text:
        return [text.ask(line, body) for line, body in lines]


def frames(server: PairServer, partition: int) -> bytes:
    (answer,) = asked(server, (f"get test g {partition} 0 1000000 7", b""))
    assert answer is not None
    return answer.body if answer.code is None else b""


def put(server: PairServer, body: bytes, partition: int = 0) -> Answer:
    (answer,) = asked(server, (f"put test {partition} {len(body)} 0 1", body))
    assert answer is not None
    return answer


def same(pair: Pair) -> None:
    for partition in (0, 1):
        assert frames(pair.master, partition) == frames(pair.slave, partition)


RECORDED = [
    (f"put test 0 5 0 {CRC} 1", b"hello", 200, None),
    ("put test -1 5 0 1", b"hello", 200, None),
    ("put test 0 5 0 99 3", b"hello", 500, "Checksum failure,message may be corrupted when transfering on networking."),
    (f"put test 9 5 0 {CRC} 4", b"hello", 500, "wrong partition 9"),
    (f"put nope 0 5 0 {CRC} 5", b"hello", 500, "The server do not accept topic nope"),
]
"""What the original's master answered when it was recorded, refusals in bare words."""


def test_puts_are_answered_as_recorded_and_stored_on_both_sides(pair: Pair) -> None:
    answers = asked(pair.master, *((line, body) for line, body, _, _ in RECORDED))
    for answer, (_, _, code, text) in zip(answers, RECORDED, strict=True):
        assert answer is not None
        assert answer.code == code
        assert text is None or answer.text == text
    same(pair)
    assert frames(pair.master, 0)


def test_many_puts_at_once_keep_their_places(pair: Pair) -> None:
    count = 400
    with TextConnection(pair.master.text) as text:
        for number in range(count):
            body = b"%d" % number * 20
            text.write(b"put test %d %d 0 %d\r\n%b" % (number % 2, len(body), number, body))
        answers = [text.read() for _ in range(count)]
    assert {answer.code for answer in answers if answer is not None} == {200}
    same(pair)


def test_the_slave_is_in_no_registry(pair: Pair) -> None:
    registered = pair.registered()
    assert "/brokers/ids/0/master" in registered
    assert not any("slave" in path for path in registered)
    assert not any("_metaq_slave_status_test" in path for path in registered)
    with pair.zookeeper.nodes() as nodes:
        assert nodes.text(f"{pair.root}/brokers/ids/0/master") == f"meta://{pair.master.text}"


def test_without_its_slave_the_master_takes_nothing_and_afterwards_both_are_the_same(pair: Pair) -> None:
    assert put(pair.master, b"before").code == 200
    pair.slave.kill()
    eventually(lambda: put(pair.master, b"without").text == "Slave is disconnected ", what="the loss is noticed")
    assert put(pair.master, b"without").code == 500
    assert frames(pair.master, 0)  # reads go on
    pair.slave.start()
    eventually(lambda: put(pair.master, b"after").code == 200, what="the slave is back")
    if isinstance(pair.master, OurPairServer):
        same(pair)


class Putting:
    """Puts into one partition, 50 at a time, and notes position → id of what is answered 200."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}
        self.over = False
        self._numbers = itertools.count()

    def run(self, address: str) -> None:
        """Put until it is over, or the server is."""
        with contextlib.suppress(ConnectionError), TextConnection(address) as text:
            while not self.over:
                batch = list(itertools.islice(self._numbers, 50))
                for number in batch:
                    body = b"%06d" % number * (number % 7 + 1)
                    text.write(b"put test 0 %d 0 %d\r\n%b" % (len(body), number, body))
                for _ in batch:
                    answer = text.read()
                    if answer is None:
                        return
                    if answer.code == 200:
                        message_id, _, position = map(int, answer.text.split(" "))
                        assert position not in self.acknowledged
                        self.acknowledged[position] = message_id

    def some_more(self, count: int = 200) -> None:
        before = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > before + count, what="puts are acknowledged")


def test_what_was_acknowledged_is_at_the_slave_in_its_place_whatever_was_killed(
    zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """The slave is killed twice in the middle of puts and comes back, then the master is killed: kill -9, each time."""
    putting = Putting()
    with Pair(tmp_path, zookeeper, "ours", "ours") as pair, ThreadPoolExecutor(1) as pool:
        work = pool.submit(putting.run, pair.master.text)
        try:
            for _ in range(2):
                putting.some_more()
                pair.slave.kill()
                pair.slave.start()
            putting.some_more()
            pair.master.kill()
            work.result(PATIENCE)
        finally:
            putting.over = True
        there, position = dict[int, int](), 0
        while True:
            (answer,) = asked(pair.slave, (f"get test g 0 {position} 1000000 7", b""))
            assert answer is not None
            if answer.code is not None:
                break
            for one in wire_frames(answer.body):
                there[position] = one.message_id
                position += one.size
    found = putting.acknowledged
    assert len(found) > 600
    assert {position: there.get(position) for position in found} == found


DETAIL = "Put message to [broker 'meta://HERE'] [partition '{}'] failed.Detail:"


@pytest.mark.all  # the master waits for 12 s whether the slave has flushed more than it says
def test_a_new_slave_gets_everything(zookeeper: Zookeeper, tmp_path: Path) -> None:
    with Pair(tmp_path, zookeeper, "ours", "ours") as pair:
        for number in range(20):
            assert put(pair.master, b"%d" % number, number % 2).code == 200
        pair.slave.kill()
        shutil.rmtree(pair.slave.data)
        pair.slave.data.mkdir()
        pair.slave.start()
        eventually(lambda: put(pair.master, b"after").code == 200, what="the new slave has everything")
        same(pair)
        assert frames(pair.slave, 1)


GREGOR = [
    (f"sync test 0 5 0 12345678901234 {CRC} 1", b"hello", 200, "12345678901234 0 0"),
    ("sync test 0 5 0 12345678901235 2", b"hello", 200, "12345678901235 0 25"),
    (
        "sync test 0 5 0 12345678901236 77 3", b"hello", 500,
        f"{DETAIL.format('test-0')}Checksum failure,message may be corrupted when transfering on networking.",
    ),
    (
        f"sync test 9 5 0 7 {CRC} 4", b"hello", 500,
        f"{DETAIL.format('test-9')}wrong partition 9",
    ),
    (
        f"sync nope 0 5 0 7 {CRC} 5", b"hello", 500,
        f"{DETAIL.format('nope-0')}The server do not accept topic nope",
    ),
    (f"sync _metaq_slave_status_test 0 5 0 12345678901236 {CRC} 6", b"hello", 200, "12345678901236 0 0"),
    (f"sync test 0 5 0 -7 {CRC} 7", b"hello", 200, "-7 0 50"),
    ("sync test 1 0 0 5 0 8", b"", 200, "5 1 0"),
    ("transaction TX:10.0.0.5-1-1:1 10.0.0.5-1-1 BEGIN 9", b"", 500, "Unsupported beginTransaction"),
    ("transaction null 10.0.0.5-1-1 RECOVER uqA 10", b"", 500, "Unsupported getPreparedTransactions"),
]  # fmt: skip


@pytest.mark.parametrize("kind", PAIR_SERVERS)
def test_a_slave_answers_syncs_as_recorded(kind: str, zookeeper: Zookeeper, tmp_path: Path) -> None:
    root = next(_roots)
    with PAIR_SERVERS[kind](tmp_path, zookeeper, TOPICS, role="gregor", registry={"zk.zkRoot": root}) as slave:
        for answer, (_, _, code, text) in zip(
            asked(slave, *((line, body) for line, body, _, _ in GREGOR)), GREGOR, strict=True
        ):
            assert answer is not None
            assert (answer.code, answer.text) == (code, text.replace("HERE", slave.text))
        # What the original does with a message that comes twice, and with a put, is its own.
        twice, puts = asked(slave, ("sync test 0 5 0 12345678901235 2", b"hello"), ("put test 0 5 0 3", b"hello"))
        assert twice is not None
        assert puts is not None
        assert (twice.text, puts.code) == (
            ("12345678901235 0 25", 500) if kind == "ours" else ("12345678901235 0 75", 200)
        )
        with zookeeper.nodes() as nodes:
            assert f"{root}/brokers/ids/0" not in nodes.tree(root)


@pytest.mark.parametrize("first", ["ours", "original"])
def test_a_java_consumer_goes_on_at_the_slave_that_takes_over(
    first: str, java1: Metaq1Client, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """Kill -9 of the master in the middle; its slave starts as master with a new slave, and nothing acknowledged is lost."""
    with Pair(tmp_path, zookeeper, first, "ours") as pair:
        root = pair.root
        java1.factory("f", zookeeper.address, root=root)
        java1.publisher("p", "f", ["test"])
        consumer(java1, "c", root, {"test": MAX_SIZE})
        texts = [f"before {number}" for number in range(40)]
        assert all(one["ok"] for one in java1.send("p", "test", texts))
        assert sorted(bodies(java1.wait("c", 40))) == sorted(texts)
        unread = [f"unread {number}" for number in range(10)]
        java1.shutdown("c")
        assert all(one["ok"] for one in java1.send("p", "test", unread))
        pair.master.kill()
        pair.slave.stop()
        new = OurPairServer(tmp_path / "new", zookeeper, TOPICS, role="gregor", registry={"zk.zkRoot": root})
        with new:
            pair.slave.become("samsa", {"slave": new.text, "recoverOffset": "true"})
            pair.slave.start()
            later = [f"later {number}" for number in range(10)]
            sends(java1, "p", "test", later)
            consumer(java1, "d", root, {"test": MAX_SIZE})
            got = bodies(java1.wait("d", 20))
            assert sorted(got) == sorted(unread + later)
            for partition in (0, 1):  # the new slave has the old messages, too
                assert frames(pair.slave, partition) == frames(new, partition)
        java1.shutdown_all()


def test_a_prepared_branch_is_ended_once_at_the_slave_that_takes_over(zookeeper: Zookeeper, tmp_path: Path) -> None:
    """Kill -9 of the master between PREPARE and COMMIT."""
    key = "XID:7:6731:6231:uqA"
    with Pair(tmp_path, zookeeper, "ours", "ours") as pair:
        first = asked(
            pair.master,
            (f"transaction {key} s BEGIN uqA 1", b""),
            (f"put test 0 2 0 {key} 2", b"t1"),
            (f"put test 1 2 0 {key} 3", b"t2"),
            (f"transaction {key} s PREPARE uqA 4", b""),
        )
        assert [answer.code for answer in first if answer is not None] == [200] * 4
        pair.master.kill()
        pair.slave.stop()
        registry = {"zk.zkRoot": pair.root}
        with OurPairServer(tmp_path / "new", zookeeper, TOPICS, role="gregor", registry=registry) as new:
            pair.slave.become("samsa", {"slave": new.text, "recoverOffset": "true"})
            pair.slave.start()
            eventually(lambda: put(pair.slave, b"before").code == 200, what="the new slave is there")
            listed, committed, again = asked(
                pair.slave,
                ("transaction null s RECOVER uqA 5", b""),
                (f"transaction {key} s COMMIT_TWO_PHASE uqA 6", b""),
                (f"transaction {key} s COMMIT_TWO_PHASE uqA 7", b""),
            )
            assert listed is not None
            assert committed is not None
            assert again is not None
            assert (listed.text, committed.code) == (key, 200)
            assert again.text.startswith("XAException:code=-4")
            for partition, body in ((0, b"t1"), (1, b"t2")):
                assert frames(pair.slave, partition) == frames(new, partition)
                assert frames(new, partition).endswith(body)


def test_an_original_master_s_consumer_goes_on_by_ids_where_positions_differ(
    zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """The slave came late, so it lacks what was before it: offsets in ZooKeeper are rewritten to its own positions."""
    root = next(_roots)
    registry = {"zk.zkRoot": root}
    new = OurPairServer(tmp_path / "new", zookeeper, TOPICS, role="gregor", registry=registry)
    late = OurPairServer(tmp_path / "late", zookeeper, TOPICS, role="gregor", registry=registry)
    ids = [2063936796236221440 + (number << 12) for number in range(5)]
    with late, new:
        for number, message_id in enumerate(ids):
            (answer,) = asked(late, (f"sync test 0 5 0 {message_id} {number}", b"hello"))
            assert answer is not None
            assert answer.text == f"{message_id} 0 {25 * number}"
        late.stop()
        with zookeeper.nodes() as nodes:
            offsets = {
                "exact": f"{ids[2]}-1075",
                "between": f"{ids[2] + 5}-2000",
                "older": f"{ids[0] - 5}-500",
                "kept": f"{ids[1]}-50",
                "nothing": "-1-1024",
                "negative": "-5468926395948204032-103",
            }
            for group, text in offsets.items():
                nodes.client.create(f"{root}/consumers/{group}/offsets/test/0-0", text.encode(), makepath=True)
            nodes.client.create(f"{root}/consumers/empty/offsets/test/0-1", b"77-1024", makepath=True)
            late.become("samsa", {"slave": new.text, "recoverOffset": "true"})
            late.start()
            found = {group: nodes.text(f"{root}/consumers/{group}/offsets/test/0-0") for group in offsets}
            assert found == {
                "exact": f"{ids[2]}-75",
                "between": f"{ids[2]}-75",
                "older": "-1-0",
                "kept": f"{ids[1]}-50",
                "nothing": "-1-1024",
                "negative": "-5468926395948204032-103",
            }
            assert nodes.text(f"{root}/consumers/empty/offsets/test/0-1") == "-1-0"
        late.kill()


@pytest.mark.parametrize("master", ["ours", pytest.param("original", marks=pytest.mark.all)])
def test_a_slave_that_fails_too_often_takes_its_master_out_of_zookeeper(
    master: str, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """The slave does not know the topic; with it, it works again."""
    with Pair(tmp_path, zookeeper, master, "ours", slaveContinuousFailureThreshold=3) as pair:
        pair.slave.stop()
        pair.slave.configure({"other": {}})
        pair.slave.start()
        eventually(lambda: put(pair.master, b"x").text != "Slave is disconnected ", what="the slave is back")
        refused = put(pair.master, b"x")
        assert refused.code == 500
        assert masked(refused.text) == f"Put message to [slave 'meta://{pair.slave.text}'] [partition 'test-0'] failed"
        for _ in range(3):
            put(pair.master, b"x")
        # The test topic is taken, so that it comes back at once, and leaves again with the next failures.
        log = pair.master.log
        eventually(lambda: "is back." in log.read_text(), what="the slave took a test message")
        eventually(lambda: "/brokers/ids/0/master" in pair.registered(), what="the master is registered again")
