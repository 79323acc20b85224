"""kill -9 of a broker at every record of a 1.x transaction: all of it comes, or nothing, whoever looks.

The broker dies at a fault point (tests/crash/mortal_broker.py): behind the first record that the transaction writes, the
second, ..., without an answer for that one and with it. Then a transaction manager comes back and ends what is in doubt.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.client.conversation.reading.pulling import Pull
from metaq.client.conversation.staged.staging import ListStaged
from metaq.model import MessageQueue
from metaq.model.transactions.staging import Phase
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import StagedSurvey
from metaq.wire.metaq1.frame import frames
from metaq.wire.record import decode_record
from tests.crash.mortal_broker import PROGRAM, die_behind, is_armed, spare
from tests.interop.metaq1 import OurServer, TextConnection
from tests.interop.servers import launch
from tests.staged import ask
from tests.support import environment, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLACES = [("test", 0), ("test", 1), ("stock", 0)]
MESSAGES, SIZE = 5, 64 << 10
"""Of each partition: two chunks."""
END = 1 << 40


class MortalServer(OurServer):
    """`metaq broker -c server.ini` that dies where it is told."""

    def start(self) -> None:
        eventually(self._started, what="the broker is up")

    def _started(self) -> bool:
        port = self.broker.rpartition(":")[2]
        command = [sys.executable, "-m", PROGRAM, "broker", "-c", str(self.ini), "--port", port]
        paths = {**environment(), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        try:
            self._process, ready = launch(command, self.log, r"^ready broker \S+ (\S+)", paths)
        except AssertionError as error:
            if "address already in use" in str(error):  # somebody else has taken its port while it was dead
                return False
            raise
        self.broker = ready.group(1)
        return True


class Gone(Exception):
    """The broker has not answered."""


class Run:
    """One transaction after the other at one broker, and what must come of each."""

    def __init__(self, server: MortalServer) -> None:
        self._server, self._numbers = server, itertools.count()
        self._text: TextConnection | None = None
        self._from = dict.fromkeys(PLACES, (0, 0))
        """Of each partition, position and queue offset behind what earlier transactions have left."""
        self.deaths = 0

    # ------------------------------------------------------------------ a client

    def say(self, line: str, body: bytes = b"") -> tuple[int | None, bytes]:
        """Code and body of the answer. Raises Gone."""
        try:
            if self._text is None:
                self._text = TextConnection(self._server.text)
            answer = self._text.ask(f"{line} 7", body)
        except OSError:
            answer = None
        except AssertionError:  # half an answer
            answer = None
        if answer is None:
            self._text = None
            raise Gone
        return answer.code, answer.body

    def do(self, key: str, step: str) -> tuple[int | None, bytes]:
        return self.say(f"transaction {key} s-1 {step}")

    def bodies(self, number: int, place: tuple[str, int]) -> list[bytes]:
        return [b"%d %s %d %d " % (number, place[0].encode(), place[1], row) + bytes(SIZE) for row in range(MESSAGES)]

    def fill(self, key: str, number: int) -> None:
        """Begin, and put everything."""
        assert self.do(key, "BEGIN")[0] == 200
        for topic, partition in PLACES:
            for body in self.bodies(number, (topic, partition)):
                assert self.say(f"put {topic} {partition} {len(body)} 0 {key}", body)[0] == 200

    def transact(self, *, local: bool) -> tuple[str, int, list[str]]:
        """A transaction as far as the broker lives. Returns its key, its number, and the steps that were answered."""
        number, done = next(self._numbers), list[str]()
        key = f"TX:s-1:{number}" if local else f"XID:7:{number:08x}:62:q"
        steps = ["COMMIT_ONE_PHASE"] if local else ["PREPARE", "COMMIT_TWO_PHASE"]
        try:
            self.fill(key, number)
            for step in steps:
                assert self.do(key, step)[0] == 200
                done.append(step)
        except Gone:
            pass
        return key, number, done

    # ------------------------------------------------------------------ what is seen

    def seen(self, number: int) -> int | None:
        """How many of the transaction's messages are there, in order; None: only some, or not alike for all who look."""
        counts = set[int]()
        for place in PLACES:
            wanted = self.bodies(number, place)
            for found in (self._got(place), self._pulled(place)):
                if found not in ([], wanted):
                    return None
                counts.add(len(found))
        return counts.pop() if len(counts) == 1 else None

    def _got(self, place: tuple[str, int]) -> list[bytes]:
        """From the MetaQ 1.x server."""
        position, found = self._from[place][0], list[bytes]()
        while True:
            code, data = self.say(f"get {place[0]} g {place[1]} {position} 1048576")
            if code is not None:
                assert code == 404, (code, data)
                return found
            for one in frames(data):
                found.append(bytes(one.body))
                position += 20 + len(one.body)

    def _pulled(self, place: tuple[str, int]) -> list[bytes]:
        """By a client of RocketMQ."""
        queue, offset, found = MessageQueue(place[0], self._broker, place[1]), self._from[place][1], list[bytes]()
        while True:  # a log file ends an answer
            got = ask(self._server.broker, Pull(group="g", queue=queue, offset=offset, count=32))
            data, offset = bytes(got.records), got.next_offset
            if not data:
                return found
            while data:
                size = int.from_bytes(data[:4], "big")
                found.append(decode_record(data[:size]).body)
                data = data[size:]

    _broker = "broker-0"

    def _stored(self, number: int) -> int:
        """How many are in the store, read by nobody's leave."""
        wanted = {body for place in PLACES for body in self.bodies(number, place)}
        topics = {topic for topic, _ in PLACES}
        found = [record for record in StoreReader(self._server.data).records() if record.topic in topics]
        return sum(record.body in wanted for record in found)

    # ------------------------------------------------------------------ a life

    def live(self, records: int, *, answered: bool, local: bool) -> bool:
        """One transaction with a broker that dies behind so many records. Returns whether it did."""
        die_behind(self._server, records, answered=answered)  # type: ignore[arg-type]
        key, number, done = self.transact(local=local)
        died = not spare(self._server)  # type: ignore[arg-type]
        if died:
            assert not is_armed(self._server)  # type: ignore[arg-type]
            self._text = None
            self._server.kill()
            self._server.start()
            self.deaths += 1
        self._settle()
        in_doubt = [] if local else self.do("null", "RECOVER")[1].decode().split()
        whole = len(self.bodies(number, PLACES[0]))
        if key in in_doubt:
            assert "COMMIT_TWO_PHASE" not in done
            assert (self.seen(number), self._stored(number)) == (0, 0), "nothing of what is in doubt is there"
            assert self.do(key, "COMMIT_TWO_PHASE")[0] == 200
            done.append("COMMIT_TWO_PHASE")
            self._settle()
        elif not local:
            assert done != ["PREPARE"] or died, "what is prepared is in doubt, until it is committed"
        there = self.seen(number)
        must = any(step.startswith("COMMIT") for step in done) or (done == ["PREPARE"])
        assert there in ({whole} if must else {0, whole}), (done, there)
        assert there is not None
        assert self._stored(number) == there * len(PLACES), "nothing is there twice"
        if there:
            self._from = {
                place: (position + sum(20 + len(body) for body in self.bodies(number, place)), offset + MESSAGES)
                for place, (position, offset) in self._from.items()
            }
        return died

    def _settle(self) -> None:
        """Wait until what is committed is where it belongs, and what a start drops is dropped."""

        def is_so() -> bool:
            staged = ask(self._server.broker, ListStaged())
            return all(one.remaining == 0 and one.phase is not Phase.OPEN for one in staged)

        eventually(is_so, what="the broker has settled what it found")

    def check(self) -> None:
        """Nothing is left over, and the log tells of no trouble."""
        survey = StagedSurvey(StoreReader(self._server.data))
        assert survey.problems + [problem for one in survey.transactions.values() for problem in one.problems] == []
        assert self.do("null", "RECOVER") == (200, b"")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    topics = {"test": {"numPartitions": 2}, "stock": {"numPartitions": 1}}
    with MortalServer(tmp_path, None, topics, {"maxTransferSize": 2 << 20, "unflushThreshold": 1000}) as server:
        yield Run(server)


def live_all(run: Run, every: int, *, local: bool) -> None:
    """Die at every so-manieth record, until a transaction has no more of them."""
    places = ((records, answered) for records in itertools.count(1) for answered in (False, True))
    for records, answered in itertools.islice(places, 0, None, every):
        try:
            if not run.live(records, answered=answered, local=local):
                break
        except Exception as error:
            error.add_note(f"behind {records} records, {'' if answered else 'not '}answered")
            raise
    run.check()


@pytest.mark.parametrize("local", [True, False], ids=["local", "XA"])
def test_a_broker_that_dies_at_some_records_of_a_transaction_delivers_all_of_it_or_nothing(
    run: Run, *, local: bool
) -> None:
    live_all(run, 11, local=local)
    assert run.deaths >= 3


@pytest.mark.all
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("local", [True, False], ids=["local", "XA"])
def test_a_broker_that_dies_at_any_record_of_a_transaction_delivers_all_of_it_or_nothing(
    run: Run, *, local: bool
) -> None:
    live_all(run, 1, local=local)
    assert run.deaths >= 40
