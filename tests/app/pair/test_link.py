"""The connection from the master of a pair to its slave: lines out, answers in, and what a slave may say that is none."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from metaq.app.pair.link import SlaveSession, line_of
from metaq.errors import Reason, Refused, RemoteProtocolError
from metaq.model.metaq1.pair import AskEnd, AskHead, BranchCopy, BranchStep, Heard, SyncMessage
from metaq.store.metaq1.frames import FramesRead
from metaq.wire.metaq1.commands import encode
from tests.servers.metaq1.support import TextPeer

HELLO = SyncMessage("test", 0, 0, -5468925858225827840, b"hello", 907060870)


class Samsa:
    """What a session needs of the service."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Heard]] = []
        self.over = 0
        """Answers at the last call of `answers_over`."""
        self.why: str | None = None

    def answered(self, opaque: int, heard: Heard) -> None:
        self.answers.append((opaque, heard))

    def answers_over(self) -> None:
        self.over = len(self.answers)

    def go_on(self) -> None:
        pass

    def detach(self, why: str) -> None:
        self.why = why


def test_lines_are_those_that_the_original_was_recorded_with() -> None:
    assert encode(line_of(-2147483648, HELLO)) == (
        b"sync test 0 5 0 -5468925858225827840 907060870 -2147483648\r\nhello"
    )
    assert encode(line_of(7, AskEnd("test", 1))) == b"offset test metaq-samsa 1 9223372036854775807 7\r\n"
    assert encode(line_of(7, AskHead("test", 1, 25))) == b"get test metaq-samsa 1 25 20 7\r\n"
    assert encode(line_of(7, BranchCopy(BranchStep.ASK))).startswith(b"sync rmq_sys_METAQ_BRANCHES 0 5 0 0 ")


def session(work) -> None:
    """Run `work` with a session, its peer and what it tells."""

    async def run() -> None:
        peer, samsa = TextPeer(50000), Samsa()
        with ThreadPoolExecutor(1) as thread:
            await work(SlaveSession(peer, samsa, thread), peer, samsa)

    asyncio.run(run())


def test_what_one_turn_says_goes_out_together_and_answers_come_in_pieces() -> None:
    async def work(made, peer, samsa) -> None:
        made.send(1, HELLO)
        made.send(2, HELLO)
        assert peer.writes == []
        await asyncio.sleep(0)
        assert len(peer.writes) == 1
        data = b"result 200 24 1\r\n-5468925858225827840 0 0value 3 2\r\nabcresult 404 2 -7\r\nno"
        for cut in range(len(data) + 1):
            samsa.answers.clear()
            used = made.data_received(memoryview(data[:cut]))
            made.data_received(memoryview(data[used:]))
            assert samsa.answers == [
                (1, Heard(200, b"-5468925858225827840 0 0")), (2, Heard(200, b"abc")), (-7, Heard(404, b"no")),
            ]  # fmt: skip
            assert samsa.over == 3

    session(work)


@pytest.mark.parametrize("data", [b"put test 0 1 0 1\r\nx", b"hello\r\n", b"value 70000 1\r\n", b"result x 0 1\r\n"])
def test_a_slave_that_speaks_otherwise_is_left(data) -> None:
    async def work(made, _peer, samsa) -> None:
        with pytest.raises(RemoteProtocolError):
            made.data_received(memoryview(data))
        made.connection_lost("it is malformed")
        assert samsa.why == "it is malformed"

    session(work)


def test_reads_in_the_thread_end_with_their_result_or_refusal_and_not_behind_the_end() -> None:
    async def work(made, _peer, _samsa) -> None:
        found = []

        def failing() -> FramesRead:
            raise OSError("the disk")

        made.read(lambda: FramesRead(b"x", 5), found.append)
        made.read(failing, found.append)
        while len(found) < 2:
            await asyncio.sleep(0)
        assert found[0] == FramesRead(b"x", 5)
        assert isinstance(found[1], Refused)
        assert found[1].reason is Reason.UNAVAILABLE
        made.read(lambda: FramesRead(b"y", 5), found.append)
        made.connection_lost("")
        await asyncio.sleep(0.05)
        assert len(found) == 2

    session(work)
