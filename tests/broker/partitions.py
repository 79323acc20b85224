"""What tests of partitions share: settings, puts and gets as values."""

from __future__ import annotations

import pytest
from msgspec import structs

from metaq.broker.metaq1_settings import Metaq1Settings
from metaq.broker.partitions import Partitions
from metaq.errors import Reason, Refused
from metaq.model import partition as values
from metaq.model.partition import Frames, Moved, PartitionGet, PartitionPut
from metaq.model.partition_settings import PartitionRules, PartitionSettings
from metaq.options import Metaq1Options
from tests.broker.support import BORN_HOST, FakeChannel

CHANNEL = FakeChannel()


def settings(options: Metaq1Options | None = None, **topics: int) -> Metaq1Settings:
    """Sections with so many partitions each."""
    options = options or Metaq1Options(broker_id=7)
    default = PartitionSettings.of(options)
    table = {name: structs.replace(default, num_partitions=count) for name, count in topics.items()}
    return Metaq1Settings(options, PartitionRules(default, table, ("wild-*",), sections=True))


def put(partitions: Partitions, body: bytes, topic: str = "test", partition: int = 0, flag: int = 0) -> int:
    wanted = PartitionPut(topic=topic, partition=partition, body=body, flag=flag, born_host=BORN_HOST)
    return partitions.put(wanted, CHANNEL).position


def get(partitions: Partitions, position: int, size: int = 1024, partition: int = 0) -> bytes | int:
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
