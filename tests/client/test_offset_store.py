"""The broadcaster's own progress file."""

from __future__ import annotations

import asyncio
import logging

from metaq.client.offset_store import LocalOffsets
from metaq.model import MessageQueue

FIRST, SECOND = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_offsets_survive_and_the_backup_steps_in(tmp_path):
    """What was persisted is loaded by the next run; a damaged file is replaced by the one before."""
    path = tmp_path / "client" / "group" / "offsets.json"
    store = LocalOffsets(path)
    assert asyncio.run(store.load(FIRST)) is None
    asyncio.run(store.persist({FIRST: 5}))
    asyncio.run(store.persist({FIRST: 7, SECOND: 1}))
    again = LocalOffsets(path)
    assert asyncio.run(again.load(FIRST)) == 7
    assert asyncio.run(again.load(SECOND)) == 1
    path.write_bytes(b"{half a fi")
    assert asyncio.run(LocalOffsets(path).load(FIRST)) == 5


def test_java_file_is_read(tmp_path):
    """RocketMQ's fastjson writes queues as keys."""
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,\n\t\t\t"topic":"t"\n\t\t}:42\n\t}\n}'
    )
    assert asyncio.run(LocalOffsets(path).load(SECOND)) == 42


def test_unwritable_file_is_a_warning(tmp_path, caplog):
    """Consuming goes on; the log names the file."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING, "metaq.client"):
        asyncio.run(LocalOffsets(blocked / "offsets.json").persist({FIRST: 1}))
    assert str(blocked) in caplog.text


def test_what_could_not_be_written_is_written_the_next_time(tmp_path):
    """The group stands still, and its last offsets were lost on a full disk: they are written when there is room."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = LocalOffsets(blocked / "offsets.json")
    asyncio.run(store.persist({FIRST: 1}))
    blocked.unlink()
    asyncio.run(store.persist({FIRST: 1}))
    assert asyncio.run(LocalOffsets(blocked / "offsets.json").load(FIRST)) == 1
