"""`spark.read.format("metaq").load(FOLDER)`."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from metaq.client.arrow import records
from tests.store.support import log_file, open_store, overwrite, put
from tests.support import ROOT

PAGE = (ROOT / "docs" / "store-reader.md").read_text()

pytestmark = pytest.mark.spark


def test_folders_are_a_table(spark, tmp_path):
    """Cut into partitions, each message once; several folders by a list."""
    for name in ("a", "b"):
        with open_store(tmp_path / name, mapped_file_size_commit_log=4 << 20) as store:
            for i in range(300):
                put(store, name, i % 4, b"%d" % i + bytes(10_000))
    reader = spark.read.format("metaq").option("minPartitions", 4)
    assert tuple(reader.load(str(tmp_path)).columns) == records.LEAN
    frame = reader.schema("topic string, queue_id int, queue_offset bigint, body binary").load(
        [str(tmp_path / "a"), str(tmp_path / "b")]
    )
    rows = frame.selectExpr("topic", "queue_id", "queue_offset", "length(body)", "spark_partition_id()").collect()
    assert sorted(row[:3] for row in rows) == [(name, q, i) for name in "ab" for q in range(4) for i in range(75)]
    assert min(row[3] for row in rows) > 10_000
    assert len({row[4] for row in rows}) >= 4


def test_damage_fails_the_query_or_is_listed(spark, tmp_path):
    """With file and place; `failOnCorrupt=false` goes on behind it."""
    with open_store(tmp_path) as store:
        places = [put(store, "orders", 0, b"%d" % i * 50).log_offset for i in range(20)]
    overwrite(log_file(tmp_path), places[7] + 100, b"?")
    reader = spark.read.format("metaq").option("path", str(tmp_path))
    with pytest.raises(Exception, match=f"is damaged at byte {places[7]}: .* Set failOnCorrupt=false"):
        reader.load().collect()
    assert len(reader.option("failOnCorrupt", "false").load().collect()) == 19
    (row,) = reader.option("rows", "damage").load().collect()
    assert (row.path, row.place, row.size) == (str(log_file(tmp_path)), places[7], places[8] - places[7])


def test_the_programs_of_the_page_read_a_folder_and_list_its_damage(spark, tmp_path):
    """docs/store-reader.md: one after the other in one session, with a byte spoilt in between."""
    with open_store(tmp_path) as store:
        places = [put(store, "orders", 0, b"%d" % i * 50).log_offset for i in range(20)]
    first, second = re.findall(r"```python\n(.*?)```", PAGE.replace("/data/broker-a/store", str(tmp_path)), re.DOTALL)
    names, printed = dict[str, object](), io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(first, names)
        overwrite(log_file(tmp_path), places[7] + 100, b"?")
        exec(second, names)
    told, *table = printed.getvalue().splitlines()
    assert names["spark"] is spark
    assert told == "20 messages"
    assert re.search(rf"\|\s*{places[7]}\|\s*{places[8] - places[7]}\|", "\n".join(table))
