"""Nothing is durable because it was found, or because a second try said so: power cuts after kills, and failing syncs."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from typing import Any

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreFailed
from metaq.store.config_file import ConfigFile
from metaq.store.disk import PAGE_BYTES, Mapped
from metaq.store.mapped_file import FileRun, MappedFile
from metaq.store.message_store import MessageStore
from metaq.store.recovery import Recovery
from metaq.testing import PowerLossDisk
from metaq.testing.faults import FaultyDisk
from tests.effort import repeats
from tests.store.support import (
    HOST,
    START_MS,
    bodies_of,
    checkpoint,
    crash,
    log_file,
    message,
    open_store,
    overwrite,
    put,
    read_all,
    small_options,
)

SEEDS = range(repeats(25))


def quiet(disk: Any, **changes: Any) -> MessageStore:
    """A store whose threads' steps the test takes itself."""
    return MessageStore(
        small_options(disk.root, **changes), FakeClock(START_MS), HOST, "DefaultCluster", disk=disk, threads=False
    )


class PowerGone(BaseException):
    """Raised at a call to the disk: nothing after it is done."""


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d:" % number + b"x" * (number * 37 % 600) for number in numbers]


# ---------------------------------------------------------------------- what a killed process leaves


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_killed_process_left_unsynced_is_synced_before_anything_is_acknowledged(tmp_path, seed, checkpointed):
    """Killed, started, one message acknowledged after its sync, power cut: all that the start found is still there."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        for number in range(40):
            put(store, f"T{number % 3}", 0, *bodies(number), key=f"k{number}")
        if checkpointed:
            store.keeper.checkpoint()
        for number in range(40, 240):  # over the border of a log file, and of queue files
            put(store, f"T{number % 4}", 0, *bodies(number), key=f"k{number}")
        killed = disk.kill(tmp_path / "b")
        store.close()
    with killed:
        store = quiet(killed)
        assert sum(len(read_all(store, f"T{i}", 0)) for i in range(4)) == 240
        put(store, "T0", 0, *bodies(240))
        store.flusher.flush()
        found = {i: read_all(store, f"T{i}", 0) for i in range(4)}
        cut = killed.cut(tmp_path / "c")
        store.close()
    with cut:
        store = quiet(cut)
        assert {i: read_all(store, f"T{i}", 0) for i in range(4)} == found
        for number in range(0, 240, 17):
            assert any(
                bodies(number)[0] in record
                for record in store.reader.query(f"T{number % (3 if number < 40 else 4)}", f"k{number}", 32, 0, 1 << 60)
            )
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_message_of_a_new_store_survives_once_it_is_flushed(tmp_path, seed):
    """The names of the log file and of all folders above it are durable, not only its bytes."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        (tmp_path / "a").mkdir(exist_ok=True)
        store = quiet(disk)
        for number in range(200):
            put(store, "T", 0, *bodies(number))
        store.flusher.flush()
        cut = disk.cut(tmp_path / "b")
        store.close()
    with cut:
        store = quiet(cut)
        assert read_all(store, "T", 0) == bodies(*range(200))
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_files_of_a_queue_may_be_lost_in_any_order(tmp_path, seed):
    """Several queue files between two checkpoints: whichever names survive, the store opens and is whole."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        put(store, "T", 0, b"first")
        store.keeper.checkpoint()
        for _ in range(5):
            put(store, "T", 0, *[b"x"] * 100)
        put(store, "U", 0, b"other")
        store.flusher.flush()
        cut = disk.cut(tmp_path / "b")
        store.close()
    with cut:
        store = quiet(cut)
        assert read_all(store, "T", 0) == [b"first"] + [b"x"] * 500
        assert read_all(store, "U", 0) == [b"other"]
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_log_files_are_deleted_in_their_order_also_on_the_disk(tmp_path, seed):
    """A power cut while several go leaves no hole between those that are left."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk, file_reserved_time=0)
        for number in range(12):
            put(store, "T", number % 2, b"%d" % number * 20_000)
        store.keeper.checkpoint()
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) >= 3
        low = store.log.min
        cut = disk.cut(tmp_path / "b")
        store.close()
    with cut:
        store = quiet(cut)
        assert store.log.min <= low
        assert read_all(store, "T", 1)[-1] == b"11" * 20_000
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_deleted_log_files_stay_deleted(tmp_path, seed):
    """Once retention is done with them: what they held is forgotten, and may have been answered otherwise."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk, file_reserved_time=0)
        for number in range(12):
            put(store, "T", 0, b"%d" % number * 20_000)
        store.keeper.checkpoint()
        assert store.keeper.retain(store.clock.now_ms() + 1, at_once=True) >= 3
        low = store.log.min
        assert store.log.settled_min == low > 0
        cut = disk.cut(tmp_path / "b")
        store.close()
    with cut:
        store = quiet(cut)
        assert store.log.min == low
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mark_of_a_running_store_is_durable_before_anything_changes(tmp_path, seed):
    """After a cut in the middle of a run the next start knows that there was no orderly end."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        with quiet(disk) as store:
            put(store, "T", 0, b"x")
        store = quiet(disk)
        cut = disk.cut(tmp_path / "b")
        store.close()
        cut.close()
        assert (tmp_path / "b" / "abort").exists()
        disk.cut(tmp_path / "c").close()
    assert not (tmp_path / "c" / "abort").exists()


def test_an_orderly_end_leaves_the_next_start_little_to_sync(tmp_path):
    """Nothing of log, queues and index, and no hint is written again: only the mark of a running store, and the names of
    the configuration files.
    """
    with open_store(tmp_path) as store:
        for number in range(100):
            put(store, f"T{number % 5}", 0, b"x", key=f"k{number}")
    disk = RecordingDisk()
    store = open_store(tmp_path, disk=disk)
    try:
        assert [path.name for path in disk.events] == [tmp_path.name, "config"]
    finally:
        store.close()


# ---------------------------------------------------------------------- syncs that fail


class RecordingDisk(FaultyDisk):
    """Notes which file or folder is synced, and fails at those whose path ends with a given text."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[pathlib.Path] = []
        self.fails_at: str | None = None
        self._paths: dict[int, pathlib.Path] = {}

    def _sync(self, path: pathlib.Path) -> None:
        self.events.append(path)
        if self.fails_at is not None and str(path).endswith(self.fails_at):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def map(self, path: pathlib.Path, size: int) -> Mapped:
        mapped = super().map(path, size)
        self._paths[mapped.inode] = path
        return mapped

    def sync_range(self, mapped: Mapped, start: int, size: int) -> None:
        self._sync(self._paths[mapped.inode])
        super().sync_range(mapped, start, size)

    def sync_file(self, descriptor: int) -> None:
        self._sync(pathlib.Path(f"/proc/self/fd/{descriptor}").readlink())
        super().sync_file(descriptor)

    def sync_folder(self, path: pathlib.Path) -> None:
        self._sync(path)
        super().sync_folder(path)


FIRST = "00000000000000000000"


@pytest.mark.parametrize(
    "place",
    [f"commitlog/{FIRST}", f"consumequeue/T/0/{FIRST}", "consumequeue/T/0", "consumequeue/T", "consumequeue", "index"],
)
def test_a_failed_sync_of_any_data_is_final(tmp_path, place):
    """The kernel takes the pages for written afterwards: a second try would call durable what is not."""
    disk = RecordingDisk()
    store = open_store(tmp_path, disk=disk)
    done = put(store, "T", 0, b"x", key="k")
    store.clock.advance(60)  # the index is due too
    disk.fails_at = place
    checkpoint(store)
    assert store.state.failed
    assert f"could not be made durable: {os.strerror(errno.EIO)}" in store.state.failed
    disk.fails_at = None
    checkpoint(store)
    outcome: list[bool] = []
    store.flusher.when_flushed(done.log_end + 1, outcome.append)
    store.flusher.flush()
    assert outcome == [False]
    with pytest.raises(StoreFailed):
        put(store, "T", 0, b"y")
    store.close()
    assert (tmp_path / "abort").exists()
    with open_store(tmp_path) as store:
        assert read_all(store, "T", 0) == [b"x"]


def test_a_log_file_whose_name_is_not_durable_takes_no_message(tmp_path):
    """Its folder's sync failed: nothing in it would be found after a power cut."""
    disk = RecordingDisk()
    store = open_store(tmp_path, disk=disk)
    disk.fails_at = "commitlog"
    for _ in range(3):
        with pytest.raises(StoreFailed, match=r"name of .* could not be made durable"):
            put(store, "T", 0, b"x")
    disk.fails_at = None
    with pytest.raises(StoreFailed):
        put(store, "T", 0, b"x")
    store.close()


def test_hints_that_cannot_be_saved_are_tried_again(tmp_path):
    """A checkpoint that fails says nothing wrong: the next one works."""
    disk = RecordingDisk()
    with open_store(tmp_path, disk=disk) as store:
        put(store, "T", 0, b"x")
        disk.fails_at = "metaqTails.json.tmp"
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            checkpoint(store)
        assert store.state.failed is None
        disk.fails_at = None
        checkpoint(store)
        put(store, "T", 0, b"y")


@pytest.mark.parametrize("begun", ["after a checkpoint", "in an empty store"])
@pytest.mark.parametrize("abort_file", ["there", "taken away"])
@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_failed_sync_and_a_restart_what_is_acknowledged_is_really_on_the_disk(
    tmp_path, seed, abort_file, begun
):
    """The failed pages count as written: recovery has them written again, and not only synced.

    Also if somebody has taken the abort file away: the log does not end where an orderly stop would have left it.
    """
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        put(store, "T", 0, *bodies(*range(5)), key="a")
        if begun == "after a checkpoint":
            store.keeper.checkpoint()
        put(store, "T", 0, *bodies(*range(5, 60)), key="b")
        disk.sync_error = errno.EIO
        store.flusher.flush()
        assert store.state.failed
        disk.sync_error = 0
        killed = disk.kill(tmp_path / "b")
        store.close()
    with killed:
        if abort_file == "taken away":
            (killed.root / "abort").unlink()
        store = quiet(killed)
        found = read_all(store, "T", 0)
        put(store, "T", 0, b"acknowledged")
        store.flusher.flush()
        cut = killed.cut(tmp_path / "c")
        store.close()
    with cut:
        store = quiet(cut)
        assert read_all(store, "T", 0) == [*found, b"acknowledged"]
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_no_power_cut_brings_back_a_hint_that_a_start_has_not_seen(tmp_path, monkeypatch, seed, what):
    """Somebody deletes or replaces the tails, and a start goes by what it finds. When it begins to change the folder, the
    old tails must be gone on the disk as well: they would vouch for what it writes anew.
    """
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        for number in range(30):
            put(store, "T", 0, *bodies(number), key=f"k{number}")
            if number % 10 == 0:
                store.keeper.checkpoint()
        store.flusher.flush()
        killed = disk.kill(tmp_path / "b")
        store.close()
    with killed:
        tails = killed.root / "config" / "metaqTails.json"
        if what == "deleted":
            tails.unlink()
        else:
            tails.write_bytes(tails.with_name("metaqTails.json.bak").read_bytes())
        found = [path.read_bytes() if path.exists() else None for path in (tails, killed.root / "checkpoint")]

        def act(*_arguments):
            raise PowerGone

        monkeypatch.setattr(Recovery, "act", act)
        with pytest.raises(PowerGone):
            quiet(killed)
        with killed.cut(tmp_path / "c") as cut:
            tails = cut.root / "config" / "metaqTails.json"
            assert [path.read_bytes() if path.exists() else None for path in (tails, cut.root / "checkpoint")] == found
            assert tails.exists() is not tails.with_name("metaqTails.json.bak").exists(), "one version vouches, not two"


@pytest.mark.parametrize("seed", SEEDS)
def test_index_entries_of_the_checkpoints_own_millisecond_are_made_anew(tmp_path, seed):
    """Others came in the millisecond of the newest entry that was synced, the tails are gone, and the power is cut."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk, max_hash_slot_num=5000)
        store.clock.advance(11)  # the index is due
        put(store, "T", 0, b"0", key="k0")
        store.keeper.checkpoint()
        for number in range(1, 10):
            put(store, "T", 0, b"%d" % number, key=f"k{number}")
        store.flusher.flush()
        cut = disk.cut(tmp_path / "b")
        store.close()
    with cut:
        for path in (cut.root / "config").glob("metaqTails.json*"):
            path.unlink()
        store = quiet(cut, max_hash_slot_num=5000)
        found = [bodies_of(b"".join(store.reader.query("T", f"k{number}", 32, 0, 1 << 60))) for number in range(10)]
        assert found == [[b"%d" % number] for number in range(10)]
        store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_configuration_file_that_a_start_believes_is_durable(tmp_path, seed):
    """A save is killed between the rename and the sync of the folder, and the abort file is taken away."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk)
        put(store, "T", 0, b"x")
        ConfigFile(disk.root / "config" / "topics.json", disk).save("old")
        store.close()
        disk.sync_folder = lambda _path: None  # the process is gone before
        ConfigFile(disk.root / "config" / "topics.json", disk).save("new")
        del disk.sync_folder
        killed = disk.kill(tmp_path / "b")
    with killed:
        store = quiet(killed)
        assert ConfigFile(killed.root / "config" / "topics.json").load() == "new"
        cut = killed.cut(tmp_path / "c")
        store.close()
    with cut:
        assert ConfigFile(cut.root / "config" / "topics.json").load() == "new"


@pytest.mark.parametrize("seed", SEEDS)
def test_deletions_of_two_starts_leave_no_hole(tmp_path, seed):
    """The first start deletes the last file, and its sync fails; the next deletes the one before it and loses its power."""
    size = PAGE_BYTES
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        run = FileRun(disk.root, size, disk)
        for number in range(4):
            run.add(number * size, reserved=size, durable=True)
        run.sync_folder()
        disk.sync_error = errno.EIO
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            run.drop_from(2 * size)
        disk.sync_error = 0
        run.close()
        killed = disk.kill(tmp_path / "b")
    with killed:
        run = FileRun(killed.root, size, killed)
        run.load("")
        assert [file.start // size for file in run.files] == [0, 1, 2]
        run.drop_from(2 * size)
        run.close()
        with killed.cut(tmp_path / "c") as cut:
            found = FileRun(cut.root, size, cut)
            found.load("")  # refuses a hole
            assert len(found.files) >= 2
            found.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_cut_off_does_not_come_back_after_a_failed_sync(tmp_path, seed):
    """The kernel takes the zeroed pages for written then; a start that finds zeros would leave the old bytes on the disk."""
    size = 4 * PAGE_BYTES
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        file = MappedFile.create(disk.root / "0", 0, size, size, disk, durable=True)
        disk.sync_folder(disk.root)
        file.buffer[:] = b"x" * size
        file.sync(0, size)
        disk.sync_error = errno.EIO
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.zero(100)
        disk.sync_error = 0
        file.release()
        killed = disk.kill(tmp_path / "b")
    with killed:
        file = MappedFile(killed.root / "0", 0, size, killed)
        file.zero(100, again=True)
        file.release()
        with killed.cut(tmp_path / "c") as cut:
            assert (cut.root / "0").read_bytes() == b"x" * 100 + bytes(size - 100)


# ---------------------------------------------------------------------- a record whose properties end in zeros


@pytest.mark.parametrize("size", range(380, 480, 9))
def test_a_complete_record_is_a_record_also_if_its_last_property_ends_in_nuls(tmp_path, size):
    """Wherever a sector's border falls: nothing acknowledged is cut off; the doubt is logged."""
    store = open_store(tmp_path / "a")
    record = message("T", 0, b"x" * size)
    record.properties = b"TAGS\x01t\x02padding\x01" + b"p" * 20 + bytes(60)
    store.writer.put([record])
    store.flusher.flush()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store.close()
    with open_store(tmp_path / "b") as store:
        assert read_all(store, "T", 0) == [b"x" * size]
        assert put(store, "T", 0, b"next").queue_offset == 1


@pytest.mark.parametrize("size", range(380, 900, 13))
def test_a_record_that_lost_its_last_properties_is_cut_off(tmp_path, size):
    """What the power cut took reads as zeros up to the record's end. Ours never ends so, even if a property does."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, b"before")
    checkpoint(store)
    record = message("T", 0, b"x" * size)
    record.properties = b"TAGS\x01t\x02padding\x01" + b"p" * 500 + bytes(3)
    done = store.writer.put([record])
    root = crash(store, tmp_path / "b")
    shutil.copytree(root, tmp_path / "c")
    border = (done.log_end - 1) // 512 * 512
    overwrite(log_file(root), border, bytes(done.log_end - border))
    with open_store(root) as store:
        assert read_all(store, "T", 0) == [b"before"]
        assert put(store, "T", 0, b"next").log_offset == done.log_offset
    with open_store(tmp_path / "c") as store:
        assert read_all(store, "T", 0) == [b"before", b"x" * size]


# ---------------------------------------------------------------------- what a start has taken away


def test_units_of_lost_messages_do_not_come_back_with_their_file(tmp_path):
    """A start deletes them; a power cut undoes that, when the log has grown past the places that they name."""
    with PowerLossDisk(tmp_path / "a") as disk:
        store = quiet(disk)
        put(store, "T", 0, *bodies(1))
        store.keeper.checkpoint()
        lost = put(store, "U", 0, *bodies(2, 3))
        root = disk.kill(tmp_path / "b").root
        store.close()
    stale = tmp_path / "stale"
    shutil.copytree(root / "consumequeue" / "U", stale)
    overwrite(log_file(root), lost.log_offset, bytes(2000))  # the power cut takes them
    store = open_store(root)
    assert not read_all(store, "U", 0)
    put(store, "T", 0, *bodies(*range(10, 40)))
    checkpoint(store)
    after = crash(store, tmp_path / "c")
    shutil.rmtree(after / "consumequeue" / "U", ignore_errors=True)
    shutil.copytree(stale, after / "consumequeue" / "U")
    with open_store(after) as store:
        assert not read_all(store, "U", 0)
        assert len(read_all(store, "T", 0)) == 31
        assert put(store, "U", 0, *bodies(4)).queue_offset == 0
        assert read_all(store, "U", 0) == bodies(4)


def test_a_later_file_that_survived_by_chance_does_not_refuse_the_start(tmp_path):
    """Its records bear the time of the newest durable one, to the millisecond: that is no proof that they are durable."""
    with PowerLossDisk(tmp_path / "a") as disk:
        store = quiet(disk)
        put(store, "T", 0, *bodies(1))
        store.keeper.checkpoint()
        for _ in range(4):
            put(store, "T", 0, b"x" * 30_000)
        root = disk.kill(tmp_path / "b").root
        store.close()
    overwrite(log_file(root), 20_000, bytes(20_000))
    for without in ((), ("metaqTails.json", "metaqTails.json.bak")):
        copy = tmp_path / f"{len(without)}"
        shutil.copytree(root, copy)
        for name in without:
            (copy / "config" / name).unlink(missing_ok=True)
        with open_store(copy) as store:
            assert read_all(store, "T", 0) == bodies(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deleted_log_file_that_comes_back_has_no_hole(tmp_path, seed):
    """Retention may delete what was never flushed, when the disk is full; a power cut may undo the deletion."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk, file_reserved_time=1)
        for number in range(200):
            put(store, "T", 0, *bodies(number))
        store.clock.advance(2 * 3600)
        put(store, "T", 0, *bodies(200))
        assert store.keeper.retain(store.clock.now_ms(), at_once=True)
        store.keeper.checkpoint()
        cut = disk.cut(tmp_path / "b")
        store.close()
    with cut:
        store = quiet(cut, file_reserved_time=1)
        numbers = [int(body.split(b":")[0]) for body in read_all(store, "T", 0)]
        assert numbers == list(range(numbers[0], 201))
        store.close()


# ---------------------------------------------------------------------- an index that is being made anew


@pytest.mark.parametrize("seed", range(repeats(6)))
def test_a_checkpoint_does_not_vouch_for_an_index_that_is_being_made_anew(tmp_path, seed):
    """The tails are damaged and the start that makes the index anew is cut off, at any call: every key is found later."""
    with PowerLossDisk(tmp_path / "a", seed) as disk:
        store = quiet(disk, max_index_num=50)
        for number in range(120):
            put(store, "T", 0, *bodies(number), key=f"k{number}")
        store.close()
    shutil.rmtree(tmp_path / "a" / "index")
    (tmp_path / "a" / "config" / "metaqTails.json").unlink()
    (tmp_path / "a" / "abort").touch()
    for at in range(1, 40):
        shutil.copytree(tmp_path / "a", tmp_path / f"b{at}")
        with PowerLossDisk(tmp_path / f"b{at}", f"{seed}-{at}") as disk:
            calls, cuts = iter(range(1, 10_000)), []
            disk.on_call = lambda _name, disk=disk, calls=calls, at=at, cuts=cuts: (
                cuts.append(disk.cut(tmp_path / f"c{at}")) if next(calls) == at else None
            )
            store = quiet(disk, max_index_num=50)
            disk.on_call = None
            store.close()
        for cut in cuts:
            with cut:
                store = quiet(cut, max_index_num=50)
                missing = [number for number in range(120) if not store.reader.query("T", f"k{number}", 64, 0, 1 << 60)]
                assert not missing, f"cut at call {at}"
                store.close()
    assert (tmp_path / "c5").exists()
