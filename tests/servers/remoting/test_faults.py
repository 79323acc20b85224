"""A broker that runs out of files, mappings or memory: the requests concerned are told, everything else goes on.

The disk, or the allocation, fails at its k-th call, for every k that a burst of requests makes.
"""

from __future__ import annotations

import errno
import logging
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaq.clock import FakeClock
from metaq.log import SECONDS
from metaq.testing.faults import FaultyDisk
from metaq.wire import hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command
from tests.servers.support import Client, open_server, pull_header, send_header
from tests.support import eventually

RETRIED = {ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}


class FailingDisk(FaultyDisk):
    """Calls that need a descriptor, a mapping or blocks fail from number `fail_from` on, `fails` of them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.fail_from, self.fails = 0, 1 << 60, 0
        self.error: Exception = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def set(self, fail_from: int, fails: int, error: Exception) -> None:
        self.calls, self.fail_from, self.fails, self.error = 0, fail_from, fails, error

    def _count(self) -> None:
        self.calls += 1
        if self.fail_from <= self.calls < self.fail_from + self.fails:
            raise self.error

    def open(self, path: pathlib.Path, flags: int) -> int:
        self._count()
        return super().open(path, flags)

    def map(self, path: pathlib.Path, size: int):
        self._count()
        return super().map(path, size)

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        self._count()
        super().reserve(descriptor, start, size)


ERRORS = {
    "no files": (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -n"),
    "no mappings": (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
    "no memory": (MemoryError(), "memory"),
}

SMALL = {"mapped_file_size_consume_queue": 20 * 8, "mapped_file_size_commit_log": 64 << 10, "max_message_size": 20_000}


@contextmanager
def failing(root: pathlib.Path) -> Iterator[tuple[Client, Client, FailingDisk]]:
    """Two clients of one broker whose housekeeping does not disturb the count, and its disk."""
    disk = FailingDisk()
    store = {**SMALL, "flush_interval_commit_log": 10_000, "flush_interval_consume_queue": 10_000}
    with open_server(root, FakeClock(), store, disk) as (_, server):
        yield Client(server), Client(server), disk


def burst(client: Client) -> list[bytes]:
    """Sends that need new queue files, a new log file and known queues, between pulls and an offset: one read event."""
    frames = []
    for number in range(12):
        frames.append(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("known"), b"%d" % number + bytes(9000)))
        if number % 4 == 0:
            frames.append(client.frame(RequestCode.SEND_MESSAGE_V2, send_header(f"new{number}"), b"x"))
            frames.append(client.frame(RequestCode.PULL_MESSAGE, pull_header("known", 0, 0)))
            frames.append(client.frame(RequestCode.GET_MAX_OFFSET, {"topic": "known", "queueId": "0"}))
    return frames


def answered(client: Client, frames: list[bytes]) -> list[Command]:
    """The answers to one read event, as many as requests."""
    assert client.feed(b"".join(frames)) == 0
    answers = client.received()
    assert len(answers) == len(frames)
    assert len({answer.opaque for answer in answers}) == len(frames)
    return answers


@pytest.mark.parametrize("fails", [1, 1 << 60], ids=["once", "for ever"])
@pytest.mark.parametrize(("error", "says"), ERRORS.values(), ids=ERRORS.keys())
def test_every_request_is_answered_whatever_the_disk_refuses(
    tmp_path: pathlib.Path, error: Exception, says: str, fails: int
) -> None:
    """Neither the connection nor another one ends; what was acknowledged, and only that, is stored once."""
    with failing(tmp_path / "count") as (client, _, disk):
        client.send("known")
        disk.set(1 << 60, 0, error)
        answered(client, burst(client))
        calls = disk.calls
    assert calls > 8
    told = 0
    for k in range(1, calls + 1):
        with failing(tmp_path / str(k)) as (client, other, disk):
            client.send("known")
            assert other.pull("known", offset=1, sys_flag=6, suspend_ms=15_000) == []
            disk.set(k, fails, error)
            answers = answered(client, burst(client))
            disk.set(1 << 60, 0, error)
            refused = [answer for answer in answers if answer.code not in {0, ResponseCode.PULL_NOT_FOUND}]
            assert {answer.code for answer in refused} <= RETRIED
            told += any(says in answer.remark for answer in refused)
            acknowledged = [answer for answer in answers if "msgId" in answer.ext and answer.code == 0]
            assert client.send("known", b"after").code == 0
            stored = sum(
                int(client.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}).ext["offset"])
                for topic in ("known", "new0", "new4", "new8")
                if client.server.broker.topics.get(topic)
            )
            assert stored == len(acknowledged) + 2
            assert len(other.received()) == 1  # the held pull: with the messages, or with the reason
    # What fails once is tried again by the slow path or the first message; a new topic is a line of a journal that is open.
    assert told > calls // 2 if fails > 1 else told <= 2


def test_same_reason_is_logged_once_and_counted(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand refused sends are not a thousand tracebacks."""
    caplog.set_level(logging.INFO)
    with failing(tmp_path) as (client, _, disk):
        client.send("known")
        disk.set(1, 1 << 60, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        for number in range(200):
            assert client.send(f"new{number}").code in RETRIED
        disk.set(1 << 60, 0, MemoryError())
        assert client.send("new0").code == 0
        assert len([record for record in caplog.records if "ulimit -n" in record.getMessage()]) == 1
        broker = client.server.broker
        broker.clock.advance(SECONDS + 1)
        broker.tick()
        assert [record.getMessage() for record in caplog.records if "199 more" in record.getMessage()]
    assert "Traceback" not in caplog.text


def test_answers_without_memory_close_their_connection_and_never_reach_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was gathered for one peer is gone with it, and not written to the next."""
    with open_server(tmp_path) as (_, server):
        client, other = Client(server), Client(server)
        client.send("known")

        class NoMemory(hot.Replies):
            def take(self) -> bytes:
                raise MemoryError

        for name in ("acks", "answers"):
            kept, broken = getattr(server.workspace, name), NoMemory(b"DefaultRegion", True)
            monkeypatch.setattr(server.workspace, name, broken)
            with pytest.raises(MemoryError):  # `net.peer` closes the connection that raises
                client.pull("known") if name == "answers" else client.send("known")
            assert len(broken) == 0
            monkeypatch.setattr(server.workspace, name, kept)
            assert server.workspace.current is None
            assert other.ask(RequestCode.GET_MAX_OFFSET, {"topic": "known", "queueId": "0"}).code == 0


@pytest.mark.skipif(not hot.NATIVE, reason="the pure-Python fallback writes in place")
def test_a_log_that_cannot_be_written_stops_the_store(tmp_path: pathlib.Path) -> None:
    """SYNC_FLUSH: nobody knows how far the records are in the file, so nothing is acknowledged any more, and it is said why."""
    with open_server(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}) as (broker, server):
        client, log = Client(server), broker.store.log
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("known"), b"stored"))
        eventually(lambda: [answer.code for answer in client.received()] == [0])
        reading = os.open(log.run.files[-1].path, os.O_RDONLY)
        os.dup2(reading, log._descriptor)
        os.close(reading)
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("known"), b"lost"))
        assert "records could not be written to the commit log: Bad file descriptor" in broker.store.state.failed
        client.feed(client.frame(RequestCode.SEND_MESSAGE_V2, send_header("known"), b"late"))
        answers = eventually(client.received)
        assert {answer.code for answer in answers} <= RETRIED
        assert any("could not be written" in answer.remark for answer in answers)
