"""What workers hand to Spark's Parquet writer, and what is read of its files again."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.offsets import Slice
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.archived_rows import SCHEMA
from metaq.pipelines.archive.dedupe import Ids, ids_of, key_ids_of
from metaq.pipelines.archive.hadoop.output import _key_of
from metaq.pipelines.archive.hadoop.rows import PLACE, PLACE_END, WHOLE, IdsOf, WithoutOffsets, slice_text, staged_place

NAMES = st.text(st.characters(exclude_characters="\x00/", exclude_categories=["Cs"]), min_size=1)


@given(
    st.from_regex(r"[A-Za-z0-9_%|-]+", fullmatch=True),
    NAMES,
    st.integers(0, 2**31),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
)
def test_a_slice_is_found_again_in_the_names_of_its_folders(topic, broker, queue_id, start, length):
    wanted = Slice(MessageQueue(topic, broker, queue_id), start, start + length)
    for part in ("", "by_tag=a%2Fb", "by_key=007"):
        assert staged_place((topic, "2026-03-01", part or WHOLE, slice_text(wanted))) == (wanted, "2026-03-01", part)


def test_the_names_of_folders_are_as_spark_escapes_them():
    """From a listing of a real one."""
    path = (
        "7-app-1f/_topic=007%25X/_date=2026-03-01/_part=by_tag%3Da%252Fb/_slice=3-0-100-br%2Fa%3Db%25c é/"
        "part-00000-4d06f7e8-c655-4f94-92d8-d24a1775d094.c000.zstd.parquet"
    )
    assert _key_of(path) == ("007%X", "2026-03-01", "by_tag=a%2Fb", "3-0-100-br/a=b%c é")
    wanted, _, part = staged_place(_key_of(path))
    assert (wanted.queue, part) == (MessageQueue("007%X", "br/a=b%c é", 3), "by_tag=a%2Fb")
    assert all(name in path for name in PLACE)


@pytest.mark.parametrize("dedupe", ["unique_id", "key"])
def test_ids_are_those_of_each_file_also_where_a_batch_is_of_several(dedupe):
    """And times are those of the message, also where no timestamp can say them."""
    start = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    count = 6
    places = [PLACE_END.join(("orders", "2026-03-01", WHOLE, f"{number % 2}-0-9-b")) for number in range(count)]
    messages = pa.array([f"{number:032X}" for number in range(count)])
    keys = pa.array([[f"k{number}"] if number else [] for number in range(count)])
    batch = pa.RecordBatch.from_pydict(
        {
            "place": places, "message_id": messages, "keys": keys, "queue_offset": pa.array(range(count), pa.int64()),
            "store_time": pa.array([start] * count, SCHEMA.field("store_time").type),
            "store_ms": pa.array([None, None, None, 2**60, None, None], pa.int64()),
        }
    )  # fmt: skip
    (packed,) = IdsOf(dedupe=dedupe)(iter([batch]))
    found = {row["place"]: Ids.of_bytes(row["ids"]) for row in packed.to_pylist()}
    ms = np.array([round(start.timestamp() * 1000)] * count)
    ms[3] = 2**60
    for number, place in enumerate(places[:2]):
        rows = [row for row in range(count) if row % 2 == number]
        make, column = (key_ids_of, keys) if dedupe == "key" else (ids_of, messages)
        expected = make(column.take(pa.array(rows)), ms[rows], np.array(rows)).in_order()
        for name in ("high", "low", "store_ms", "queue_offset"):
            assert getattr(found[place], name).tolist() == getattr(expected, name).tolist()


def test_rows_are_left_out_by_their_offsets():
    batch = pa.RecordBatch.from_pydict({"queue_offset": pa.array([5, 6, 7], pa.int64()), "body": [b"a", b"b", b"c"]})
    (left,) = WithoutOffsets(drop=np.array([6, 9]))(iter([batch]))
    assert left.column("body").to_pylist() == [b"a", b"c"]
