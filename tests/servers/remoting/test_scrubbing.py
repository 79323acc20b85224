"""Pieces of the log that a broker tells those who compare it with another replica's (30015, 30016)."""

from __future__ import annotations

import errno
import os
import threading
import zlib

import pytest

from metaq.broker.replication.ranges import WAITING_MAX
from metaq.client.conversation.scrubbing.calls import GetLogBytes, GetLogChecksums
from metaq.errors import BadRequest, BrokerError
from metaq.store.log import ranges
from metaq.wire.codes import ResponseCode
from tests.servers.support import Client, open_server
from tests.store.log.test_raw import raw_log
from tests.support import eventually

MIB = 1 << 20
FILE = {"mapped_file_size_commit_log": 3 * MIB + 4096}


def filled(client: Client, mib: int) -> None:
    for _ in range(mib * 4):
        assert client.send("T", b"x" * (MIB // 4)).code == 0


def asked(client: Client, call):
    """The outcome of a call, when its answer has come."""
    client.feed(client.frame(call.request().code, call.request().ext))
    answers = list(client.received())
    eventually(lambda: answers or answers.extend(client.received()))
    return call.outcome(answers[0])


def test_checksums_are_those_of_the_logs_bytes(tmp_path):
    """One for each MiB up to the end of the file, whatever lies in it; and where the log lies."""
    with open_server(tmp_path, store=FILE) as (broker, server):
        client = Client(server)
        filled(client, 8)
        broker.store.flusher.flush()
        end, size = broker.store.log.end, broker.store.log.file_bytes
        told = asked(client, GetLogChecksums(7, end))
        data = raw_log(tmp_path, 0, end)
        wanted = [zlib.crc32(data[place : min(place + MIB, size)]) for place in range(7, size, MIB)]
        assert list(told.checksums) == wanted
        assert (told.log_min, told.log_flushed, told.file_bytes) == (0, end, size)
        assert told.path(size + 5) == str(tmp_path / "commitlog" / f"{size:020d}")
        last = asked(client, GetLogChecksums(end - 9, end + 100))
        assert last.checksums == (zlib.crc32(data[-9:]),)
        assert asked(client, GetLogBytes(size - 10, 100)) == data[size - 10 : size]
        assert asked(client, GetLogBytes(0, MIB)) == data[:MIB]


def test_what_is_not_durable_is_not_told(tmp_path):
    """A power cut may take it, and the other side would be called damaged."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        filled(client, 1)
        broker.store.flusher.flush()
        flushed = broker.store.state.flushed
        broker.store.state.flushed = flushed - 100
        assert asked(client, GetLogBytes(flushed - 300, 1000)) == raw_log(tmp_path, flushed - 300, flushed - 100)
        assert asked(client, GetLogChecksums(0, MIB * 9)).log_flushed == flushed - 100
        broker.store.state.flushed = flushed


@pytest.mark.parametrize(("offset", "size"), [(1 << 62, 10), (0, 0), (0, -5), (10, -(1 << 31))])
def test_nothing_is_told_of_what_is_not_there(tmp_path, offset, size):
    """No bytes, no checksums, and no error: retention may take what is asked for."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        filled(client, 1)
        broker.store.flusher.flush()
        assert asked(client, GetLogBytes(offset, size)) == b""
        assert asked(client, GetLogChecksums(offset, offset + size)).checksums == ()


def test_an_answer_is_bounded(tmp_path):
    """Whatever is asked for."""
    with open_server(tmp_path, store={"mapped_file_size_commit_log": 20 * MIB}) as (broker, server):
        client = Client(server)
        filled(client, 18)
        broker.store.flusher.flush()
        assert len(asked(client, GetLogChecksums(0, 1 << 62)).checksums) == 16
        assert len(asked(client, GetLogBytes(5, (1 << 31) - 1))) == MIB
        with pytest.raises(BrokerError, match="begins at 0"):
            asked(client, GetLogBytes(-1, 10))


def test_so_many_requests_of_all_clients_wait_and_no_more(tmp_path, monkeypatch):
    """The one that is too much is refused at once, and may come again."""
    go_on, read = threading.Event(), ranges.piece

    def slow(*args):
        assert go_on.wait()
        return read(*args)

    monkeypatch.setattr(ranges, "piece", slow)
    with open_server(tmp_path) as (broker, server):
        clients = [Client(server) for _ in range(WAITING_MAX)]
        filled(clients[0], 1)
        broker.store.flusher.flush()
        call = GetLogBytes(0, 10)
        for client in clients:
            client.feed(client.frame(call.request().code, call.request().ext))
        late = Client(server)
        with pytest.raises(BrokerError, match="try again") as refused:
            asked(late, call)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        go_on.set()
        answers = [eventually(client.received) for client in clients]
        assert {call.outcome(one) for (one,) in answers} == {raw_log(tmp_path, 0, 10)}
        assert asked(late, call) == raw_log(tmp_path, 0, 10)


def test_what_the_disk_cannot_read_is_told_as_such(tmp_path, monkeypatch):
    """A bad sector is no end of the comparison: the other side may have what was there."""
    bad, pread = MIB + 8192 + 5, os.pread

    def failing(descriptor, size, place):
        if place <= bad < place + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, place)

    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        filled(client, 3)
        broker.store.flusher.flush()
        data = raw_log(tmp_path, 0, 3 * MIB)
        monkeypatch.setattr(os, "pread", failing)
        told = asked(client, GetLogChecksums(0, 3 * MIB))
        assert told.checksums == (zlib.crc32(data[:MIB]), -1, zlib.crc32(data[2 * MIB :]))
        page = MIB + 8192
        assert asked(client, GetLogBytes(MIB, MIB)) == data[MIB:page] + bytes(4096) + data[page + 4096 : 2 * MIB]


def test_a_peer_that_sends_more_than_was_asked_for_is_not_believed():
    """Places are computed from the number of bytes."""
    answer = GetLogBytes(0, 3).request()
    answer.code, answer.body = 0, b"1234"
    with pytest.raises(BadRequest, match="4 bytes of the log came"):
        GetLogBytes(0, 3).read(answer)
