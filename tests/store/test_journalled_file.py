"""A table with a journal: a change is a line, and whatever ends the process, what was answered is there."""

from __future__ import annotations

import errno
import itertools
import os
import queue
import random

import pytest

from metaq.clock import FakeClock
from metaq.errors import ConfigError, Refused
from metaq.model import DataVersion, TopicConfig
from metaq.saved import FOLD_SECONDS, QUIET_SECONDS, SavedTable
from metaq.saved_file import TableFile
from metaq.store.config_file import ConfigFile
from metaq.store.disk import Disk
from metaq.store.journalled_file import BackgroundTable, JournalledFile
from metaq.testing import FaultyDisk, PowerLossDisk
from metaq.wire.files import TOPICS
from tests.effort import repeats
from tests.support import PATIENCE

FULL = OSError(errno.ENOSPC, "No space left on device")
BORN = DataVersion(5, 0)


def opened(file, clock=None, call_soon=None):
    """The table that a file and its journals hold."""
    table = TableFile(file, TOPICS, TOPICS)
    version, found = table.read(BORN)
    more = {"call_soon": call_soon} if call_soon else {}
    return SavedTable(table, found, version, clock=clock or FakeClock(), **more)


def topic(name, queues=1):
    return TopicConfig(name, queues, queues, 6)


def make(table, *names, queues=1):
    for name in names:
        table.change(name, topic(name, queues)).settle()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def held(folder):
    """What a start finds: name → queues."""
    version, found = TableFile(JournalledFile(folder / "topics.json"), TOPICS, TOPICS).read(BORN)
    return {name: config.read_queues for name, config in found.items()}, version


def started(tmp_path, disk=None, **more):
    """A table with one topic, in its file, and no journal yet."""
    table = opened(JournalledFile(tmp_path / "topics.json", disk, **more))
    table.start_with({"first": topic("first")})
    return table


class Counting(Disk):
    """Counts the bytes that are synced, and remembers what was."""

    def __init__(self):
        self.steps = []

    def sync_file(self, descriptor):
        self.steps.append(os.fstat(descriptor).st_size)

    def sync_folder(self, path):
        self.steps.append(path.name)


def test_a_change_is_a_line_and_the_file_stays_as_it_is(tmp_path):
    """Journal and name are durable before the change is answered; from the second change on it is one sync."""
    disk = Counting()
    folder = tmp_path / "config"
    table = started(folder, disk)
    text = (folder / "topics.json").read_text()
    disk.steps.clear()
    make(table, "a")
    journal = folder / "topics.json.journal.1"
    size = journal.stat().st_size
    assert disk.steps == [size, "config"]
    table.change("first", None).settle()
    make(table, "b", "a", queues=2)
    assert disk.steps == [size, "config", *itertools.accumulate(map(len, journal.read_bytes().splitlines(True)))][
        :2
    ] + [sum(map(len, journal.read_bytes().splitlines(True)[:lines])) for lines in (3, 4, 5)]
    assert (folder / "topics.json").read_text() == text
    assert held(folder) == ({"a": 2, "b": 2}, table.version)


@pytest.mark.parametrize("count", [10, 5000])
def test_a_change_costs_the_same_in_a_large_table(tmp_path, count):
    """The bytes that a change writes, and the entries that it touches, do not grow with the table."""
    disk = Counting()
    table = opened(JournalledFile(tmp_path / "topics.json", disk))
    table.start_with({f"t{n}": topic(f"t{n}") for n in range(count)})
    make(table, "a", "b")
    written = (tmp_path / "topics.json.journal.1").stat().st_size
    make(table, "c")
    assert (tmp_path / "topics.json.journal.1").stat().st_size - written < 300
    assert len(disk.steps) == 2 + 2 + 1 + 1


def test_a_stop_in_order_leaves_the_file_alone(tmp_path):
    """As RocketMQ writes it, with all changes."""
    table = started(tmp_path)
    make(table, "a", "b")
    assert files(tmp_path) == ["topics.json", "topics.json.journal.1"]
    table.close()
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    version, found = TOPICS.parse((tmp_path / "topics.json").read_text())
    assert (version, list(found)) == (table.version, ["first", "a", "b"])


def test_a_stop_without_a_change_writes_nothing(tmp_path):
    """Nothing is there to be folded."""
    started(tmp_path).close()
    before = (tmp_path / "topics.json").stat()
    opened(JournalledFile(tmp_path / "topics.json")).close()
    after = (tmp_path / "topics.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_journal_that_has_grown_is_folded_beside_the_changes(tmp_path):
    """The next journal begins, and the old one is read until the file is written anew; it goes then."""
    waiting = []
    table = started(tmp_path, beside=waiting.append, fold_bytes=800)
    made = [f"t{n}" for n in range(12)]
    for name in made:
        make(table, name)
        assert held(tmp_path) == (dict.fromkeys(["first", *table.table], 1), table.version)
    assert len(waiting) == 1, "one at a time"
    assert files(tmp_path) == ["topics.json", "topics.json.journal.1", "topics.json.journal.2"]
    waiting.pop()()
    assert files(tmp_path) == ["topics.json", "topics.json.bak", "topics.json.journal.2"]
    assert held(tmp_path) == (dict.fromkeys(["first", *made], 1), table.version)
    make(table, "last")
    assert len(waiting) == 1, "the second journal has grown too"
    assert held(tmp_path) == (dict.fromkeys(["first", *made, "last"], 1), table.version)


def test_a_fold_that_fails_loses_nothing(tmp_path, caplog):
    """The journals stay; the changes go on; once there is room, the file is written anew."""
    waiting, disk = [], FaultyDisk()
    table = started(tmp_path, disk, beside=waiting.append, fold_bytes=800)
    make(table, *(f"t{n}" for n in range(6)))
    (tmp_path / "topics.json.tmp").mkdir()
    waiting.pop()()
    assert "could not be written anew" in caplog.text
    assert table.failing == ""
    make(table, *(f"u{n}" for n in range(6)))
    expected = dict.fromkeys(["first", *(f"{x}{n}" for x in "tu" for n in range(6))], 1)
    assert held(tmp_path) == (expected, table.version)
    (tmp_path / "topics.json.tmp").rmdir()
    waiting.pop()()
    assert held(tmp_path) == (expected, table.version)
    assert files(tmp_path) == ["topics.json", "topics.json.bak", "topics.json.journal.3"]


def test_a_line_that_could_not_be_written_is_refused_and_the_file_is_written_anew(tmp_path):
    """Nothing is put behind it: the kernel may believe that it is on the disk."""
    disk = FaultyDisk()
    clock = FakeClock()
    table = opened(JournalledFile(tmp_path / "topics.json", disk), clock)
    table.start_with({"first": topic("first")})
    make(table, "a")
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    refused = table.change("b", topic("b"))
    assert refused.error is not None
    assert "Nothing has changed" in str(refused.error)
    assert table.failing
    disk.sync_error = None
    clock.advance(2)
    table.tick()
    assert table.failing == ""
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    assert held(tmp_path)[0] == {"first": 1, "a": 1}
    make(table, "b")
    assert held(tmp_path) == ({"first": 1, "a": 1, "b": 1}, table.version)


def test_a_line_that_could_not_be_synced_is_not_left_there(tmp_path):
    """The change is refused: a broker that is killed right after it must not find it at its next start."""
    disk = FaultyDisk()
    table = started(tmp_path, disk)
    make(table, "second")
    synced, failing = disk.sync_file, [True]

    def sync_file(descriptor):
        if failing and failing.pop():
            raise OSError(errno.EIO, "Input/output error")
        synced(descriptor)

    disk.sync_file = sync_file
    with pytest.raises(Refused, match="Input/output error"):
        table.change("second", None).settle()
    assert held(tmp_path)[0] == {"first": 1, "second": 1}
    assert not failing


def test_a_start_after_a_crash_writes_the_file_anew(tmp_path, caplog):
    """Before anybody sees the table; a torn line is dropped, which the log says."""
    table = started(tmp_path)
    make(table, "a", "b")
    with (tmp_path / "topics.json.journal.1").open("ab") as file:
        file.write(b'00000000 {"dataVersion":')
    table = opened(JournalledFile(tmp_path / "topics.json"))
    assert list(table.table) == ["first", "a", "b"]
    assert "topics.json.journal.1: its last 24 bytes are no whole line and are dropped" in caplog.text
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    make(table, "c")
    assert held(tmp_path) == (dict.fromkeys(["first", "a", "b", "c"], 1), table.version)


def test_a_damaged_journal_is_an_error_that_names_it(tmp_path):
    """Not a table that lacks what was answered."""
    table = started(tmp_path)
    make(table, "a", "b")
    journal = tmp_path / "topics.json.journal.1"
    journal.write_bytes(journal.read_bytes().replace(b'"a"', b'"x"'))
    with pytest.raises(ConfigError, match=r"topics\.json\.journal\.1: the line at byte .* damaged.*move it away"):
        opened(JournalledFile(tmp_path / "topics.json"))


def test_a_journal_of_another_file_is_an_error(tmp_path):
    """RocketMQ, or somebody with an editor, has written the file since the crash: neither of the two is thrown away."""
    table = started(tmp_path)
    make(table, "a")
    other = TOPICS.whole({}, DataVersion(1_800_000_000_000, 1))
    ConfigFile(tmp_path / "topics.json").save(other)
    with pytest.raises(
        ConfigError, match=r"topics\.json is not the file that .*journal\.1 goes on from.*move its journals"
    ):
        opened(JournalledFile(tmp_path / "topics.json"))
    (tmp_path / "topics.json.journal.1").unlink()
    assert dict(opened(JournalledFile(tmp_path / "topics.json")).table) == {}


def test_a_missing_journal_is_an_error(tmp_path):
    """What its lines said is not there, so what follows is not either."""
    table = started(tmp_path, beside=lambda _work: None, fold_bytes=400)
    make(table, *(f"t{n}" for n in range(8)))
    (tmp_path / "topics.json.journal.1").unlink()
    with pytest.raises(ConfigError, match="is not the file that"):
        opened(JournalledFile(tmp_path / "topics.json"))


def test_a_cut_journal_before_another_is_an_error(tmp_path):
    """The second does not begin where the first ends."""
    table = started(tmp_path, beside=lambda _work: None, fold_bytes=400)
    make(table, *(f"t{n}" for n in range(8)))
    first = tmp_path / "topics.json.journal.1"
    first.write_bytes(b"".join(first.read_bytes().splitlines(True)[:2]))
    with pytest.raises(ConfigError, match=r"journal\.2 begins at .*missing or cut"):
        opened(JournalledFile(tmp_path / "topics.json"))


def test_entries_that_may_not_be_are_passed_over_in_a_journal_too(tmp_path, caplog):
    """As in the file."""
    table = started(tmp_path)
    make(table, "../b")

    def check(name):
        if name != "first":
            from metaq.errors import Reason, Refused

            raise Refused(Reason.INVALID, f"{name} leaves its folder")

    _, found = TableFile(JournalledFile(tmp_path / "topics.json"), TOPICS, TOPICS).read(BORN, check)
    assert list(found) == ["first"]
    assert "passed over an entry: ../b leaves its folder" in caplog.text


def test_a_background_table_writes_in_its_threads(tmp_path):
    """Changes are answered in their order, while the file is written anew more than once."""
    calls = queue.SimpleQueue()
    table = opened(BackgroundTable(tmp_path / "topics.json", fold_bytes=2000), call_soon=calls.put)
    table.start_with({"first": topic("first")})
    names = [f"t{n}" for n in range(60)]
    for name in names:
        pending = table.change(name, topic(name))
        while not pending.done:
            calls.get(timeout=PATIENCE)()
        pending.settle()
    table.close()
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    assert held(tmp_path) == (dict.fromkeys(["first", *names], 1), table.version)


def test_a_stop_keeps_a_change_whose_answer_is_still_under_way(tmp_path):
    """It was written, and the event loop has not heard of it yet."""
    calls = []
    table = opened(JournalledFile(tmp_path / "topics.json"), call_soon=calls.append)
    table.start_with({"first": topic("first")})
    pending = table.change("a", topic("a"))
    table.close()
    assert held(tmp_path)[0] == {"first": 1, "a": 1}
    while calls:
        calls.pop(0)()
    assert pending.done
    assert pending.error is None


class _Ended(BaseException):
    """The power is gone, or the process."""


class Lives:
    """A table through kills, power cuts and failing syncs, and what it has promised."""

    NAMES = ("a", "b", "c", "d")

    def __init__(self, root, seed):
        self.root, self.chance, self.clock = root, random.Random(seed), FakeClock()
        self.seed = seed
        self.held: dict[str, int] = {}
        self.maybe: dict[str, set[int | None]] = {}
        """Refused, or not answered yet: the entry may have one of these values after all."""

    def run(self, lives):
        disk = PowerLossDisk(self.root / "0", f"journal {self.seed}")
        for life in range(1, lives + 1):
            disk = self.live(disk, self.root / str(life))
        disk.close()

    def live(self, disk, elsewhere):
        waiting = []

        def settle():
            while waiting:
                waiting.pop(0)()

        left = self.chance.randint(1, self.chance.choice((4, 30, 150)))
        failing = self.chance.choice((0, 0, self.chance.randint(1, 40)))
        following = []

        def on_call(name):
            nonlocal left, failing
            left, failing = left - 1, failing - 1
            if left == 0:
                disk.on_call = None
                following.append(disk.kill(elsewhere) if self.chance.random() < 0.4 else disk.cut(elsewhere))
                raise _Ended
            if failing == 0 and name.startswith("sync"):
                raise OSError(errno.EIO, "Input/output error")

        disk.sync_folder(disk.root)  # as every start of a store does (`StoreFolder.secure_config`)
        disk.on_call = on_call
        try:
            file = JournalledFile(
                disk.root / "topics.json",
                disk,
                beside=waiting.append,
                settle=settle,
                fold_bytes=self.chance.choice((1, 600)),
            )
            try:
                table = opened(file, self.clock)
            except ConfigError as error:
                assert "Input/output error" in str(error)
                disk.on_call = None
                return disk.kill(elsewhere)
            self.check(table)
            for _ in range(self.chance.randint(1, 40)):
                self.step(table, settle)
            table.close()
            disk.on_call = None
            following.append(disk.kill(elsewhere))
        except _Ended:
            pass
        return following[0]

    def check(self, table):
        found = {name: config.read_queues for name, config in table.table.items()}
        for name in self.NAMES:
            allowed = {self.held.get(name)} | self.maybe.get(name, set())
            assert found.get(name) in allowed, (self.seed, name, found, self.held, self.maybe)
            if table.failing:  # it could not be written anew, so another of these may be there next time
                self.maybe[name] = allowed
        self.held = found
        if not table.failing:
            self.maybe = {}

    def step(self, table, settle):
        act = self.chance.random()
        if act < 0.1:
            settle()
            return
        if act < 0.25:
            self.clock.advance(2)
            table.tick()
            return
        if not table.failing:
            self.maybe = {}
        self.clock.advance(self.chance.choice((0, 0.001)))
        name = self.chance.choice(self.NAMES)
        value = None if self.chance.random() < 0.3 else self.chance.randint(1, 9)
        self.maybe.setdefault(name, set()).add(value)
        pending = table.change(name, None if value is None else topic(name, value))
        assert pending.done
        if pending.error is None:
            self.held.pop(name, None)
            if value is not None:
                self.held[name] = value
            if not table.failing:  # else it was so already, and nothing was written
                self.maybe = {}


def test_a_moment_after_the_last_change_the_file_is_whole_and_alone(tmp_path):
    """Whoever takes over the folder of a killed broker, a RocketMQ for instance, finds what was made before; but a table
    that changes all the time is not written for each change."""
    clock = FakeClock()
    table = opened(JournalledFile(tmp_path / "topics.json"), clock)
    make(table, "first", "second")
    assert "topics.json.journal.1" in files(tmp_path)
    table.tick()
    clock.advance(FOLD_SECONDS)
    table.tick()
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    assert list(TOPICS.parse((tmp_path / "topics.json").read_text())[1]) == ["first", "second"]
    for number in range(8):
        make(table, f"t{number}")
        clock.advance(QUIET_SECONDS / 2)
        table.tick()
        assert any(".journal." in name for name in files(tmp_path))
    clock.advance(FOLD_SECONDS)
    table.tick()
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    inode = (tmp_path / "topics.json").stat().st_ino
    clock.advance(FOLD_SECONDS)
    table.tick()
    assert (tmp_path / "topics.json").stat().st_ino == inode


def test_a_file_that_cannot_be_written_whole_is_tried_again(tmp_path, caplog):
    """Its journals stay, changes go on, and nothing is lost."""
    clock, disk = FakeClock(), FaultyDisk()
    table = opened(JournalledFile(tmp_path / "topics.json", disk), clock)
    make(table, "first", "second")
    disk.sync_error = errno.EIO
    clock.advance(FOLD_SECONDS)
    table.tick()
    assert "could not be written anew" in caplog.text
    assert set(held(tmp_path)[0]) == {"first", "second"}
    disk.sync_error = 0
    clock.advance(FOLD_SECONDS)
    table.tick()
    assert files(tmp_path) == ["topics.json", "topics.json.bak"]
    assert set(held(tmp_path)[0]) == {"first", "second"}


@pytest.mark.parametrize("seed", range(repeats(150)))
def test_what_was_answered_outlives_kills_power_cuts_and_failing_syncs(tmp_path, seed):
    """In any order, at any call to the disk, with the file being written anew meanwhile."""
    Lives(tmp_path, seed).run(8)
