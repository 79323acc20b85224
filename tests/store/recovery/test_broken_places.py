"""A record that is broken in front of whole ones: what was promised is stepped over and told, the rest is kept aside."""

from __future__ import annotations

import logging
import shutil

import msgspec
import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreCorrupt
from metaq.store.checkpoint import Checkpoint
from metaq.store.disk import Disk
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.store.reads.pull import ReadStatus
from tests.store.support import (
    HOST,
    START_MS,
    answer,
    bodies_of,
    change_json,
    checkpoint,
    crash,
    log_file,
    open_store,
    overwrite,
    put,
    read_all,
    restart_machine,
    small_options,
)  # fmt: skip

COUNT = 60
BODIES = [b"%d:" % number + b"x" * (40 + number % 50) for number in range(COUNT)]
LOST = 20


def filled(root, *, checkpointed=0, **changes):
    """A store that was killed: COUNT messages in T:0, others between them, so many of them before a checkpoint."""
    store = open_store(root / "running", flush_disk_type="SYNC_FLUSH", **changes)
    places = []
    for number, body in enumerate(BODIES):
        places.append(put(store, "T", 0, body, tag="a", key=f"k{number}"))
        put(store, "U", number % 3, b"other %d" % number)
        if number + 1 == checkpointed:
            checkpoint(store)
    store.flusher.flush()
    return crash(store, root / "killed"), places


def flip(root, place, file_bytes=64 * 1024):
    """Flip one bit of the byte at a log offset."""
    path = log_file(root, place - place % file_bytes)
    data = path.read_bytes()[place % file_bytes]
    overwrite(path, place % file_bytes, bytes([data ^ 0x10]))


def quiet(root, **changes):
    """The store, without its threads: `drained` takes their steps."""
    return MessageStore(small_options(root, **changes), FakeClock(START_MS), HOST, "DefaultCluster", threads=False)


def drained(store, topic, queue_id):
    """Every body of a queue, as a consumer gets them that goes on behind a hole."""
    found, offset = [], store.reader.existing_queue(topic, queue_id).min_offset
    for _ in range(1000):
        pulled = answer(store.reader.pull(topic, queue_id, offset, 32))
        found += bodies_of(pulled.body)
        if pulled.status is ReadStatus.OFFSET_FOUND_NULL:
            store.reader.repairs.step()
        elif pulled.next_offset <= offset:
            return found
        offset = pulled.next_offset
    raise AssertionError("it goes on for ever")


FIELDS = {
    "size": 2, "magic": 5, "checksum": 9, "queue id": 14, "queue offset": 27, "log offset": 33, "store time": 59,
    "body length": 86, "body": 95, "topic": -1,
}  # fmt: skip


@pytest.mark.parametrize("checkpointed", [0, LOST - 5, LOST + 5])
@pytest.mark.parametrize("field", FIELDS)
def test_one_flipped_bit_costs_one_message(tmp_path, field, checkpointed, caplog):
    """Killed after 60 messages were synced, and a bit of the 21st is another one: the 20 before it and the 39 behind it are
    there, each with its queue offset, and an error names the place."""
    root, places = filled(tmp_path, checkpointed=checkpointed)
    lost = places[LOST]
    at = (
        FIELDS[field]
        if field != "topic"
        else lost.log_end - lost.log_offset - len(b"\0\x0bTAGS\1a\2KEYS\1k20\2CLUSTER\1DefaultCluster")
    )
    flip(root, lost.log_offset + at)
    before = log_file(root).read_bytes()
    with caplog.at_level(logging.INFO), quiet(root) as store:
        queue = store.reader.existing_queue("T", 0)
        assert queue.max_offset == COUNT
        found = drained(store, "T", 0)
        assert found in ([body for number, body in enumerate(BODIES) if number != LOST], BODIES)
        for queue_id in range(3):
            assert drained(store, "U", queue_id) == [b"other %d" % n for n in range(COUNT) if n % 3 == queue_id]
        assert put(store, "T", 0, b"next").queue_offset == COUNT
        if checkpointed <= LOST and found != BODIES:
            told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert any(str(log_file(root)) in text and f"log offset {lost.log_offset}" in text for text in told), told
            assert any("queue 0 of topic T" in text for text in told), told
    after = log_file(root).read_bytes()
    assert after[: places[-1].log_end] == before[: places[-1].log_end], "nothing of the log was zeroed"
    with open_store(root) as store:
        assert store.reader.existing_queue("T", 0).max_offset == COUNT + 1
        assert read_all(store, "U", 0)


def test_damage_in_several_places_and_across_the_end_of_a_log_file(tmp_path, caplog):
    """A page in the middle, the end of a log file with its blank record and the first record of the next: all is told."""
    store = open_store(tmp_path / "running")
    bodies = [b"%d:" % number + b"y" * 900 for number in range(200)]
    places = [put(store, "T", number % 2, body) for number, body in enumerate(bodies)]
    root = crash(store, tmp_path / "killed")
    border = 64 * 1024
    last = max(number for number, place in enumerate(places) if place.log_end <= border)
    overwrite(log_file(root), places[30].log_offset + 8, bytes(3000))
    overwrite(log_file(root), places[last].log_offset + 4, bytes(border - places[last].log_offset - 4))
    overwrite(log_file(root, border), 0, bytes(8))
    with quiet(root) as store:
        found = sorted(drained(store, "T", 0) + drained(store, "T", 1), key=lambda body: int(body.split(b":")[0]))
        assert found == [body for n, body in enumerate(bodies) if n not in {30, 31, 32, 33, last, last + 1}]
        assert [store.reader.queue("T", queue_id).max_offset for queue_id in (0, 1)] == [100, 100]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(f"log offset {places[30].log_offset}," in text for text in told)
    assert any(f"log offset {places[last].log_offset}," in text for text in told)


def test_the_newest_durable_record_is_damaged(tmp_path, caplog):
    """Nothing follows it, and the tails say that it was durable: its place and its queue offset are not used again."""
    store = open_store(tmp_path / "running")
    put(store, "T", 0, b"first")
    last = put(store, "T", 0, b"last")
    checkpoint(store)
    root = crash(store, tmp_path / "killed")
    flip(root, last.log_offset + 90)
    with quiet(root) as store:
        assert (store.log.end, store.reader.queue("T", 0).max_offset) == (last.log_end, 2)
        assert drained(store, "T", 0) == [b"first"]
        assert put(store, "T", 0, b"next").queue_offset == 2
    assert "queue 0 of topic T: 1 messages, of offsets 1 to 1, are damaged" in caplog.text


def test_a_start_can_be_made_to_refuse_damage(tmp_path):
    """File, byte and log offset are named, and nothing is touched."""
    root, places = filled(tmp_path)
    flip(root, places[LOST].log_offset + 95)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}
    with pytest.raises(StoreCorrupt, match=rf"a broken record at byte {places[LOST].log_offset} .*nothing was touched"):
        open_store(root, refuse_damaged_log=True)
    assert {path: path.read_bytes() for path in before} == before
    with open_store(root) as store:
        assert store.reader.queue("T", 0).max_offset == COUNT


@pytest.mark.parametrize("whole", [True, False])
def test_an_append_that_a_kill_has_cut_short_ends_the_log_also_with_its_units(tmp_path, whole, caplog):
    """With SYNC_FLUSH records are made ahead, and have their units, before they are written; the first size is written last.

    The kill came just in front of that, or in the middle of the bytes before it.
    """
    root, places = filled(tmp_path)
    first, last = places[-3], places[-1]
    overwrite(log_file(root), first.log_offset, bytes(4))
    if not whole:
        overwrite(log_file(root), last.log_offset + 30, bytes(last.log_end - last.log_offset))
    reader = StoreReader(root)
    assert sum(1 for _ in reader.records()) == 2 * (COUNT - 3)
    assert (reader.end, reader.damage) == (first.log_offset, [])
    with caplog.at_level(logging.WARNING), quiet(root) as store:
        assert store.log.end == first.log_offset
        assert drained(store, "T", 0) == BODIES[:-3]
        assert put(store, "T", 0, b"next").queue_offset == COUNT - 3
        assert drained(store, "T", 0) == [*BODIES[:-3], b"next"]
    assert "damage" not in caplog.text


def test_a_size_of_zero_in_front_of_more_than_an_append_is_damage(tmp_path, monkeypatch):
    """Or where anything else of the record is another one, too."""
    monkeypatch.setattr("metaq.store.log.log_bytes.AHEAD_BYTES_MAX", 4096)
    root, places = filled(tmp_path)
    overwrite(log_file(root), places[LOST].log_offset, bytes(4))
    overwrite(log_file(root), places[-2].log_offset, bytes(4))
    flip(root, places[-2].log_offset + 95)  # its body
    lost = {BODIES[LOST], BODIES[-2]}
    with quiet(root) as store:
        assert drained(store, "T", 0) == [body for body in BODIES if body not in lost]
        assert put(store, "T", 0, b"next").queue_offset == COUNT


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_flipped_bit_is_no_power_cut(tmp_path, flush):
    """The machine has restarted: records that are not torn as a power cut tears them were promised, and stay."""
    root, places = filled(tmp_path)
    restart_machine(root)
    flip(root, places[LOST].log_offset + 5)
    with quiet(root, flush_disk_type=flush) as store:
        assert drained(store, "T", 0) == [body for number, body in enumerate(BODIES) if number != LOST]


@pytest.mark.parametrize("into", range(5))
def test_a_sector_that_a_power_cut_took_may_end_in_the_next_record(tmp_path, into):
    """The record behind it begins in the last bytes of the lost sector, where its size has zeros anyway."""
    store = open_store(tmp_path / "running")
    first = put(store, "T", 0, b"first")
    overhead = first.log_end - first.log_offset - len(b"first")
    torn = put(store, "T", 0, b"t" * (1024 - into - first.log_end - overhead))
    behind = put(store, "T", 0, b"behind")
    assert (behind.log_offset, behind.log_offset + into) == (torn.log_end, 1024)
    root = crash(store, tmp_path / "killed")
    restart_machine(root)
    overwrite(log_file(root), 512, bytes(512))
    with quiet(root) as store:
        assert drained(store, "T", 0) == [b"first"]
        assert (store.reader.queue("T", 0).max_offset, store.log.end) == (1, first.log_end)


@pytest.mark.parametrize("again", [False, True])
def test_what_a_power_cut_makes_the_log_lose_is_kept_aside(tmp_path, again, caplog):
    """A sector never reached the disk: what follows was not promised, and is in a folder that can be read."""
    root, places = filled(tmp_path)
    restart_machine(root)
    lost = places[LOST]
    sector = lost.log_offset - lost.log_offset % 512 + 512
    overwrite(log_file(root), sector, bytes(512))
    end = max(place.log_end for place in places if place.log_end <= sector)
    if again:  # a start that was killed after it had kept them
        (root / "cut" / f"{end:020d}").mkdir(parents=True)
    with quiet(root) as store:
        kept = len(drained(store, "T", 0))
        assert put(store, "T", 0, b"next").queue_offset == kept < COUNT
        cut_at = store.recovered.log_end
    (folder, *_) = sorted((root / "cut").iterdir(), reverse=True)
    reader = StoreReader(folder)
    bodies = [message.body for message in reader.records()]
    assert BODIES[-20:] == [body for body in bodies if body in BODIES][-20:]
    assert [int(path.name) for path in folder.iterdir()] == [cut_at]
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR and str(folder) in r.getMessage()]
    assert f"{len(bodies)} whole messages" in told
    assert reader.damage or bodies


def test_a_torn_end_that_might_be_a_message_is_kept_aside(tmp_path):
    """The last record of all, not known to be durable, has another bit: it is cut off as a torn one, and kept."""
    root, places = filled(tmp_path)
    store_end = max(places[-1].log_end, 0)
    data = log_file(root).read_bytes()
    last = data.rindex(b"other 59")
    overwrite(log_file(root), last, b"0ther")
    with quiet(root) as store:
        assert store.log.end == store_end
    (folder,) = (root / "cut").iterdir()
    (path,) = folder.iterdir()
    assert b"0ther 59" in path.read_bytes()
    assert log_file(root).read_bytes()[store_end:].strip(b"\0") == b""


def test_a_dump_steps_over_damage_and_says_where_it_is(tmp_path):
    """Of a folder that nobody has opened since."""
    root, places = filled(tmp_path)
    flip(root, places[LOST].log_offset + 95)
    reader = StoreReader(root)
    found = [message.body for message in reader.records(topics=["T"])]
    assert found == [body for number, body in enumerate(BODIES) if number != LOST]
    (damage,) = reader.damage
    assert (damage.path, damage.place, damage.size) == (
        str(log_file(root)), places[LOST].log_offset, places[LOST].log_end - places[LOST].log_offset,
    )  # fmt: skip


def change_tails(root, **changes):
    path = root / "config" / "metaqTails.json"
    change_json(path, **changes)
    path.with_name(path.name + ".bak").unlink(missing_ok=True)


@pytest.mark.parametrize("counts", [{}, {"T": {"0": 5}}, {"T": {"0": COUNT + 9}}, {"T": {"0": COUNT}, "U": {"0": 0}}])
def test_tails_that_count_wrong_hide_no_message(tmp_path, counts, caplog):
    """After a stop in order, where nothing of the log is read: an older version, or what somebody has written there."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, *BODIES)
        put(store, "U", 0, b"u")
    change_tails(tmp_path, queues=counts)
    with open_store(tmp_path) as store:
        assert read_all(store, "T", 0) == BODIES
        assert read_all(store, "U", 0) == [b"u"]
        assert put(store, "T", 0, b"next").queue_offset == COUNT
    assert "metaqTails.json" in caplog.text or "is rebuilt" in caplog.text


def test_tails_that_say_too_much_of_the_index_hide_no_key(tmp_path):
    """They say that an index without its newest entries holds all."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"a", key="k1")
        checkpoint(store)
        before = store.index.mark(store.log.end)
        put(store, "T", 0, b"b", key="k2")
    mark = msgspec.to_builtins(before)
    change_tails(
        tmp_path,
        index={**mark, "log": msgspec.json.decode((tmp_path / "config/metaqTails.json").read_bytes())["log_end"]},
    )
    with open_store(tmp_path) as store:
        assert [len(store.reader.query("T", key, 9, 0, 1 << 60)) for key in ("k1", "k2")] == [1, 1]


def test_a_checkpoint_ahead_of_the_log_is_not_believed(tmp_path):
    """Without tails it alone says where reading begins; a queue that lost its units before that is found all the same."""
    with open_store(tmp_path) as store:
        for number in range(100):
            put(store, "T" if number < 20 else "U", 0, b"%d" % number * 1000)
            store.clock.advance(1)
    for name in ("metaqTails.json", "metaqTails.json.bak"):
        (tmp_path / "config" / name).unlink()
    Checkpoint(1 << 60, 1 << 60, 1 << 60).save(tmp_path / "checkpoint", Disk())
    shutil.rmtree(tmp_path / "consumequeue/T")
    with open_store(tmp_path) as store:
        assert len(read_all(store, "T", 0)) == 20


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name", ["checkpoint", "config/metaqTails.json", "config/metaqTails.json.bak", "config/metaqTails.json.tmp"]
)
def test_a_folder_in_place_of_a_hint_makes_way(tmp_path, name, clean):
    """It is renamed, with what is in it; the store opens, today and tomorrow."""
    store = open_store(tmp_path / "a")
    put(store, "T", 0, b"x")
    root = tmp_path / "a"
    if clean:
        store.close()
    else:
        root = crash(store, tmp_path / "b")
    path = root / name
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "notes").write_text("mine")
    for _ in range(2):
        with open_store(root) as store:
            assert read_all(store, "T", 0) == [b"x"]
    assert (path.with_name(path.name + ".folder-1") / "notes").read_text() == "mine"
