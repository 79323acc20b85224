"""Folders below a date's: which message goes where."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.arrow import records
from metaq.errors import ConfigError
from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.parting import NONE, PARTS_MAX, Parting

pa = pytest.importorskip("pyarrow")

messages = st.lists(
    st.tuples(st.none() | st.text(max_size=3), st.lists(st.text(max_size=3), max_size=2), st.integers(0, 2))
)


@pytest.mark.parametrize("text", ["date", "date,tag", "date,key:2", "date,key:256"])
def test_the_option_is_read_as_it_is_written(text):
    """And the same in a manifest."""
    assert str(Parting.of(text)) == text


@pytest.mark.parametrize(
    "text", ["", "tag", "date,", "date,tags", "date,key", "date,key:1", "date,key:257", "date,tag,key:2"]
)
def test_what_is_no_parting_is_refused(text):
    """With what may be said instead."""
    with pytest.raises(ConfigError, match="need `date`, `date,tag` or `date,key:N` with 2 to 256 for N"):
        Parting.of(text)


@given(messages, st.sampled_from(["date", "date,tag", "date,key:4"]))
def test_every_message_goes_to_one_folder_its_own(found, text):
    """By its date and its tag, or the CRC of its first key."""
    parting = Parting.of(text)
    batch = pa.table(
        {
            "tag": pa.array([tag for tag, _, _ in found], pa.string()),
            "keys": pa.array([keys for _, keys, _ in found], records.TYPES["keys"]),
        }
    ).to_batches()
    if not batch:
        return
    days = np.array([day for _, _, day in found], np.int64)
    placed = {}
    for place, rows in parting.parts(batch[0], days):
        for row in np.flatnonzero(rows).tolist():
            assert row not in placed
            placed[row] = place
    for row, (tag, keys, day) in enumerate(found):
        if text == "date":
            name = ""
        elif text == "date,tag":
            name = parting.folder(tag)
        else:
            name = f"by_key={zlib.crc32(''.join(keys[:1]).encode()) % 4:03d}"
        assert placed[row] == (day, name)


def test_a_tag_cannot_leave_its_folder():
    """Nor be taken for Hive's null."""
    assert Parting("tag").folder("../a b") == "by_tag=..%2Fa%20b"
    assert Parting("tag").folder(None) == f"by_tag={NONE}" != Parting("tag").folder(NONE)


def test_too_many_folders_are_refused():
    """Each costs memory in the worker and a file in the archive."""
    wanted = Slice(MessageQueue("orders", "broker-a", 0), 0, 10)
    Parting("tag").check(PARTS_MAX - 1, wanted)
    with pytest.raises(ConfigError, match=r"more than 256 different tags and dates.*date,key:16"):
        Parting("tag").check(PARTS_MAX, wanted)
