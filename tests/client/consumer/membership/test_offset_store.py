"""The broadcaster's own progress file, and stores of the user's own."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from metaq.client.consumer.membership.offset_store import LocalOffsets, OffsetsUnknown, OwnOffsets, checked_store
from metaq.errors import ConfigError
from metaq.model import MessageQueue
from tests.support import PATIENCE

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


def test_unreadable_progress_is_an_error_and_is_not_written_over(tmp_path):
    """File and backup are damaged: nobody begins somewhere else in silence, and what may be mended is kept."""
    path = tmp_path / "offsets.json"
    path.write_bytes(b"{half")
    with pytest.raises(OffsetsUnknown, match=r"offsets\.json cannot be read \(mend it or delete it\)"):
        asyncio.run(LocalOffsets(path).load(FIRST))
    asyncio.run(LocalOffsets(path).persist({FIRST: 1}))
    assert path.read_bytes() == b"{half"


def test_file_is_written_by_a_thread(tmp_path, monkeypatch):
    """A slow disk must not stop the loop in which all clients live."""
    store = LocalOffsets(tmp_path / "offsets.json")
    threads = []
    write = store._write
    monkeypatch.setattr(store, "_write", lambda offsets: (threads.append(threading.current_thread()), write(offsets)))
    asyncio.run(store.persist({FIRST: 1}))
    assert threads and threads[0] is not threading.main_thread()


class Table:
    """A store of the user's."""

    def __init__(self) -> None:
        self.told: dict[MessageQueue, int] = {}
        self.kept: dict[MessageQueue, int] = {}
        self.failing = 0
        self.answer: object = None

    def load(self, queue):
        return self.kept.get(queue, self.answer)

    def update(self, queue, offset):
        self.told[queue] = offset

    def persist(self):
        if self.failing:
            self.failing -= 1
            raise OSError("the database is down")
        self.kept |= self.told
        self.told.clear()


def test_own_store_is_told_what_changed():
    """load, then update for each queue that moved and one persist; nothing when nothing moved."""
    table = Table()
    table.kept[FIRST] = 3
    store = OwnOffsets(table, "g")
    assert asyncio.run(store.load(FIRST)) == 3
    asyncio.run(store.persist({FIRST: 3}))
    assert table.told == {}
    asyncio.run(store.persist({FIRST: 3, SECOND: 8}))
    assert table.kept == {FIRST: 3, SECOND: 8}


def test_failing_store_is_asked_again_and_the_log_has_the_numbers(caplog):
    """At once, and with the next commit; what it did not keep counts as not kept."""
    table = Table()
    store = OwnOffsets(table, "g")
    table.failing = 1
    asyncio.run(store.persist({FIRST: 1}))
    assert table.kept == {FIRST: 1}
    table.failing = 2
    asyncio.run(store.persist({FIRST: 2}))
    assert table.kept == {FIRST: 1}
    assert f"did not keep 2 of {FIRST}" in caplog.text
    assert "the database is down" in caplog.text
    asyncio.run(store.persist({FIRST: 2}))
    assert table.kept == {FIRST: 2}


class DatedTable(Table):
    """One that keeps generations, too."""

    def __init__(self) -> None:
        super().__init__()
        self.generations: dict[MessageQueue, int] = {}
        self.calls: list[str] = []

    def load_generation(self, queue):
        return self.generations.get(queue)

    def update_generation(self, queue, generation):
        self.calls.append(f"generation {generation}")
        self.generations[queue] = generation

    def update(self, queue, offset):
        self.calls.append(f"offset {offset}")
        super().update(queue, offset)


def test_own_store_keeps_the_generation_of_its_offsets(caplog):
    """Told before the offset, where it is another; a topic made anew while nobody ran is begun at its first message."""
    table = DatedTable()
    store = OwnOffsets(table, "g")
    asyncio.run(store.persist({FIRST: 3}))
    store.generation = lambda _: -7
    asyncio.run(store.persist({FIRST: 3}))
    asyncio.run(store.persist({FIRST: 5}))
    assert table.calls == ["offset 3", "generation -7", "offset 3", "offset 5"]
    again = OwnOffsets(table, "g")
    again.generation = lambda _: -7
    assert asyncio.run(again.load(FIRST)) == 5
    again = OwnOffsets(table, "g")
    again.generation = lambda _: 400
    assert asyncio.run(again.load(FIRST)) == 0
    assert "made anew at broker b since the offset 5 of t@b:0 was kept by DatedTable" in caplog.text
    asyncio.run(again.persist({FIRST: 5}))
    assert (table.kept[FIRST], table.generations[FIRST]) == (5, 400)


def test_a_generation_that_is_none_stops_the_queue():
    table = DatedTable()
    table.kept[FIRST], table.generations[FIRST] = 5, "7"
    with pytest.raises(OffsetsUnknown, match=r"load_generation.* returned '7': need None, or a whole number"):
        asyncio.run(OwnOffsets(table, "g").load(FIRST))


def test_a_store_with_half_of_the_methods_for_generations_is_refused():
    table = Table()
    table.load_generation = lambda queue: None
    with pytest.raises(
        TypeError, match="no method update_generation: it needs load_generation and update_generation, or neither"
    ):
        checked_store(table, broadcast=False)
    checked_store(DatedTable(), broadcast=False)


@pytest.mark.parametrize("answer", [-1, "7", True, 1.5])
def test_own_store_that_returns_no_offset_stops_the_queue(answer):
    """Beginning anywhere else would lose or repeat messages."""
    table = Table()
    table.answer = answer
    with pytest.raises(OffsetsUnknown, match="need None, or an offset from 0 on"):
        asyncio.run(OwnOffsets(table, "g").load(FIRST))


def test_own_store_that_raises_stops_the_queue(caplog):
    """Its traceback is in the log."""
    table = Table()
    table.kept = None
    with pytest.raises(OffsetsUnknown, match="AttributeError"):
        asyncio.run(OwnOffsets(table, "g").load(FIRST))
    assert "Traceback" in caplog.text


def test_calls_of_an_own_store_never_overlap():
    """Also when the waiting one is cancelled: the next waits until the thread has ended."""
    began, go_on, inside = threading.Event(), threading.Event(), []

    class Slow(Table):
        def persist(self):
            inside.append(+1)
            assert sum(inside) == 1
            began.set()
            go_on.wait(PATIENCE)
            inside.append(-1)

    async def scenario() -> None:
        store = OwnOffsets(Slow(), "g")
        first = asyncio.ensure_future(store.persist({FIRST: 1}))
        await asyncio.to_thread(began.wait, 30)
        first.cancel()
        second = asyncio.ensure_future(store.persist({FIRST: 2}))
        await asyncio.sleep(0)
        go_on.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(scenario())
    assert inside == [1, -1, 1, -1]


class Asynchronous(Table):
    async def load(self, queue):
        return None


class Narrow(Table):
    def update(self, queue):
        return None


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("file", ConfigError, "need 'broker', 'local', a path, or an object"),
        (object(), TypeError, "has no method load"),
        (Asynchronous(), TypeError, "load is asynchronous"),
        (Narrow(), TypeError, "update cannot be called with 2 arguments"),
    ],
)
def test_what_is_no_store_is_refused(given, error, text):
    """Before anything is connected."""
    with pytest.raises(error, match=text):
        checked_store(given, broadcast=False)


def test_broadcasters_cannot_keep_progress_at_the_broker():
    """Each has its own, and a broker keeps one per group."""
    with pytest.raises(ConfigError, match="progress of its own"):
        checked_store("broker", broadcast=True)
