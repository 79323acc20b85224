"""Consumer positions: blind writes, the file in RocketMQ's form, and where a group begins."""

from __future__ import annotations

import errno

import pytest

from metaq.broker.tables.offsets import Offsets
from metaq.clock import FakeClock
from metaq.errors import ConfigError, Refused
from metaq.saved_file import TextFile
from metaq.servers.remoting.messages import send_of
from metaq.wire.files import CONSUMER_OFFSETS
from tests.broker.support import BORN_HOST, JAVA, MemoryFile, open_broker
from tests.servers.support import send_header

ROCKETMQ_TEXT = '{\n\t"offsetTable":{\n\t\t"TopicA@CG":{0:2,1:3,2:2,3:3\n\t},\n\t\t"%RETRY%CG@CG":{0:5\n\t}\n\t}\n}'


def on_file(file):
    return Offsets(TextFile(file, CONSUMER_OFFSETS))


def test_positions_are_overwritten_also_by_lower_ones():
    """A reset is nothing but a write."""
    offsets = on_file(MemoryFile())
    offsets.put("G", "orders", 0, 100)
    offsets.put("G", "orders", 0, 7)
    assert offsets.get("G", "orders", 0) == 7
    assert offsets.get("G", "orders", 1) is None


def test_a_file_of_rocketmq_is_read_and_written_back():
    """Bare integer keys, topic@group, one line per map."""
    file = MemoryFile(ROCKETMQ_TEXT)
    offsets = on_file(file)
    assert offsets.queues("CG", "TopicA") == {0: 2, 1: 3, 2: 2, 3: 3}
    assert sorted(offsets.topics_of("CG")) == ["%RETRY%CG", "TopicA"]
    offsets.put("CG", "TopicA", 0, 9)
    offsets.save()
    assert '"TopicA@CG":{0:9,1:3,2:2,3:3' in file.text
    assert on_file(file).queues("CG", "%RETRY%CG") == {0: 5}


def test_only_a_change_is_saved():
    """The timer writes nothing while nothing moves."""
    file = MemoryFile()
    offsets = on_file(file)
    offsets.save()
    offsets.put("G", "t", 0, 1)
    offsets.save()
    offsets.save()
    assert file.saves == 1


def test_they_are_saved_every_five_seconds(tmp_path):
    """A crash moves a group back by seconds at most."""
    clock = FakeClock()
    with open_broker(tmp_path, clock) as broker:
        broker.offsets.put("G", "orders", 0, 1)
        clock.advance(4)
        broker.tick()
        assert not (tmp_path / "config" / "consumerOffset.json").exists()
        clock.advance(1)
        broker.tick()
        assert '"orders@G":{0:1' in (tmp_path / "config" / "consumerOffset.json").read_text()


def test_a_broken_file_stops_the_start():
    """Starting without positions would consume everything again, or nothing."""
    with pytest.raises(ConfigError, match=r"memory\.json cannot be read .*offsetTable"):
        on_file(MemoryFile('{"offsetTable":{"a@b":5}}'))


def test_a_group_and_a_topic_can_be_forgotten():
    """Deleting either drops its positions and no others."""
    offsets = on_file(MemoryFile())
    for group in ("G", "H"):
        for topic in ("a", "b"):
            offsets.put(group, topic, 0, 1)
    offsets.drop_group("G")
    offsets.drop_topic("a")
    assert offsets.groups_of("b") == ["H"]
    assert offsets.groups_of("a") == []


def test_a_young_queue_begins_at_0_whatever_the_client_prefers(tmp_path):
    """While a queue's first message is recent, a new group gets 0 with success; later it is told "none" (22)."""
    with open_broker(tmp_path) as broker:
        for _ in range(3):
            broker.sends.send(send_of(send_header("orders"), b"x", BORN_HOST, JAVA))
        assert broker.lookup.consumer_offset("G", "orders", 0) == 0
        assert broker.lookup.consumer_offset("G", "orders", 1) == 0
        broker.offsets.put("G", "orders", 0, 2)
        assert broker.lookup.consumer_offset("G", "orders", 0) == 2
    with open_broker(tmp_path, store={"access_message_in_memory_max_ratio": 0}) as broker:
        assert broker.lookup.consumer_offset("G", "orders", 0) == 2
        assert broker.lookup.consumer_offset("new", "orders", 0) is None


def test_a_failed_save_is_told_and_tried_again(caplog):
    """Logged once per reason, seen in the runtime information, and repeated though nothing moves any more."""
    file = MemoryFile()
    offsets = on_file(file)
    file.error = OSError(errno.ENOSPC, "No space left on device")
    offsets.put("G", "t", 0, 7)
    for _ in range(3):
        offsets.save()
    assert caplog.text.count("memory.json could not be saved: No space left on device") == 1
    assert offsets.failing == "No space left on device"
    file.error = None
    offsets.save()
    assert offsets.failing == ""
    assert on_file(file).get("G", "t", 0) == 7


def test_files_that_cannot_be_saved_are_in_the_runtime_information(tmp_path):
    """An administrator sees which, and why."""
    file = MemoryFile()
    with open_broker(tmp_path, files={"consumerOffset.json": file, "topics.json": file}) as broker:
        assert broker.reports.facts().unsaved == {}
        file.error = OSError(errno.EIO, "broken")
        broker.offsets.put("G", "t", 0, 7)
        broker.offsets.save()
        with pytest.raises(Refused):
            broker.topics.auto_create("orders", "TBW102", 4)
        assert broker.reports.facts().unsaved == {"topics.json": "broken", "consumerOffset.json": "broken"}
