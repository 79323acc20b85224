"""Logs read in pieces: every record once, whatever the cuts, the writers, the crashes and the damage."""

from __future__ import annotations

import errno
import itertools
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.clock import FakeClock
from metaq.errors import StoreCorrupt
from metaq.model import StoredMessage
from metaq.store.log import log_bytes
from metaq.store.offline import log_pieces
from metaq.store.offline.damage import Damage
from metaq.store.offline.log_pieces import (
    Borders,
    LogPiece,
    Run,
    find_end,
    find_log_files,
    gone,
    hidden_below,
    read_piece,
)
from metaq.wire import hot
from metaq.wire.record import encode_record
from tests.effort import repeats
from tests.store.support import BORN, HOST, START_MS, crash, log_file, open_store, overwrite, put

COUNT = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stopped broker's, with several log files, records of 100 bytes and some of 20 KB."""
    root = tmp_path_factory.mktemp("log")
    with open_store(root) as store:
        for i in range(COUNT):
            put(store, "TU"[i % 2], i % 3, b"%d" % i * (5000 if i % 40 == 7 else 10))
    return root


def borders_of(root):
    return Borders(root / "consumequeue")


def read(pieces):
    """(bodies in order, damage)."""
    bodies, damage = [], []
    for piece in pieces:
        for found in read_piece(piece):
            if isinstance(found, Damage):
                damage.append(found)
            else:
                bodies += [bytes(message.body) for message in messages(found)]
    return bodies, damage


def messages(run: Run):
    found = hot.decode_records(run.data, 0, len(run.data), StoredMessage, "", 0, 0)
    assert (found[0].log_offset, len(found)) == (run.log_offset, run.rows)
    return found


def whole(root, piece_bytes=1 << 30, borders=None):
    files = find_log_files(root / "commitlog")
    known = borders or borders_of(root)
    pieces, missing = log_pieces.pieces_of(files, find_end(files, known).place, piece_bytes, known)
    bodies, damage = read(pieces)
    return bodies, missing + damage


BODIES = [b"%d" % i * (5000 if i % 40 == 7 else 10) for i in range(COUNT)]


@pytest.mark.parametrize("piece_bytes", [1 << 30, 10_000, 3_000, 200])
def test_every_record_is_in_one_piece(folder, piece_bytes):
    """Pieces of any size, many of them smaller than a record."""
    assert whole(folder, piece_bytes) == (BODIES, [])


@settings(max_examples=repeats(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_record_is_read_once_whatever_the_cuts_and_the_borders_known(folder, data):
    """Cut anywhere, walked to from the file's begin or from any record before the cut; in blocks of any size."""
    files = find_log_files(folder / "commitlog")
    end = find_end(files, borders_of(folder)).place
    cuts = sorted(data.draw(st.lists(st.integers(0, end), max_size=12)))
    block = data.draw(st.sampled_from([150, 1000, 1 << 22]))
    pieces = []
    for file in files:
        stop = min(file.end, end)
        marks = [file.start, *(cut for cut in cuts if file.start < cut < stop), stop]
        for begin, finish in itertools.pairwise(marks):
            near = data.draw(st.booleans())
            border = borders_of(folder).before(begin, file.start) if near else file.start
            pieces.append(LogPiece(file, begin, finish, border))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_bytes, "BLOCK_BYTES", block)
        patched.setattr(log_pieces, "BLOCK_BYTES", block)
        patched.setattr(log_bytes, "ROWS_MAX", data.draw(st.sampled_from([1, 7, 10_000])))
        assert read(pieces) == (BODIES, [])


def test_borders_are_records_near_the_place(folder):
    """What a consume queue knows, so that a walk is short; without one, the file's begin."""
    files = find_log_files(folder / "commitlog")
    known = borders_of(folder)
    for place in range(files[1].start, files[1].end, 7001):
        border = known.before(place, files[1].start)
        assert files[1].start <= border <= place
        (first, *_) = [found for found in read_piece(LogPiece(files[1], border, files[1].end, border)) if found]
        assert isinstance(first, Run)
        assert first.log_offset == border
    assert known.before(files[2].start + 30_000, files[2].start) > files[2].start
    assert Borders(folder / "nowhere").before(files[1].end, files[1].start) == files[1].start


def test_a_border_that_is_none_is_not_trusted(folder):
    """A consume queue may be older than the log, or damaged: then the walk begins where the file does."""
    file = find_log_files(folder / "commitlog")[1]
    right = read([LogPiece(file, file.start + 30_000, file.end, file.start)])
    assert read([LogPiece(file, file.start + 30_000, file.end, file.start + 29_123)]) == right


def test_bytes_that_look_like_a_record_inside_a_body_are_none(tmp_path):
    """Also with the right log offset and checksum: whoever sends can guess where his message will lie."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"first")
        start = store.log.end
        head = 88  # of a record with hosts of IPv4, up to its body
        forged = encode_record(
            topic=b"T", queue_id=0, queue_offset=1, log_offset=start + head, flag=0, sys_flag=0, born_ms=1, born_host=BORN,
            store_ms=store.clock.now_ms(), store_host=HOST, reconsume_times=0, prepared_offset=0, body=b"forged", properties=b"",
        )  # fmt: skip
        put(store, "T", 0, forged)
        put(store, "T", 0, b"last")
    wanted = ([b"first", forged, b"last"], [])
    for piece_bytes in (1 << 20, 50, 91, 7):
        assert whole(tmp_path, piece_bytes) == wanted
        assert whole(tmp_path, piece_bytes, Borders(tmp_path / "nowhere")) == wanted


def test_a_log_that_is_written_is_read_up_to_its_newest_record(tmp_path):
    """No lock, no change; what comes later is in the next read."""
    with open_store(tmp_path) as store:
        for i in range(200):
            put(store, "T", 0, b"%d" % i * 100)
            if i % 20 == 19:
                files = find_log_files(tmp_path / "commitlog")
                assert find_end(files, borders_of(tmp_path)) == log_pieces.LogEnd(store.log.end)
                assert whole(tmp_path, 5000)[0] == [b"%d" % j * 100 for j in range(i + 1)]


def test_an_empty_log_has_no_pieces(tmp_path):
    """A store that was made and never written to, or has files of zeros."""
    with open_store(tmp_path):
        assert whole(tmp_path) == ([], [])
    assert find_end([], borders_of(tmp_path)).place == 0


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize("keep", [0, 3, 4, 8, 50, 90, 100, 150])
def test_a_record_that_is_half_there_ends_the_log(tmp_path, keep, with_queues):
    """A writer was killed, or its page did not reach the disk: no error, everything before it is read."""
    store = open_store(tmp_path / "a")
    for i in range(30):
        put(store, "T", 0, b"%d" % i * 20)
    end = store.log.end
    put(store, "T", 0, b"the newest one" * 10)
    root = crash(store, tmp_path / "b")
    rest = log_file(root).stat().st_size - end - keep
    overwrite(log_file(root), end + keep, bytes(rest))
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
    assert whole(root) == ([b"%d" % i * 20 for i in range(30)], [])


def test_a_page_of_zeros_in_the_middle_is_damage(tmp_path):
    """Of a record that was acknowledged and can be consumed."""
    with open_store(tmp_path) as store:
        places = [put(store, "T", 0, b"%d" % i * 100).log_offset for i in range(100)]
    begin = places[40] + 10
    overwrite(log_file(tmp_path), begin, bytes(4096))
    bodies, damage = whole(tmp_path)
    lost = [i for i in range(100) if b"%d" % i * 100 not in bodies]
    assert 40 in lost
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert damage[0].path == str(log_file(tmp_path))
    assert damage[0].place == places[40]
    assert sum(one.size for one in damage) == places[lost[-1] + 1] - places[40]


@pytest.mark.parametrize("piece_bytes", [1 << 30, 3000, 500])
def test_damage_is_told_once_with_its_place_and_reading_goes_on(tmp_path, piece_bytes):
    """A body that was changed costs its record, a head the bytes up to the next; however the log is cut."""
    with open_store(tmp_path) as store:
        places = [put(store, "T", 0, b"%04d" % i * 50).log_offset for i in range(200)]
    overwrite(log_file(tmp_path), places[20] + 100, b"X")
    overwrite(log_file(tmp_path), places[50] + 4, b"????")
    bodies, damage = whole(tmp_path, piece_bytes)
    assert bodies == [b"%04d" % i * 50 for i in range(200) if i not in {20, 50}]
    size = places[21] - places[20]
    assert [(one.place, one.size) for one in damage] == [(places[20], size), (places[50], size)]
    assert [one.why for one in damage] == ["a record's body does not fit its checksum", "a broken record"]
    assert f"{log_file(tmp_path)} is damaged at byte {places[20]}" in str(damage[0])


def test_a_record_that_says_that_it_is_large_takes_no_memory(tmp_path, monkeypatch):
    """Only one whose parts add up is read in one piece; that one is."""
    with open_store(tmp_path, mapped_file_size_commit_log=16 << 20, max_message_size=8_000_000) as store:
        put(store, "T", 0, b"x" * 7_000_000)
        bad = put(store, "T", 0, b"small").log_offset
        put(store, "T", 0, b"last")
    overwrite(log_file(tmp_path), bad, (8_000_000).to_bytes(4, "big"))
    most = []
    read_bytes = log_bytes.LogBytes.read
    monkeypatch.setattr(
        log_bytes.LogBytes, "read", lambda self, at, size: (most.append(size), read_bytes(self, at, size))[1]
    )
    bodies, damage = whole(tmp_path)
    assert bodies == [b"x" * 7_000_000, b"last"]
    assert [one.place for one in damage] == [bad]
    assert max(most) < 7_100_000


def test_the_newest_record_that_is_damaged_ends_the_log_only_if_it_is_the_last(tmp_path):
    """In the file that is written to, a broken record with records behind it is damage."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"one")
        bad = put(store, "T", 0, b"two" * 30).log_offset
        put(store, "T", 0, b"three")
    overwrite(log_file(tmp_path), bad + 100, b"X")
    assert whole(tmp_path)[0] == [b"one", b"three"]
    assert [one.place for one in whole(tmp_path)[1]] == [bad]
    shutil.rmtree(tmp_path / "consumequeue")
    assert [one.place for one in whole(tmp_path)[1]] == [bad]


def test_old_records_behind_the_end_stay_dead(tmp_path):
    """RocketMQ leaves them where it cuts off a torn tail; with consume queues, and without, by their times."""
    store = open_store(tmp_path / "a")
    store.clock.advance(100)
    put(store, "T", 0, b"new")
    torn = store.log.end
    root = crash(store, tmp_path / "b")
    old = open_store(tmp_path / "old")
    put(old, "T", 0, b"x" * (torn + 300 - 92))
    stale = put(old, "T", 0, b"stale")
    old.close()
    overwrite(log_file(root), torn, b"\0\0\1\0" + b"torn" * 20)
    overwrite(
        log_file(root), stale.log_offset, log_file(tmp_path / "old").read_bytes()[stale.log_offset : stale.log_end]
    )
    assert whole(root) == ([b"new"], [])
    shutil.rmtree(root / "consumequeue")
    assert whole(root) == ([b"new"], [])
    assert "older records" in find_end(find_log_files(root / "commitlog"), borders_of(root)).why


@pytest.mark.parametrize("with_queues", [True, False])
def test_old_records_to_which_newer_ones_have_grown_up_stay_dead(tmp_path, with_queues):
    """Exactly: then only their times tell them."""
    store = open_store(tmp_path / "a")
    store.clock.advance(100)
    end = put(store, "T", 0, b"new").log_end
    root = crash(store, tmp_path / "b")
    old = open_store(tmp_path / "old")
    put(old, "T", 0, b"x" * (end - 92))
    stale = put(old, "T", 0, b"stale")
    old.close()
    overwrite(log_file(root), end, log_file(tmp_path / "old").read_bytes()[end : stale.log_end])
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
    assert whole(root) == ([b"new"], [])
    assert "earlier time" in find_end(find_log_files(root / "commitlog"), borders_of(root)).why


def test_messages_stored_after_a_clock_was_set_back_are_read(tmp_path):
    """A consume queue points at them."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"first")
    with open_store(tmp_path, FakeClock(START_MS - 60_000)) as store:
        for _ in range(3):
            put(store, "T", 0, b"later")
    assert whole(tmp_path) == ([b"first", b"later", b"later", b"later"], [])


def test_records_that_were_not_published_yet_are_not_read(tmp_path):
    """The size of the first is written last: until then nobody may take those behind it for records."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"one")
        first = put(store, "T", 0, b"two").log_offset
        put(store, "T", 0, b"three")
    overwrite(log_file(tmp_path), first, bytes(4))
    shutil.rmtree(tmp_path / "consumequeue")
    assert whole(tmp_path) == ([b"one"], [])
    assert "about to add" in find_end(find_log_files(tmp_path / "commitlog"), borders_of(tmp_path)).why


def test_a_file_that_is_missing_between_others_is_damage(tmp_path):
    """Of a file that retention took, oldest first, nothing is said."""
    with open_store(tmp_path) as store:
        for i in range(8):
            put(store, "T", 0, b"%d" % i * 30_000)
    files = find_log_files(tmp_path / "commitlog")
    log_file(tmp_path).unlink()
    bodies, damage = whole(tmp_path)
    assert (bodies, damage) == ([b"%d" % i * 30_000 for i in range(2, 8)], [])
    log_file(tmp_path, files[2].start).unlink()
    bodies, damage = whole(tmp_path)
    assert bodies == [b"%d" % i * 30_000 for i in (2, 3, 6, 7)]
    assert [one.path for one in damage] == [files[3].path]
    assert "65536 bytes are missing" in damage[0].why


def test_a_file_that_goes_while_it_is_read_is_told_apart(tmp_path, caplog):
    """Retention takes the oldest; if another is missing, somebody else took it."""
    with open_store(tmp_path) as store:
        for i in range(8):
            put(store, "T", 0, b"%d" % i * 30_000)
    files = find_log_files(tmp_path / "commitlog")
    pieces = [LogPiece(file, file.start, file.end, file.start) for file in files]
    log_file(tmp_path).unlink()
    with pytest.raises(FileNotFoundError) as fault:
        list(read_piece(pieces[0]))
    gone(pieces[0], fault.value)
    assert "was deleted while the read ran" in caplog.text
    log_file(tmp_path, files[2].start).unlink()
    with pytest.raises(StoreCorrupt, match="is not any more"):
        gone(pieces[2], fault.value)


def test_a_disk_that_fails_is_an_error_that_names_the_file(folder, monkeypatch):
    """And the place."""
    file = find_log_files(folder / "commitlog")[0]

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match=f"Input/output error, at byte 0: '{file.path}'"):
        list(read_piece(LogPiece(file, 0, file.end, 0)))


def test_what_topics_have_let_go_of_is_known(tmp_path, caplog):
    """Floors, and topics that were deleted and made again; a file that cannot be read is said and passed over."""
    config = tmp_path / "config"
    config.mkdir()
    assert hidden_below(tmp_path, 700) == {}
    (config / "metaqFloors.json").write_text('{"floors": {"T": 700, "U": 5, "V": 701}}')
    (config / "metaqDeleted.json").write_text('{"deletedTopics": {"U": 90}}')
    assert hidden_below(tmp_path, 700) == {"T": 700, "U": 90}
    (config / "metaqFloors.json").write_text("{")
    assert hidden_below(tmp_path, 700) == {"U": 90}
    assert "messages that are gone may be read" in caplog.text


@settings(max_examples=repeats(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=40), st.integers(0, 60_000))
def test_whatever_bytes_are_damaged_no_other_record_is_lost_or_doubled(folder, tmp_path_factory, junk, at):
    """What is read are records of the log in their order, and pieces agree about what is damaged."""
    root = tmp_path_factory.mktemp("hurt")
    shutil.copytree(folder / "commitlog", root / "commitlog")
    overwrite(log_file(root), at, junk)
    bodies, damage = whole(root)
    assert [body for body in bodies if body not in BODIES] == []
    kept = [BODIES.index(body) for body in bodies]
    assert kept == sorted(kept)
    assert len(BODIES) - len(bodies) <= 1 + 2 * len(damage) or damage[0].size > 300
    for piece_bytes in (4000, 700):
        assert whole(root, piece_bytes) == (bodies, damage)
