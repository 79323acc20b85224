"""kill -9 of a broker with a MetaQ 1.x server: what anybody was told, or was given to read, is there afterwards as it was."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from tests.interop.metaq1 import OurServer, TextConnection

PARTITIONS = 2
UNDER_WAY = 50
FRAME = struct.Struct(">iiqi")


class Watcher:
    """Puts on one connection and gets on another until the broker is gone; keeps all it was told."""

    def __init__(self, address: str, partition: int) -> None:
        self.partition = partition
        self.stored: dict[int, tuple[int, bytes]] = {}
        """Position → id and body, of acknowledged puts."""
        self.read = b""
        """What gets from position 0 on gave."""
        self.numbers = 0
        self._threads = [
            threading.Thread(target=work, args=(TextConnection(address),), daemon=True)
            for work in (self._put, self._get)
        ]
        for thread in self._threads:
            thread.start()

    def _put(self, connection: TextConnection) -> None:
        waiting: dict[int, bytes] = {}
        try:
            while True:
                while len(waiting) < UNDER_WAY:
                    number = self.numbers
                    self.numbers += 1
                    waiting[number] = body = f"{self.partition}:{number}:".encode() * (number % 7 + 1)
                    connection.write(f"put test {self.partition} {len(body)} 0 {number}\r\n".encode() + body)
                answer = connection.read()
                if answer is None:
                    return
                assert answer.code == 200, answer
                message_id, _, position = map(int, answer.body.split())
                self.stored[position] = message_id, waiting.pop(answer.opaque)
        except OSError:
            return
        finally:
            connection.close()

    def _get(self, connection: TextConnection) -> None:
        try:
            while True:
                answer = connection.ask(f"get test readers {self.partition} {len(self.read)} 65536 1")
                if answer is None:
                    return
                if answer.code is None:
                    self.read += answer.body
        except (OSError, AssertionError):  # an answer cut in the middle
            return
        finally:
            connection.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def whole(connection: TextConnection, partition: int) -> bytes:
    """All frames of a partition."""
    found = b""
    while True:
        answer = connection.ask(f"get test later {partition} {len(found)} 1048576 1")
        assert answer is not None
        if answer.code is not None:
            assert answer.code == 404
            return found
        found += answer.body


@pytest.mark.slow
def test_nothing_that_was_told_changes_by_a_kill(tmp_path: Path) -> None:
    """Three kills in the middle of puts and gets: each frame that was acknowledged or read lies where it lay."""
    system = {"unflushThreshold": 1000, "numPartitions": PARTITIONS, "maxSegmentSize": 1 << 20}
    with OurServer(tmp_path, None, {"test": {}}, system) as server:
        before = [b""] * PARTITIONS
        for _ in range(3):
            watchers = [Watcher(server.text, partition) for partition in range(PARTITIONS)]
            while any(len(watcher.stored) < 2000 for watcher in watchers):
                watchers[0]._threads[0].join(0.01)
                assert all(thread.is_alive() for watcher in watchers for thread in watcher._threads)
            server.kill()
            for watcher in watchers:
                watcher.join()
            server.start()
            with TextConnection(server.text) as connection:
                for watcher in watchers:
                    frames = whole(connection, watcher.partition)
                    assert frames.startswith(before[watcher.partition])
                    assert frames.startswith(watcher.read)
                    for position, (message_id, body) in watcher.stored.items():
                        size, _, found, flag = FRAME.unpack_from(frames, position)
                        assert (found, flag, frames[position + 20 : position + 20 + size]) == (message_id, 0, body)
                    before[watcher.partition] = frames
