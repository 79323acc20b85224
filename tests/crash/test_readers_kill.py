"""kill -9 beside consumers: records are readable when they are appended, and none that was read is gone afterwards."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from tests.interop.metaq1 import OurServer, TextConnection
from tests.interop.remoting_client import RemotingClient
from tests.support import eventually

GOALS: Final = (50, 400, 1500)
"""Records that the slowest consumer has seen when the broker is killed."""
HOLD_MS: Final = 1000
FILTER_AND_HOLD: Final = 6


class Reader:
    """A consumer that reads one queue until the broker is gone; `seen` is all it got."""

    def __init__(self) -> None:
        self.seen = b""
        self.count = 0
        self.ended: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _run(self) -> None:
        try:
            while self._read():
                pass
        except (OSError, AssertionError, IndexError, ValueError) as error:  # it ended, perhaps within an answer
            self.ended = error

    def _read(self) -> bool:
        raise NotImplementedError


class TextReader(Reader):
    """Of 1.x: gets, one after the other, from where the last one ended."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._connection = TextConnection(address)

    def _read(self) -> bool:
        answer = self._connection.ask(f"get test g 0 {len(self.seen)} 65536 1")
        if answer is None:
            return False
        if answer.code is None:
            self.seen += answer.body
            self.count = len(self.seen) // 30
        return True


class PullReader(Reader):
    """Of RocketMQ: pulls that wait for the next message."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._client = RemotingClient(address)

    def _read(self) -> bool:
        header = headers.PullHeader(
            group="g", topic="test", queue_id=0, queue_offset=self.count, max_messages=32, sys_flag=FILTER_AND_HOLD,
            suspend_ms=HOLD_MS, commit_offset=0, subscription="*", sub_version=0, expression_type="TAG",
        )  # fmt: skip
        answer = self._client.ask(RequestCode.PULL_MESSAGE, header)
        assert answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST}, answer
        place = 0
        while place < len(answer.body):
            place += int.from_bytes(answer.body[place : place + 4], "big")
            self.count += 1
        self.seen += answer.body
        return True


class Writer(Reader):
    """A producer that nobody answers in time: it puts on and on, and reads what comes."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._connection = TextConnection(address)

    def _read(self) -> bool:
        lines = [b"put test 0 %d 0 %d\r\n%b" % (10 + n % 50, n, b"x" * (10 + n % 50)) for n in range(100)]
        self._connection.write(b"".join(lines))
        return all(self._connection.read() is not None for _ in lines)


def test_no_consumer_sees_a_record_which_a_kill_of_the_broker_removes(tmp_path: Path) -> None:
    """Neither a 1.x client nor one of RocketMQ, whose pull is held until the record comes; the next life adds behind them."""
    with OurServer(tmp_path, None, {"test": {}}, {"unflushThreshold": 100_000, "maxSegmentSize": 1 << 20}) as server:
        texts, pulls = b"", b""
        for goal in GOALS:
            readers = TextReader(server.text), PullReader(server.broker)
            for reader in (Writer(server.text), *readers):
                reader.start()
            eventually(lambda: min(reader.count for reader in readers) >= goal, what=f"{goal} records")  # noqa: B023
            server.kill()
            for reader in readers:
                reader.thread.join()
            server.start()
            after = TextReader(server.text), PullReader(server.broker)
            for reader, before in zip(after, readers, strict=True):
                while len(reader.seen) < len(before.seen):
                    assert reader._read()
            assert after[0].seen.startswith(readers[0].seen)
            assert after[1].seen.startswith(readers[1].seen)
            for seen, earlier in (
                (readers[0].seen, texts),
                (readers[1].seen, pulls),
            ):  # who was killed sooner has read less
                common = min(len(seen), len(earlier))
                assert seen[:common] == earlier[:common]
            texts, pulls = readers[0].seen, readers[1].seen
