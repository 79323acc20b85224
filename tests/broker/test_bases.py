"""Byte positions on a real store: begun, found again, computed anew, and never another."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from metaq.broker.broker import Broker
from metaq.saved import Saving
from metaq.store.positions import QueuePositions
from metaq.store.writer import PutRecord
from tests.broker.support import BORN_HOST, open_broker

T = TypeVar("T")
TOPIC = "orders"


def settled(broker: Broker, ask: Callable[[], T]) -> T:
    """Ask until the answer is there, letting the disk and the broker work in between."""
    for _ in range(10_000):
        try:
            return ask()
        except Saving:
            broker.store.flush()
            broker.deliver()
    raise AssertionError("it is never known")


def touched(broker: Broker, queue_id: int = 0, topic: str = TOPIC) -> QueuePositions:
    return settled(broker, lambda: broker.bases.touch(topic, queue_id))


def send(broker: Broker, bodies: Iterable[bytes], queue_id: int = 0, tag: str = "", topic: str = TOPIC) -> None:
    """Messages as another door would put them."""
    properties = b"TAGS\x01" + tag.encode() if tag else b""
    for body in bodies:
        broker.appender.put([PutRecord(topic, queue_id, body, properties, 0, 0, 1, BORN_HOST)])


def told(broker: Broker, positions: QueuePositions) -> dict[int, int]:
    """The position of each queue offset, the next one's included."""
    queue = broker.store.queue(positions.topic, positions.queue_id)
    offsets = range(queue.min_offset, queue.max_offset + 1)
    return {offset: settled(broker, lambda offset=offset: positions.position(offset)) for offset in offsets}  # type: ignore[misc]


def bodies(count: int, seed: int = 0) -> list[bytes]:
    return [b"x" * ((seed + number * 7) % 90) for number in range(count)]


def work(broker: Broker, rounds: int = 20) -> None:
    """Let the broker do what is due."""
    for _ in range(rounds):
        broker.store.flush()
        broker.deliver()


def test_a_queue_begins_at_position_0_with_its_oldest_message_when_it_is_touched(tmp_path: pathlib.Path):
    """Positions are sums of frames: 20 bytes, 4 and the attribute, the body."""
    with open_broker(tmp_path) as broker:
        send(broker, [b"12345", b""], tag="ab")
        positions = touched(broker)
        assert settled(broker, lambda: told(broker, positions)) == {0: 0, 1: 31, 2: 57}
        assert (positions.min, positions.max) == (0, 57)
        send(broker, [b"123"])
        assert settled(broker, lambda: positions.max) == 80
        found = [settled(broker, lambda p=p: positions.at(p)) for p in (-1, 0, 30, 31, 57, 79, 80, 1 << 62)]  # type: ignore[misc]
        assert found == [(0, 0), (0, 0), (0, 0), (1, 31), (2, 57), (2, 57), (3, 80), (3, 80)]


def test_nothing_is_told_before_the_base_is_durable(tmp_path: pathlib.Path):
    """Otherwise a power cut could begin the queue anew, elsewhere."""
    with open_broker(tmp_path, store={"flush_interval_commit_log": 3_600_000}) as broker:
        with pytest.raises(Saving) as saving:
            broker.bases.touch(TOPIC, 0)
        place = broker.store.log_end
        assert broker.bases.find(TOPIC, 0) is not None
        (pending,) = saving.value.pending
        broker.store.flush()
        assert (pending.done, pending.error, broker.store.flushed >= place) == (True, None, True)
        assert touched(broker).max == 0


def test_an_untouched_queue_costs_nothing(tmp_path: pathlib.Path):
    """No folder, no record, no look at it."""
    with open_broker(tmp_path) as broker:
        send(broker, bodies(10))
        work(broker)
        assert broker.bases.find(TOPIC, 0) is None
        assert broker.bases.oldest() is None
        assert not (tmp_path / "positions").exists()
        assert broker.store.queues().keys() == {(TOPIC, 0)}


def copied_log(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """A folder that has nothing but the log."""
    shutil.copytree(root / "commitlog", to / "commitlog")
    return to


def without_positions(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(root / "positions")
    return root


def as_it_is(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    return root


@pytest.mark.parametrize("hurt", [as_it_is, without_positions, copied_log])
def test_positions_are_the_same_after_a_start(tmp_path: pathlib.Path, hurt: Callable[..., pathlib.Path]):
    """With the files, without them, and from the log alone; over several log files."""
    root = tmp_path / "store"
    with open_broker(root, store={"mapped_file_size_commit_log": 1 << 20}) as broker:
        send(broker, bodies(50, 3))
        first = touched(broker)
        for turn in range(6):
            send(broker, bodies(1500, turn), tag="t" * (turn % 3))
            send(broker, bodies(700, turn), queue_id=1)
            work(broker)
            touched(broker, 1)
        before = [settled(broker, lambda q=q: told(broker, q)) for q in (first, touched(broker, 1))]  # type: ignore[misc]
    with open_broker(hurt(root, tmp_path / "copy"), store={"mapped_file_size_commit_log": 1 << 20}) as broker:
        assert [told(broker, touched(broker, queue_id)) for queue_id in (0, 1)] == before
