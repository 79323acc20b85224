"""Long pulls in pieces: all pieces together are what one read would give, whatever happens to the files meanwhile."""

from __future__ import annotations

import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.errors import StoreError
from metaq.store.reads import long_body
from metaq.store.reads.long_body import PIECE_BYTES, ColdBody, LongBody, MappedBody
from metaq.store.reads.pull import ReadStatus
from metaq.testing import FaultyDisk
from metaq.wire import hot
from tests.effort import repeats
from tests.store.support import answer, bodies_of, checkpoint, message, open_store, put

BIG_FILES = {"mapped_file_size_commit_log": 4 << 20, "mapped_file_size_consume_queue": 20 * 50_000, "max_index_num": 10}
MIB = 1 << 20
TAGS = ("a", "b", "c")


@settings(max_examples=repeats(25))
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([1, 900, 3000, 40_000, 300_000])), min_size=20, max_size=60
    ),
    repeat=st.integers(1, 4),
    wanted=st.sampled_from([None, frozenset("a"), frozenset("bc")]),
    bytes_max=st.integers(300_000, 8 * MIB),
    hot_bytes=st.sampled_from([0, 8 * MIB]),
    start=st.integers(0, 10),
)
def test_pieces_are_what_one_read_gives(
    sizes: list[tuple[int, int]], repeat: int, wanted: frozenset[str] | None, bytes_max: int, hot_bytes: int, start: int
) -> None:
    """Recent and old, one queue among others, with and without tags: same bytes, count, next offset; the length told before."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(pathlib.Path(folder), **BIG_FILES, hot_bytes=hot_bytes) as store,
    ):
        sent: list[tuple[str, bytes]] = []
        for number, (which, size) in enumerate(sizes * repeat):
            tag = TAGS[which]
            queue_id = number % 2
            store.writer.put([message("T", queue_id, b"%d" % number * max(1, size // 4), tag)])
            if queue_id == 0:
                sent.append((tag, b"%d" % number * max(1, size // 4)))
        takes = None if wanted is None else hot.Filter(hot.java_hash(tag.encode()) for tag in wanted)
        found = list[bytes]()
        offset = start
        while True:
            pulled = answer(store.reader.pull("T", 0, offset, 65_535, bytes_max, takes, in_pieces=True))
            body = bytes(pulled.long or pulled.body)
            assert len(body) == len(pulled.long or pulled.body)
            records = bodies_of(body)
            assert len(records) == pulled.count
            if pulled.long:
                assert len(body) <= bytes_max or len(records) == 1
                assert pulled.long.next() == b""
            found += records
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset
        assert found == [body for tag, body in sent[start:] if wanted is None or tag in wanted]


@pytest.mark.parametrize("hot_bytes", [0, 64 * MIB], ids=["old", "recent"])
def test_pieces_are_small_and_made_one_by_one(tmp_path: pathlib.Path, hot_bytes: int) -> None:
    """A piece is at most 128 KiB, or one message."""
    with open_store(tmp_path, **BIG_FILES, hot_bytes=hot_bytes) as store:
        for _ in range(200):
            put(store, "T", 0, b"x" * 9000)
            put(store, "T", 1, b"y" * 9000)
        put(store, "T", 0, b"z" * 200_000)
        pulled = answer(store.reader.pull("T", 0, 0, 65_535, 8 * MIB, in_pieces=True))
        assert isinstance(pulled.long, LongBody)
        assert pulled.long.cold is (hot_bytes == 0)
        sizes = [len(piece) for piece in pulled.long]
        assert sum(sizes) == len(pulled.long) > MIB
        assert max(sizes[:-1]) <= PIECE_BYTES
        assert len(sizes) > 10


@pytest.mark.parametrize("hot_bytes", [0, 64 * MIB], ids=["old", "recent"])
def test_pieces_are_readable_after_their_files_are_deleted(tmp_path: pathlib.Path, hot_bytes: int) -> None:
    """Retention takes log and queue while a slow peer reads: it gets the rest all the same."""
    with open_store(tmp_path, **BIG_FILES, hot_bytes=hot_bytes, file_reserved_time=0) as store:
        for number in range(300):
            put(store, "T", 0, b"%d" % number * 1000)
            put(store, "T", 1, b"y" * 1000)
        pulled = answer(store.reader.pull("T", 0, 0, 65_535, 8 * MIB, in_pieces=True))
        assert pulled.status is ReadStatus.FOUND
        first = pulled.long.next()
        while store.log.min == 0:
            put(store, "U", 0, b"u" * 100_000)
            store.keeper.retain(store.clock.now_ms(), at_once=True)
        assert store.reader.pull("T", 0, 0, 32).status is not ReadStatus.FOUND
        bodies = bodies_of(b"".join([first, *pulled.long]))
        assert bodies == [b"%d" % number * 1000 for number in range(pulled.count)]


def test_old_pieces_that_are_in_memory_are_had_at_once(tmp_path: pathlib.Path) -> None:
    """`next_cached` waits for no disk: it gives what `next` would, or None and stays where it was. They may take turns."""
    disk = FaultyDisk()
    with open_store(tmp_path, disk=disk, **BIG_FILES, hot_bytes=0) as store:
        for number in range(400):
            put(store, "T", 0, b"%d" % number * 1000)
            put(store, "T", 1, b"y" * 1000)
        checkpoint(store)
        disk.cached = False
        pulled = store.reader.pull("T", 0, 0, 65_535, 8 * MIB, in_pieces=True)
        assert pulled.status is ReadStatus.COLD
        assert pulled.cached() is None
        disk.cached = True
        pulled = pulled.cached()
        assert isinstance(pulled.long, ColdBody)
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < len(pulled.long):
            disk.cached = len(pieces) % 3 != 0
            piece = pulled.long.next_cached()
            assert (piece is not None) is disk.cached
            pieces.append(bytes(piece if piece is not None else pulled.long.next()))
        assert len(pieces) > 6
        assert bodies_of(b"".join(pieces)) == [b"%d" % number * 1000 for number in range(pulled.count)]
        assert pulled.long.next_cached() == b""


def test_bytes_that_are_not_where_they_were_are_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never fewer bytes than were told, and never for ever."""
    with open_store(tmp_path, **BIG_FILES) as store:
        for _ in range(200):
            put(store, "T", 0, b"x" * 9000)
            put(store, "T", 1, b"y" * 9000)
        pulled = answer(store.reader.pull("T", 0, 0, 65_535, 8 * MIB, in_pieces=True))
        assert isinstance(pulled.long, MappedBody)
        pulled.long.next()
        pulled.long._log_stop = 0
        with pytest.raises(StoreError, match="not where they were"):
            list(pulled.long)


def test_usual_pull_of_a_foreign_client_is_no_long_one(tmp_path: pathlib.Path) -> None:
    """256 KiB come as before, in one."""
    with open_store(tmp_path, **BIG_FILES) as store:
        for _ in range(200):
            put(store, "T", 0, b"x" * 9000)
            put(store, "T", 1, b"y" * 9000)
        assert isinstance(store.reader.pull("T", 0, 0, 32, None, in_pieces=True).body, bytes)
        assert isinstance(store.reader.pull("T", 0, 0, 32, long_body.LONG_BYTES, in_pieces=True).body, bytes)
