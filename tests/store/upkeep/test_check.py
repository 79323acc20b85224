"""`check` finds what is damaged, with file and byte, and nothing in a whole folder, whatever it went through."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import struct
import sys

import pytest

from metaq.clock import FakeClock, seeded
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.store.queues.consume_queue import UNIT_BYTES
from metaq.store.queues.index_file import ENTRY, HEADER
from metaq.store.upkeep.check import check
from metaq.wire.files import DELAY_OFFSETS
from metaq.wire.record import encode_record
from tests.crash.test_kill import WRITER
from tests.store.support import (
    BORN,
    HOST,
    START_MS,
    change_json,
    checkpoint,
    log_file,
    message,
    open_store,
    overwrite,
    put,
)
from tests.store.upkeep.support import MESSAGES, all_damage, filled, with_tables
from tests.support import ROOT, process

QUEUE = pathlib.Path("consumequeue/orders/1") / f"{0:020d}"
JOURNAL = pathlib.Path("config/topics.json.journal.1")
TABLE = pathlib.Path("config/topics.json")
POSITIONS = pathlib.Path("positions/orders/0") / f"{0:020d}"
CHECKPOINT = pathlib.Path("checkpoint")
LOG = pathlib.Path("commitlog") / f"{0:020d}"
TAILS = pathlib.Path("config/metaqTails.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder of several files of each kind, to be copied."""
    root = filled(tmp_path_factory.mktemp("whole") / "store")
    with_tables(root)
    return root


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "store")


def index_of(folder: pathlib.Path) -> pathlib.Path:
    return min((folder / "index").iterdir()).relative_to(folder)


def third_record(folder: pathlib.Path) -> int:
    """Byte of a record in the middle of the first log file."""
    data, place = (folder / LOG).read_bytes(), 0
    for _ in range(20):
        place += int.from_bytes(data[place : place + 4], "big")
    return place


# Byte of a record at which each field lies that `check` can judge; the others are `scrub`'s.
FIELDS = {
    "size": 2, "magic": 5, "body crc": 9, "queue id": 15, "queue offset": 27, "log offset": 33, "sys flag": 39,
    "store time": 59, "store host": 65, "store port": 69, "body size": 86, "body": 89,
}  # fmt: skip


def test_a_whole_folder_is_clean_and_all_of_it_was_looked_at(folder):
    """Every record, unit, entry and position is counted; nothing is written, and no lock taken."""
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}
    findings = check(folder)
    assert all_damage(findings) == []
    counted = {name: kind.checked for name, kind in findings.kinds.items()}
    assert counted == {
        "commit log": MESSAGES, "consume queues": MESSAGES, "index": MESSAGES, "checkpoint": 4, "tables": 1,
        "journals": 2, "positions of 1.x": 51, "checksums": 0, "delays": 0,
    }  # fmt: skip
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}
    assert findings.in_order
    assert not findings.running


@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_field_of_a_record_is_found(folder, field):
    """Named with the log's file, by itself or by what does not fit it any more."""
    place = third_record(folder) + FIELDS[field]
    byte = (folder / LOG).read_bytes()[place]
    overwrite(folder / LOG, place, bytes([byte ^ 0x10]))
    found = all_damage(check(folder))
    assert any(str(folder / LOG) in f"{one.path} {one.why}" for one in found), found


@pytest.mark.parametrize("byte", range(UNIT_BYTES))
def test_a_flipped_byte_of_a_unit_is_found(folder, byte):
    """With its file, and the field's byte."""
    place = 50 * UNIT_BYTES + byte
    overwrite(folder / QUEUE, place, bytes([(folder / QUEUE).read_bytes()[place] ^ 0x40]))
    first = all_damage(check(folder))[0]
    assert first.path == str(folder / QUEUE)
    assert first.place <= place < first.place + first.size


@pytest.mark.parametrize(
    "byte", [3, 11, 19, 31, 35, 39, HEADER.size + 7, *range(40 + 200 + 20 * 9, 40 + 200 + 20 * 10)]
)
def test_a_flipped_byte_of_the_index_is_found(folder, byte):
    """Header, a slot, and each byte of an entry."""
    path = index_of(folder)
    overwrite(folder / path, byte, bytes([(folder / path).read_bytes()[byte] ^ 1]))
    found = [one for one in all_damage(check(folder)) if one.path == str(folder / path)]
    assert any(one.place <= byte < one.place + max(one.size, ENTRY.size) or byte == 39 for one in found), found


@pytest.mark.parametrize("path", [JOURNAL, POSITIONS, CHECKPOINT])
def test_a_flipped_bit_of_a_small_file_is_found(folder, path):
    """Anywhere in what was written of it."""
    data, chance = (folder / path).read_bytes(), seeded(3)
    written = {JOURNAL: len(data), POSITIONS: 51 * 8, CHECKPOINT: 30}[path]
    for _ in range(24):
        place = chance.randrange(written)
        overwrite(folder / path, place, bytes([data[place] ^ 1 << chance.randrange(8)]))
        found = [one for one in all_damage(check(folder)) if one.path == str(folder / path)]
        told = any(one.place <= place < one.place + max(one.size, 1) for one in found)
        # The last line of a journal that is torn is dropped by a start; after a stop in order there is no such thing.
        assert told or (path == JOURNAL and found), (place, found)
        overwrite(folder / path, place, data[place : place + 1])


def test_what_is_no_table_is_found_with_its_byte(folder):
    """A table that no parser takes; and one that is no text."""
    data = (folder / TABLE).read_bytes()
    overwrite(folder / TABLE, data.index(b":"), b";")
    (found,) = [one for one in all_damage(check(folder)) if one.path == str(folder / TABLE)][:1]
    assert "it is not what belongs there" in found.why
    overwrite(folder / TABLE, 30, b"\xff")
    assert any((one.path, one.place) == (str(folder / TABLE), 30) for one in all_damage(check(folder)))


@pytest.mark.parametrize("name", ["log_end", "last_store_ms", "last_record"])
def test_tails_that_do_not_fit_their_log_are_found(folder, name):
    """Of an older release, without a checksum: the number that is wrong is named, with that of the log."""
    change_json(folder / TAILS, **{name: json.loads((folder / TAILS).read_bytes())[name] + 1})
    (found,) = [one for one in all_damage(check(folder)) if one.path == str(folder / TAILS)][:1]
    assert name in found.why


@pytest.mark.parametrize("path", [QUEUE, LOG])
def test_a_file_that_is_missing_or_short_is_found(folder, path):
    """In the middle of its run, or at its end."""
    files = sorted((folder / path.parent).iterdir())
    files[1].unlink()
    assert all_damage(check(folder))[0].path in {str(files[0]), str(files[2]), str(files[1].parent)}
    os.truncate(files[0], files[0].stat().st_size // 2)
    assert all_damage(check(folder))[0].path in {str(files[0]), str(files[2]), str(files[1].parent)}


def test_a_queue_that_is_gone_is_found(folder):
    """By its records."""
    shutil.rmtree(folder / QUEUE.parent)
    assert any(
        str(folder / QUEUE.parent) == one.path and "no consume queue" in one.why for one in all_damage(check(folder))
    )


def test_a_place_that_a_start_has_stepped_over_is_one_damage(folder):
    """The broken record itself; not the unit that its message keeps."""
    overwrite(folder / LOG, third_record(folder) + 89, b"\xff\xff\xff")
    assert len(all_damage(check(folder))) == 1
    open_store(folder).close()
    (found,) = all_damage(check(folder))
    assert (found.path, found.place) == (str(folder / LOG), third_record(folder))


# ---------------------------------------------------------------------- whole folders of all kinds


def test_a_folder_after_retention_is_clean(tmp_path):
    """The oldest log, queue and index files are gone; what is left points below the log's begin."""
    root = filled(tmp_path)
    clock = FakeClock(START_MS + 10_000_000)
    with open_store(root, clock, file_reserved_time=0) as store:
        assert store.keeper.retain(clock.now_ms(), at_once=True) > 0
    findings = check(root)
    assert findings.log_begin > 0
    assert all_damage(findings) == []


def test_a_topic_that_was_deleted_and_made_again_is_clean(tmp_path):
    """Its old records are in the log, and in no queue."""
    root = filled(tmp_path)
    with open_store(root, FakeClock(START_MS + 1_000_000)) as store:
        place = store.log.end
        store.writer.delete_topic("orders", place)
        (root / "config" / "metaqDeleted.json").write_text(f'{{"deletedTopics":{{"orders":{place}}}}}')
        put(store, "orders", 1, b"new", key="n")
    assert all_damage(check(root)) == []


def test_a_topic_that_was_deleted_and_has_the_newest_records_is_clean(tmp_path):
    """The tails end with the newest record that is in a queue. What lies behind it is looked at, too."""
    root = filled(tmp_path)
    with open_store(root, FakeClock(START_MS + 1_000_000)) as store:
        known = store.log.end
        put(store, "gone", 0, *[b"newest"] * 3, key="k")
        place = store.log.end
        store.writer.delete_topic("gone", place)
        (root / "config" / "metaqDeleted.json").write_text(f'{{"deletedTopics":{{"gone":{place}}}}}')
    assert json.loads((root / TAILS).read_text())["log_end"] == known
    found = check(root)
    assert (all_damage(found), found.log_end, found.durable_end) == ([], place, place)
    assert found.kinds["commit log"].checked == MESSAGES + 3
    file = max((root / "commitlog").iterdir())
    overwrite(file, file.read_bytes().rindex(b"newest"), b"?")
    assert all_damage(check(root)), "an entry of the index leads to the record"


def test_a_running_store_is_looked_at_up_to_what_is_durable(tmp_path):
    """What was put since the last checkpoint is left out; the lock stays the store's."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, *[b"x"] * 100, key="k")
        checkpoint(store)
        put(store, "T", 0, b"later", key="k")
        findings = check(tmp_path)
        assert (all_damage(findings), findings.running, findings.in_order) == ([], True, False)
        assert findings.kinds["commit log"].checked == 100
        assert "which it has made durable" in findings.notes[0]


def test_a_store_killed_under_load_is_clean_before_and_after_its_recovery(tmp_path):
    """kill -9 of a writer: what was durable is whole at once, and all of it after the next start."""
    root = tmp_path / "store"
    with process(sys.executable, "-c", WRITER, str(root), "ASYNC_FLUSH", str(ROOT)) as writer:
        for line in writer.stdout:
            if line.strip().isdigit() and int(line) >= 1500:
                break
        os.kill(writer.pid, signal.SIGKILL)
    found = check(root)
    assert all_damage(found) == []
    assert found.kinds["commit log"].checked >= 4 * 1500
    assert any("did not end in order" in note for note in found.notes)
    with open_store(root, mapped_file_size_commit_log=1 << 20):
        pass
    found = check(root)
    assert all_damage(found) == []
    assert found.kinds["commit log"].checked == found.kinds["consume queues"].checked >= 4 * 1500


def test_a_folder_without_our_hints_is_judged_all_the_same(folder):
    """As a RocketMQ leaves it: no tails; its checkpoint is believed."""
    for path in (folder / "config").glob("metaqTails.json*"):
        path.unlink()
    assert all_damage(check(folder)) == []
    overwrite(folder / QUEUE, 50 * UNIT_BYTES, b"\xff")
    assert all_damage(check(folder))[0].place == 50 * UNIT_BYTES


# ---------------------------------------------------------------------- what is owed


@pytest.mark.parametrize("case", ["its end", "in its middle", "before the checkpoint", "ended in order", "ours"])
def test_a_rocketmq_that_was_killed_or_copied_makes_the_ends_of_its_queues_at_its_next_start(tmp_path, case):
    """It puts units behind the log. What lies in the middle, or before its checkpoint, is missing."""
    folder = filled(tmp_path / "store")
    if case != "ours":
        for path in (folder / "config").glob("metaqTails.json*"):
            path.unlink()
    if case != "ended in order":
        (folder / "abort").touch()
    newest = max((folder / QUEUE).parent.iterdir())
    last = (len(newest.read_bytes().rstrip(b"\0")) - 1) // UNIT_BYTES
    overwrite(newest, (last - (2 if case == "in its middle" else 0)) * UNIT_BYTES, bytes(UNIT_BYTES))
    end_ms = START_MS + MESSAGES * 500
    at_ms = end_ms + (4000 if case == "before the checkpoint" else 0)
    overwrite(folder / CHECKPOINT, 0, struct.pack(">qq", at_ms, at_ms))
    findings = check(folder)
    if case == "its end":
        assert all_damage(findings) == []
        assert any("1 record of the end of the log has no unit in the queues yet" in note for note in findings.notes)
    else:
        assert str(newest) in [one.path for one in all_damage(findings)]


def test_what_a_rocketmq_would_not_act_on_is_named(tmp_path):
    """Delays that were written anew, a journal, damage."""
    with open_store(tmp_path) as store:
        due = message(SCHEDULE_TOPIC, 10_001, b"later")
        store.writer.put([due, due, due])
    (tmp_path / "config" / DELAY_OFFSETS.name).write_text('{"offsetTable":{2:0,10002:1}}')
    with_tables(tmp_path)
    owed = check(tmp_path).owed
    assert any(text.startswith("2 delayed messages were written anew") for text in owed)
    assert any("topics.json has a journal" in text for text in owed)
    overwrite(log_file(tmp_path), 90, b"\xff")
    assert any("the log has 1 damaged place" in text for text in check(tmp_path).owed)


def test_a_delay_is_judged_by_its_level_also_by_one_of_another_ladder(tmp_path):
    """`messageDelayLevel` was another one for all messages; one damaged unit is found all the same."""
    with open_store(tmp_path, message_delay_level="7s 90s") as store:
        for number in range(8):
            record = encode_record(
                topic=SCHEDULE_TOPIC.encode(), queue_id=0, queue_offset=number, log_offset=store.log.end, flag=0, sys_flag=0,
                born_ms=1, born_host=BORN, store_ms=START_MS, store_host=HOST, reconsume_times=0, prepared_offset=0,
                body=b"x", properties=b"DELAY\x011\x02",
            )  # fmt: skip
            store.writer.append_raw(record, store.log.end)
    assert all_damage(check(tmp_path)) == []
    path = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020d}"
    overwrite(path, 3 * UNIT_BYTES + 15, b"\x77")
    assert [(one.path, one.place) for one in all_damage(check(tmp_path))] == [(str(path), 3 * UNIT_BYTES + 12)]
