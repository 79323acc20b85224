"""A copy of a store's folder is whole or has another name, and opens as after a kill."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

import metaq
from metaq.clock import FakeClock
from metaq.errors import StoreCorrupt, StoreForeign, StoreFull
from metaq.store.upkeep.check import check
from metaq.store.upkeep.copy import copy
from metaq.store.upkeep.scrub import scrub
from metaq.testing import EmbeddedBroker
from tests.servers.metaq1.support import TextClient, open_metaq1_server
from tests.staged import PlannedPart, ask, stage
from tests.store.support import START_MS, checkpoint, log_file, open_store, overwrite, put, read_all
from tests.store.upkeep.support import all_damage, filled, with_tables
from tests.support import environment, eventually

pytestmark = pytest.mark.slow

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from metaq.cli.commands import run
sys.exit(run(["store", "copy", *sys.argv[2:]]))
"""


def used(folder: pathlib.Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_a_copy_of_a_folder_at_rest_is_the_same_and_no_larger(tmp_path):
    """Log, queues, index, positions, tables with journals, checksums; holes stay holes."""
    root = filled(tmp_path / "store")
    with_tables(root)
    scrub(root)
    made = copy(root, tmp_path / "copy")
    same = ("commitlog", "consumequeue", "index", "positions", "config", "sums")
    for part in same:
        for path in (root / part).rglob("*"):
            if path.is_file():
                assert (tmp_path / "copy" / path.relative_to(root)).read_bytes() == path.read_bytes()
    assert (made.log_begin, made.log_end, made.left_out) == (0, check(root).log_end, [])
    assert used(tmp_path / "copy") <= used(root) + 64 * 1024
    assert all_damage(check(tmp_path / "copy")) == []
    assert not (tmp_path / "copy.copying").exists()
    with open_store(tmp_path / "copy", FakeClock(START_MS + 1_000_000)) as store:
        assert len(read_all(store, "orders", 0)) == 250
    assert all_damage(check(tmp_path / "copy")) == []


def test_a_copy_is_not_the_broker_that_was_in_sync(tmp_path):
    """In a group with failover: a folder of yesterday would lead with what it has, and all since then would be cut off elsewhere."""
    root = filled(tmp_path / "store")
    for name in ("metaqFailover.json", "metaqFailover.json.bak"):
        (root / "config").mkdir(exist_ok=True)
        (root / "config" / name).write_text("{}")
    copy(root, tmp_path / "copy")
    assert not list((tmp_path / "copy" / "config").glob("metaqFailover*"))
    assert all_damage(check(tmp_path / "copy")) == []


def test_a_copy_of_a_store_that_is_written_holds_all_that_was_there_before(tmp_path):
    """A thread goes on putting; log files are closed and the oldest deleted meanwhile; the copy is a whole store."""
    with open_store(tmp_path / "store", file_reserved_time=0) as store:
        stop = threading.Event()
        bodies = [b"%05d" % number * 60 for number in range(100_000)]

        def write() -> None:
            for number, body in enumerate(bodies):
                if stop.is_set():
                    return
                put(store, "orders", number % 3, body, key=f"k{number}")
                if number % 200 == 0:
                    checkpoint(store)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            eventually(lambda: store.log.end > 5 * 64 * 1024, what="some log files")
            for name in ("one", "two"):
                before = store.log.end
                made = copy(tmp_path / "store", tmp_path / name)
                assert made.log_end >= before
                store.keeper.retain(store.clock.now_ms() + 3_700_000, at_once=True)
        finally:
            stop.set()
            writer.join()
    for name in ("one", "two"):
        assert all_damage(check(tmp_path / name)) == []
        with open_store(tmp_path / name, file_reserved_time=0) as store:
            for queue_id in range(3):
                found = read_all(store, "orders", queue_id)
                first = bodies.index(found[0])
                assert found == bodies[first : first + 3 * len(found) : 3]
        assert all_damage(check(tmp_path / name)) == []


def test_a_broker_starts_on_the_copy_of_a_running_one(tmp_path):
    """With its topics and groups, delayed messages that come when they are due, progress, and an open transaction."""
    with EmbeddedBroker(tmp_path / "store") as broker, metaq.Producer(broker.namesrv) as producer:
        for number in range(50):
            producer.send("orders", b"%02d" % number)
        with metaq.Consumer(broker.namesrv, group="readers", topics="orders", start="first") as consumer:
            for number, message in enumerate(consumer, 1):
                with message:
                    pass
                if number == 50:
                    break
        producer.send("orders", b"later", delay_level=3)
        part = PlannedPart("broker-a", "p", "orders", 0, ((b"staged",),))
        ask(broker.broker, stage("t@broker-a", [part]))
        copy(broker.data, tmp_path / "copy")
    found = check(tmp_path / "copy")
    assert all_damage(found) == []
    assert any(text.startswith("staged transactions, open: 1") for text in found.owed)
    with EmbeddedBroker(tmp_path / "copy") as broker, metaq.Producer(broker.namesrv) as producer:
        producer.send("orders", b"new")
        got = []
        with metaq.Consumer(broker.namesrv, group="readers", topics="orders", start="first") as consumer:
            for message in consumer:
                with message:
                    got.append(message.body)
                if {b"later", b"new"} <= set(got):
                    break
        assert set(got) - {b"%02d" % number for number in range(50)} == {b"later", b"new"}


def test_positions_of_1x_are_in_the_copy(tmp_path):
    """A 1.x client finds each message where it was told that it is, and new ones go on behind."""
    with open_metaq1_server(tmp_path / "store") as (_, server):
        client = TextClient(server)
        told = [client.put(b"x" * number)[2] for number in range(20)]
        copy(tmp_path / "store", tmp_path / "copy")
    assert all_damage(check(tmp_path / "copy")) == []
    with open_metaq1_server(tmp_path / "copy") as (_, server):
        client = TextClient(server)
        assert client.put(b"next")[2] == told[-1] + 20 + 19


# ---------------------------------------------------------------------- ends before its end


def test_a_full_disk_ends_it_with_a_clear_error_and_a_further_run_goes_on(tmp_path):
    """Nothing has the target's name; what was copied stays, and counts."""
    root = filled(tmp_path / "store")
    with_tables(root)
    target = tmp_path / "copy"
    limited = [sys.executable, "-c", LIMITED, str(256 * 1024), str(root), str(target)]
    done = subprocess.run(limited, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 1
    assert "the copy has no room" in done.stderr
    assert f"{target} is not there; what was copied stays in {target}.copying" in done.stderr
    assert not target.exists()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy.copying" / "commitlog").iterdir()}
    copy(root, target)
    assert all_damage(check(target)) == []
    closed = [path for path in kept if path.name < max(path.name for path in kept)]
    assert [(target / "commitlog" / path.name).stat().st_mtime_ns for path in closed] == [kept[path] for path in closed]


def test_too_little_room_is_told_before_anything_is_copied(tmp_path, monkeypatch):
    """By what the source uses and the target has."""
    root = filled(tmp_path / "store")
    real = os.statvfs

    def full(path: object) -> os.statvfs_result:
        return os.statvfs_result([*list(real(path))[:3], 0, 0, *list(real(path))[5:]])

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(StoreFull, match="and 0 are free"):
        copy(root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_wherever_it_is_interrupted_a_further_run_makes_a_whole_copy(tmp_path):
    """At each of its steps in turn; the target's name is there only at the end."""
    root = filled(tmp_path / "store")
    target, steps = tmp_path / "copy", [0]

    class Interrupted(BaseException):
        pass

    def interrupt(limit: int) -> bool:
        count = 0

        def step(_done: int, _of: int) -> None:
            nonlocal count
            count += 1
            if count == limit:
                raise Interrupted

        try:
            copy(root, target, progress=step)
        except Interrupted:
            assert not target.exists()
            return True
        steps[0] = count
        return False

    for limit in (1, 2, 3, 5, 8, 12, 1_000_000):
        if not interrupt(limit):
            break
    assert steps[0]
    assert all_damage(check(target)) == []
    assert not (tmp_path / "copy.copying").exists()


def test_what_would_not_be_a_copy_is_refused(tmp_path):
    """A target that is there, one inside of the store, a half copy of another store, and no store at all."""
    root = filled(tmp_path / "store")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(StoreForeign, match="is there already"):
        copy(root, tmp_path / "full")
    with pytest.raises(StoreForeign, match="is inside of"):
        copy(root, root / "copy")
    with pytest.raises(StoreForeign, match="holds no commit log"):
        copy(tmp_path / "full", tmp_path / "copy")
    (tmp_path / "copy.copying").mkdir()
    with pytest.raises(StoreForeign, match="is no copy of ours"):
        copy(root, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy.copying")
    with pytest.raises(ZeroDivisionError):
        copy(root, tmp_path / "copy", progress=lambda *_: 1 // 0)
    with pytest.raises(StoreForeign, match="is a copy that is not whole"):
        open_store(tmp_path / "copy.copying")
    other = filled(tmp_path / "other")
    with pytest.raises(StoreForeign, match="is a half copy of"):
        copy(other, tmp_path / "copy")


def test_a_log_that_is_repaired_meanwhile_is_copied_again(tmp_path):
    """Old and new bytes must not be mixed; the half copy says so."""
    root = filled(tmp_path / "store")
    scrub(root)
    good = log_file(root).read_bytes()
    with open_store(root, FakeClock(START_MS + 1_000_000)) as store:
        overwrite(log_file(root), 100, b"\xff")

        def repair(_done: int, _of: int) -> None:
            size = int.from_bytes(good[:4], "big")
            if log_file(root).read_bytes() != good:
                store.writer.mend(0, good[:size])

        with pytest.raises(StoreCorrupt, match="was cut or repaired while it was copied"):
            copy(root, tmp_path / "copy", progress=repair)
        with pytest.raises(StoreCorrupt, match=r"since .* was begun: delete that"):
            copy(root, tmp_path / "copy")
