"""What tests of partitions share: settings, puts and gets as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.channel import Channel
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.metaq1 import partition as values
from metaq.model.metaq1.partition import Frames, Got, Later, Moved, PartitionGet, PartitionPut, PartitionStored
from metaq.model.metaq1.settings import PartitionRules, PartitionSettings
from metaq.options import Metaq1Options
from metaq.saved import Saving
from tests.broker.support import BORN_HOST, FakeChannel

T = TypeVar("T")
CHANNEL = FakeChannel()


def settings(options: Metaq1Options | None = None, **topics: int) -> Metaq1Settings:
    """Sections with so many partitions each."""
    options = options or Metaq1Options(broker_id=7)
    default = PartitionSettings.of(options)
    table = {name: structs.replace(default, num_partitions=count) for name, count in topics.items()}
    return Metaq1Settings(options, PartitionRules(default, table, ("wild-*", "t-*"), sections=True))


def settled(broker: Broker, ask: Callable[[], T]) -> T:
    """Ask until the answer is there, letting the disk and the broker work in between, as servers do.

    Once something is to be done instead, the question itself is not asked again: what waits further must say how to go on.
    """
    instead = False
    for _ in range(10_000):
        try:
            return ask()
        except Saving as saving:
            broker.store.flusher.flush()
            broker.deliver()
            assert saving.then is not None or not instead, "a server would never answer this"
            if saving.then is not None and all(pending.done for pending in saving.pending):
                ask, instead = saving.then, True
    raise AssertionError("it is never known")


class Patient:
    """A broker's partitions, whose puts, gets and offsets come when what they need is known."""

    def __init__(self, broker: Broker) -> None:
        assert broker.metaq1 is not None
        self.broker, self.all = broker, broker.metaq1.partitions

    def put(self, put: PartitionPut, caller: Caller = CHANNEL.caller) -> PartitionStored:
        return settled(self.broker, lambda: self.all.put(put, caller))

    def get(self, get: PartitionGet, channel: Channel = CHANNEL) -> Got | Later:
        return settled(self.broker, lambda: self.all.get(get, channel))

    def offset(self, topic: str, partition: int, position: int) -> int:
        return settled(self.broker, lambda: self.all.offset(topic, partition, position, CHANNEL.caller))


def put(partitions: Patient, body: bytes, topic: str = "test", partition: int = 0, flag: int = 0) -> int:
    wanted = PartitionPut(topic=topic, partition=partition, body=body, flag=flag, born_host=BORN_HOST)
    return partitions.put(wanted, CHANNEL.caller).position


def get(partitions: Patient, position: int, size: int = 1024, partition: int = 0) -> bytes | int:
    """The bytes of frames, or where to go on."""
    wanted = PartitionGet(topic="test", group="g", partition=partition, position=position, size_max=size)
    got = partitions.get(wanted, CHANNEL)
    if isinstance(got, values.Later):
        got = got.finish(got.job())
    if isinstance(got, Moved):
        return got.position
    assert isinstance(got, Frames)
    return bytes(got.body)


def refused(reason: Reason, call: object, *args: object, **more: object) -> str:
    with pytest.raises(Refused) as caught:
        call(*args, **more)  # type: ignore[operator]
    assert caught.value.reason is reason
    return caught.value.text
