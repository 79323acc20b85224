"""Repeated unique ids are found, and nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.archive.dedupe import Ids, IdWindow, ids_of, key_ids_of

A, B, C = ("7F000001" + letter * 24 for letter in "ABC")


def ids(*messages: tuple[str, int]) -> Ids:
    """Ids of (unique id, store time in seconds), at queue offsets 0, 1, 2, ..."""
    names = pa.array([name for name, _ in messages], pa.string())
    return ids_of(names, [at * 1000 for _, at in messages], range(len(messages)))


def add(window: IdWindow, name: str, batch: Ids) -> None:
    """As the archive does it, but for the file."""
    window.add(name, window.ordered(batch).copy())


def test_the_first_copy_stays():
    """Within a batch the copy stored first is kept, wherever it stands."""
    assert IdWindow(60).repeats(ids((A, 5), (B, 5), (A, 3), (A, 9))).tolist() == [0, 3]


def test_a_copy_of_an_archived_message_is_found_within_the_window():
    """The window counts store time, between the two copies."""
    window = IdWindow(60)
    add(window, "first", ids((A, 100), (B, 100)))
    assert window.repeats(ids((C, 130), (A, 160), (B, 161))).tolist() == [1]


def test_old_batches_are_forgotten_and_named():
    """What cannot match any more is dropped, and its file may go."""
    window = IdWindow(60)
    add(window, "old", ids((A, 100)))
    add(window, "new", ids((B, 150)))
    assert window.expire(170_000) == ["old"]
    assert window.repeats(ids((A, 155), (B, 155))).tolist() == [1]


def test_a_window_of_many_batches_finds_each_of_them_while_they_come_and_go():
    """Also when it has grown and shrunk again, and in batches larger than what is looked at in one piece."""

    def counted(begin: int, count: int, at_ms: int) -> Ids:
        low = np.arange(begin, begin + count, dtype=np.uint64)
        return Ids(np.full(count, 7, np.uint64), low, np.full(count, at_ms), np.arange(count))

    window, each = IdWindow(60), 40_000
    for number in range(6):
        fresh = counted(number * each, each, number * 20_000)
        assert window.repeats(fresh).tolist() == []
        add(window, str(number), fresh)
        window.expire(number * 20_000)
        first = max(0, number - 3)  # whose time is within sixty seconds
        again = counted(0, 7 * each, number * 20_000)
        assert window.repeats(again).tolist() == list(range(first * each, (number + 1) * each))
    assert window.expire(10**9) == ["2", "3", "4", "5"]
    assert window.repeats(again).tolist() == []


def test_ids_that_are_not_hex_count_too():
    """Any text may be a unique id; lower-case hex is the same number as upper-case."""
    batch = ids(("order-1", 1), ("order-1", 2), ("order-2", 3), (A, 4), (A.lower(), 5), ("Z" * 32, 6), ("Z" * 32, 7))
    assert IdWindow(60).repeats(batch).tolist() == [1, 4, 6]


def test_ids_survive_the_way_through_a_file(tmp_path):
    """What a restart loads finds the same repeats."""
    saved = IdWindow(60).ordered(ids((A, 100), (B, 101), (C, 102)))
    saved.save(tmp_path / "x.arrow")
    window = IdWindow(60)
    window.restore("batch", Ids.load(tmp_path / "x.arrow"))
    assert window.repeats(ids((B, 103), ("other", 103), (A, 103))).tolist() == [0, 2]
    Ids.join([]).save(tmp_path / "empty.arrow")
    window.restore("empty", Ids.load(tmp_path / "empty.arrow"))
    assert window.repeats(ids((C, 103))).tolist() == [0]


def test_equal_keys_of_different_ids_are_not_repeats():
    """The mixed key only finds candidates: ids that collide in it are told apart."""
    mix = np.uint64(0x9E3779B97F4A7C15)
    high = np.array([0, 1], np.uint64)
    low = np.array([5, 5 ^ int(mix)], np.uint64)
    batch = Ids(high, low, np.zeros(2, np.int64), np.arange(2))
    assert batch.keys[0] == batch.keys[1]
    window = IdWindow(60)
    assert window.repeats(batch).tolist() == []
    add(window, "first", batch.take(np.array([0])))
    assert window.repeats(batch).tolist() == [0]


@given(
    st.lists(st.lists(st.tuples(st.sampled_from([A, B, C, "x", "yy"]), st.integers(0, 300)), max_size=12), max_size=5),
    st.data(),
)
def test_it_finds_what_a_simple_search_finds(batches, data):
    """Against the obvious quadratic search, over several batches."""
    window, archived = IdWindow(60), []
    for number, messages in enumerate(batches):
        batch = ids(*messages) if messages else Ids.join([])
        expected, fresh = [], []
        for row in sorted(range(len(messages)), key=lambda row: (messages[row][1], row)):
            name, at = messages[row]
            if any(name == other and abs(at - then) <= 60 for other, then in archived + fresh):
                expected.append(row)
            else:
                fresh.append((name, at))
        assert window.repeats(batch).tolist() == sorted(expected)
        cut = data.draw(st.integers(0, len(batch)))
        first, second = batch.take(np.arange(cut)), batch.take(np.arange(cut, len(batch)))
        assert window.repeats(first, second).tolist() == sorted(expected)  # The same, in whatever parts it comes.
        archived += fresh
        kept = batch.without(np.array(expected, int))
        if data.draw(st.booleans()):
            add(window, str(number), kept)
        else:
            window.restore(str(number), kept.in_order())


def test_keys_make_an_id_and_messages_without_one_have_none():
    """All keys together, as they are spelled; messages without a key are no copies of each other."""
    keys = pa.array(
        [["a"], [], ["a", "b"], ["b"], ["A" * 32], ["a", "b"], ["a" * 32], [""], ["a"]], pa.list_(pa.string())
    )
    found = key_ids_of(keys, [at * 1000 for at in range(9)], range(9))
    assert found.queue_offset.tolist() == [0, 2, 3, 4, 5, 6, 8]
    assert found.store_ms.tolist() == [0, 2000, 3000, 4000, 5000, 6000, 8000]
    assert found.queue_offset[IdWindow(60).repeats(found)].tolist() == [5, 8]
    none = key_ids_of(pa.array([[], []], pa.list_(pa.string())), [1, 2], [3, 4])
    assert len(none) == len(IdWindow(60).repeats(none)) == 0


def test_tasks_sort_their_ids_and_what_is_found_stays_the_same():
    """Rows are told by their place in what was given, and kept ids are in the order of their keys."""
    one, other = ids((A, 5), (B, 5), (A, 3)).in_order(), ids((C, 4), (A, 9), (B, 2)).in_order()
    window = IdWindow(60)
    joined = window.join([one, other])
    gone = window.repeats(joined)
    found = sorted((int(joined.low[row]), int(joined.store_ms[row])) for row in gone)
    (a, b) = (int(ids((text, 0)).low[0]) for text in (A, B))
    assert found == sorted([(a, 5_000), (a, 9_000), (b, 5_000)])
    kept = window.ordered(joined.without(gone))
    assert kept.keys.tolist() == sorted(kept.keys.tolist())
    assert len(kept) == 3
