"""The store reader: which files are found, what is a row, and what is said about the rest."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import zipfile
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructType

from metaq.archive.folder import ArchiveFolder
from metaq.archive.records import ArchivedFile, Manifest
from metaq.client.arrow import records
from metaq.errors import ConfigError, StoreForeign
from metaq.model import offsets
from metaq.model.message import SysFlag
from metaq.model.queue import MessageQueue
from metaq.spark.data_source import MetaqDataSource
from metaq.spark.files import plan as files_plan
from metaq.spark.files.files import FilesReader
from metaq.spark.files.frames import frames_batch
from metaq.spark.files.plan import pack
from metaq.spark.files.read import read_parts
from metaq.spark.files.settings import FilesOptions, Topics
from metaq.spark.source.settings import markdown_table
from metaq.store.offline.damage import Damage
from metaq.wire.metaq1.frame import frame
from tests.effort import repeats
from tests.pipelines.archive.support import publish
from tests.spark.files.support import ALL, bodies, planned, read, write_segment
from tests.store.support import START_MS, log_file, message, open_store, overwrite, put
from tests.support import ROOT


# ------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"path": " , "}, "the option path is empty"),
        ({"paths": "{}"}, "need a JSON list of paths"),
        ({"nameServers": "a:1"}, "give path or nameServers, not both"),
        ({"failOnDataLoss": "false"}, "give path or failOnDataLoss, not both"),
        ({"topic": "a"}, "no option topic; did you mean topics"),
        ({"startingTimestamp": "9", "endingTimestamp": "9"}, "endingTimestamp is not behind startingTimestamp"),
        ({"startingTimestamp": "soon"}, "need a whole number"),
        ({"maxBytesPerPartition": "0"}, "the smallest allowed value is 1"),
        ({"rows": "slices"}, "allowed are messages, damage"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        FilesOptions.of({"path": "/data"} | changes)


def test_a_stream_of_files_is_refused_with_the_way():
    with pytest.raises(ConfigError, match="not as a stream: to follow messages"):
        MetaqDataSource({"PATH": "/data"}).streamReader(None)


def test_options_are_listed_in_the_documentation():
    assert markdown_table(FilesOptions) in (ROOT / "docs" / "store-reader.md").read_text()


def test_topics_of_the_system_are_named_whole_or_not_read():
    """As in a pattern over a cluster's topics."""
    assert Topics().has("orders")
    assert not any(Topics().has(name) for name in ("%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_METAQ_STAGE"))
    some = Topics(("order*", "%RETRY%g", "%DLQ%*", "*"))
    assert some.has("orders")
    assert some.has("%RETRY%g")
    assert not some.has("%DLQ%g")
    assert not Topics(("order*",)).has("refunds")


# ------------------------------------------------------------------ finding
def test_a_path_that_is_not_there_or_holds_nothing_is_told(tmp_path):
    """Also one of another machine's file system."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "notes.txt").write_text("hello")
    with pytest.raises(StoreForeign, match=re.escape(f"{tmp_path} holds nothing that can be read")):
        planned(tmp_path)
    for path in (tmp_path / "nowhere", tmp_path / "no*where"):
        with pytest.raises(ConfigError, match="there is no such folder or file"):
            planned(path)
    with pytest.raises(ConfigError, match=r"not by hdfs: .*metaq\.spark\.table\(topic, archive=URI\) is the way"):
        planned("hdfs://host/data")


def test_a_store_in_which_nothing_is_yet_has_no_rows(tmp_path):
    """Also an archive; Spark gets one partition of nothing."""
    (tmp_path / "a" / "commitlog").mkdir(parents=True)
    (tmp_path / "b" / "_manifests").mkdir(parents=True)
    assert read(f"{tmp_path / 'a'},{tmp_path / 'b'}") == ([], [])
    with open_store(tmp_path / "c"):
        assert read(tmp_path / "c") == ([], [])


def test_files_that_only_have_the_names_of_a_log_are_told_and_not_read_as_an_empty_one(tmp_path):
    """A consume queue, a log of another kind; a store's other folders with such names are passed over."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"one")
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "timerlog" / f"{0:020d}").write_bytes(b"\1" * 100)
    (tmp_path / "commitlog" / f"{1:020d}").mkdir()
    assert bodies(tmp_path) == [b"one"]
    rows, damage = read(tmp_path / "timerlog", ("body",))
    assert rows == []
    assert [(one.path, one.size) for one in damage] == [(str(tmp_path / "timerlog" / f"{0:020d}"), 100)]
    assert "not a commit log" in damage[0].why
    with pytest.raises(StoreForeign, match="is a consume queue"):
        bodies(tmp_path / "consumequeue")


def test_all_kinds_below_one_folder_are_found_each_file_once(tmp_path):
    """By looking; also by a glob, by a file's name, and however often it is named."""
    with open_store(tmp_path / "store") as store:
        put(store, "orders", 0, b"log")
    segment, _ = write_segment(
        tmp_path / "store" / "archive", "old-1/00000000000000000000.meta.arc", [(1, None, b"1.x")]
    )
    archived(tmp_path / "parquet", [b"parquet"])
    (tmp_path / "store" / "archive" / "notes.txt").write_text("hello")
    wanted = [b"1.x", b"log", b"parquet"]
    assert sorted(bodies(tmp_path)) == wanted
    assert sorted(bodies(f"{tmp_path},{tmp_path / 'store'}, {tmp_path / 'store' / 'commitlog'},{segment}")) == wanted
    assert sorted(bodies(f"{tmp_path / 'store' / 'archive'},{tmp_path},{tmp_path},{tmp_path / 'store'}")) == wanted
    assert sorted(bodies(f"{tmp_path}/s*/archive/old-*")) == [b"1.x"]
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "disk").symlink_to(tmp_path / "store")
    (tmp_path / "linked" / "circle").symlink_to(tmp_path / "linked")
    assert sorted(bodies(tmp_path / "linked")) == [b"1.x", b"log"]
    assert sorted(bodies(tmp_path)) == wanted
    assert bodies(f"file:{segment}") == bodies(f"file://{segment}") == [b"1.x"]
    assert bodies(log_file(tmp_path / "store")) == [b"log"]
    assert sorted(bodies("", paths=json.dumps([str(tmp_path)]))) == wanted


# ------------------------------------------------------------------ logs
def test_every_column_of_a_record_of_a_log(tmp_path):
    """What a broker knows beside its log is null."""
    with open_store(tmp_path) as store:
        put(store, "orders", 2, b"hello", tag="paid", key="a")
    ((row,), damage) = read(tmp_path)
    assert damage == []
    assert row["offset_id"] == "7F00000100002A9F0000000000000000"
    assert {name: row[name] for name in ("topic", "broker", "queue_id", "queue_offset", "tag", "keys", "body")} == {
        "topic": "orders", "broker": None, "queue_id": 2, "queue_offset": 0, "tag": "paid", "keys": ["a"], "body": b"hello",
    }  # fmt: skip
    assert row["store_time"].timestamp() * 1000 == START_MS
    assert [name for name in ALL if row[name] is None] == ["broker", "max_offset", "attribute", "metaq1_id", "position"]


def test_rows_are_what_consumers_could_see(tmp_path):
    """No half message, no rolled back one, nothing of system, retry and dead-letter topics unless it is named."""
    with open_store(tmp_path) as store:
        for topic in (
            "orders",
            "%RETRY%g",
            "%DLQ%g",
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "rmq_sys_METAQ_STAGE",
        ):
            put(store, topic, 0, topic.encode())
        for flag in (SysFlag.PREPARED, SysFlag.ROLLED_BACK, SysFlag.COMMITTED):
            record = message("orders", 0, str(int(flag)).encode())
            record.sys_flag = int(flag)
            store.writer.put([record])
    assert bodies(tmp_path) == [b"orders", b"8"]
    assert bodies(tmp_path, topics="*") == [b"orders", b"8"]
    assert bodies(tmp_path, topics="%RETRY%g, SCHEDULE_TOPIC_XXXX") == [b"%RETRY%g", b"SCHEDULE_TOPIC_XXXX"]
    assert bodies(tmp_path, topics="refunds") == []


def test_messages_that_a_topic_has_let_go_of_are_not_there(tmp_path):
    """Their bytes are, until their log file goes."""
    with open_store(tmp_path) as store:
        ends = [put(store, "TU"[i % 2], 0, b"%d" % i).log_end for i in range(6)]
    config = tmp_path / "config"
    config.mkdir(exist_ok=True)
    (config / "metaqFloors.json").write_text(json.dumps({"floors": {"T": ends[3]}}))
    assert bodies(tmp_path) == [b"1", b"3", b"4", b"5"]


def test_messages_of_one_queue_that_was_trimmed_are_not_there(tmp_path):
    """Those of the topic's other queues are, and those of another topic's queue of that number."""
    with open_store(tmp_path) as store:
        ends = [put(store, "TU"[i % 2], i // 2 % 2, b"%d" % i).log_end for i in range(16)]
    config = tmp_path / "config"
    config.mkdir(exist_ok=True)
    floors = {"T@1": ends[9], "T@x": ends[15], "T@": ends[15], "nowhere@0": ends[15]}
    (config / "metaqFloors.json").write_text(json.dumps({"floors": floors}))
    gone = {b"2", b"6"}
    assert bodies(tmp_path) == [body for i in range(16) if (body := b"%d" % i) not in gone]
    assert bodies(tmp_path, topics="T") == [body for i in range(0, 16, 2) if (body := b"%d" % i) not in gone]


def test_compressed_bodies_are_undone_and_one_that_cannot_be_is_damage(tmp_path):
    """With its place; the others of its block are rows all the same."""
    with open_store(tmp_path) as store:
        places = []
        for data in (zlib.compress(b"hello" * 100), b"no zlib", zlib.compress(b"after")):
            record = message("T", 0, data)
            record.sys_flag = 0x1
            places.append(store.writer.put([record]).log_offset)
    rows, damage = read(tmp_path, ("body",))
    assert [row["body"] for row in rows] == [b"hello" * 100, b"after"]
    assert [(one.path, one.place) for one in damage] == [(str(log_file(tmp_path)), places[1])]
    assert "cannot be read" in damage[0].why


def test_bodies_that_cannot_be_undone_behind_a_cut_double_no_row(tmp_path, monkeypatch):
    """Batches end where expanded bodies are large: what was handed out by then is not read again."""
    monkeypatch.setattr(records, "EXPANDED_BYTES", 1500)
    with open_store(tmp_path) as store:
        for number in range(9):
            record = message("T", 0, b"no zlib" if number == 6 else zlib.compress(b"%d" % number * 1000))
            record.sys_flag = 0x1
            store.writer.put([record])
    rows, damage = read(tmp_path, ("body",))
    assert [row["body"][:1] for row in rows] == [b"%d" % number for number in range(9) if number != 6]
    assert len(damage) == 1


def test_times_choose_messages_and_whole_files(tmp_path):
    """Stored at the first or later, and before the second."""
    with open_store(tmp_path) as store:
        for i in range(40):
            put(store, "T", 0, b"%02d" % i * 5000)
            store.clock.advance(60)
    both = {"startingTimestamp": START_MS + 20 * 60_000, "endingTimestamp": START_MS + 30 * 60_000}
    assert bodies(tmp_path, **both) == [b"%02d" % i * 5000 for i in range(20, 30)]
    read_files = {part.piece.file.path for parts in planned(tmp_path, **both)[1] for part in parts}
    all_files = {part.piece.file.path for parts in planned(tmp_path)[1] for part in parts}
    assert len(read_files) < len(all_files) / 2
    archived(tmp_path / "archive", [b"%d" % i for i in range(10)])
    day = 1_772_323_200_000
    assert bodies(tmp_path / "archive", startingTimestamp=day + 3, endingTimestamp=day + 5) == [b"3", b"4"]
    rows, _ = read(tmp_path / "archive", ("queue_offset",), startingTimestamp=day + 8)
    assert [row["queue_offset"] for row in rows] == [8, 9]


def test_times_of_files_that_hold_none_are_refused(tmp_path):
    write_segment(tmp_path, "t-0/0.meta", [(1, None, b"x")])
    with pytest.raises(ConfigError, match=r"data files of MetaQ 1\.x hold none"):
        planned(tmp_path, startingTimestamp=5)


def test_parts_are_put_together_up_to_the_size_that_is_asked_for():
    """In their order; a large one alone."""
    packed = pack([("a", 5), ("b", 5), ("c", 1), ("d", 30), ("e", 1)], 10)
    assert packed == [["a", "b"], ["c"], ["d"], ["e"]]


# ------------------------------------------------------------------ data of MetaQ 1.x
def test_every_column_of_a_frame(tmp_path):
    """The attribute is the tag too, where it is one; what the file does not hold is null."""
    frames = [(77, None, b"plain"), (-5, "paid", b"with"), (6, "a | b", b"odd")]
    _, end = write_segment(tmp_path, "meta-test-3/00000000000000000100.meta", frames)
    rows, damage = read(tmp_path)
    assert damage == []
    assert [(row["metaq1_id"], row["attribute"], row["tag"], row["body"], row["flag"]) for row in rows] == [
        (77, None, None, b"plain", 0), (-5, "paid", "paid", b"with", 1), (6, "a | b", None, b"odd", 1),
    ]  # fmt: skip
    assert [row["position"] for row in rows] == [100, 125, 157]
    assert end == 157 + 20 + 4 + 5 + 3
    assert {(row["topic"], row["queue_id"]) for row in rows} == {("meta-test", 3)}
    known = {"topic", "queue_id", "tag", "keys", "body", "properties", "flag", "attribute", "metaq1_id", "position"}
    assert {name for name in ALL if name not in known and any(row[name] is not None for row in rows)} == set()
    assert (rows[0]["keys"], rows[0]["properties"]) == ([], [])


@pytest.mark.parametrize("ending", [".meta", ".meta.arc", ".arc", ".meta.zip", ".zip"])
def test_each_kind_of_data_file_is_read(tmp_path, ending):
    """Files that follow each other, in the order of their positions."""
    _, next_start = write_segment(tmp_path, f"t-0/{0:020d}{ending}", [(1, None, b"one"), (2, None, b"two")])
    write_segment(tmp_path, f"t-0/{next_start:020d}{ending}", [(3, None, b"three")])
    assert bodies(tmp_path) == [b"one", b"two", b"three"]


def test_a_segment_and_its_archive_are_read_once(tmp_path):
    """Also where the later of two files begins inside the earlier."""
    frames = [(i, None, b"%d" % i) for i in range(4)]
    write_segment(tmp_path, f"t-0/{0:020d}.meta", frames)
    write_segment(tmp_path, f"t-0/{0:020d}.meta.zip", frames)
    write_segment(tmp_path, f"t-0/{42:020d}.meta.arc", frames[2:])
    assert bodies(tmp_path) == [b"0", b"1", b"2", b"3"]


@settings(max_examples=repeats(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.text(max_size=5), st.binary(max_size=200)), max_size=30),
    st.lists(st.integers(0, 4000), max_size=6),
    st.sampled_from([".meta", ".meta.zip"]),
    st.sampled_from([7, 100, 1 << 20]),
)  # fmt: skip
def test_every_frame_is_in_one_piece_whatever_the_cuts(tmp_path_factory, frames, cuts, ending, block):
    """Each by the walk from the file's begin."""
    from metaq.store.offline.segments import SegmentPiece, read_segment, segment_at

    frames = [one for one in frames if one != (0, None, b"")]
    path, end = write_segment(tmp_path_factory.mktemp("s"), f"t-0/{9:020d}{ending}", frames)
    segment = segment_at(path)
    marks = [9, *sorted(9 + cut for cut in cuts if 9 + cut < end), end]
    found = [
        run
        for begin, stop in itertools.pairwise(marks)
        for run in read_segment(SegmentPiece(segment, begin, stop), block_bytes=block)
    ]
    rows = [row for run in found for row in frames_batch(run, ("metaq1_id", "attribute", "body")).to_pylist()]
    assert [tuple(row.values()) for row in rows] == frames


@pytest.mark.parametrize("tail", [b"x" * 11, bytes(19), bytes(4000), (5).to_bytes(4, "big") + bytes(16) + b"abc"])
def test_a_frame_that_a_killed_server_left_half_is_no_damage(tmp_path, tail):
    """In the last file of a partition; in another it is."""
    path, end = write_segment(tmp_path, f"t-0/{0:020d}.meta", [(1, None, b"one")])
    path.write_bytes(path.read_bytes() + tail)
    assert bodies(tmp_path) == [b"one"]
    write_segment(tmp_path, f"t-0/{end + len(tail):020d}.meta", [(2, None, b"two")])
    rows, damage = read(tmp_path, ("body",))
    assert [row["body"] for row in rows] == [b"one", b"two"]
    assert [(one.path, one.place, one.size) for one in damage] == [(str(path), end, len(tail))]


def test_damage_in_a_segment_is_told_with_file_and_place(tmp_path):
    """A body costs its frame, a length the rest of its file; a file that is missing, its positions."""
    frames = [(i, None, b"%04d" % i) for i in range(10)]
    path, end = write_segment(tmp_path, f"t-0/{0:020d}.meta", frames)
    overwrite(path, 24 * 2 + 21, b"?")
    overwrite(path, 24 * 7, b"\xff")
    write_segment(tmp_path, f"t-0/{end + 100:020d}.meta", [(99, None, b"last")])
    rows, damage = read(tmp_path, ("body",))
    assert [row["body"] for row in rows] == [b"%04d" % i for i in (0, 1, 3, 4, 5, 6)] + [b"last"]
    assert [(one.place, one.size) for one in damage] == [(48, 24), (168, 72), (240, 100)]
    assert "are in no file" in damage[2].why


def test_a_zip_file_that_cannot_be_read_is_damage(tmp_path):
    """And the files beside it are read."""
    path, _ = write_segment(tmp_path, f"t-0/{0:020d}.meta.zip", [(1, None, b"one")])
    path.write_bytes(b"no zip")
    write_segment(tmp_path, f"t-1/{0:020d}.meta.zip", [(1, None, b"other")])
    rows, damage = read(tmp_path, ("body",))
    assert [row["body"] for row in rows] == [b"other"]
    assert [one.path for one in damage] == [str(path)]


@pytest.mark.parametrize(("ordinal", "lost"), [(0, False), (1, True)])
def test_a_segment_that_goes_while_it_is_read_is_told_apart(tmp_path, caplog, ordinal, lost):
    """Retention takes the oldest; if another is missing, somebody else took it."""
    paths, start = [], 0
    for number in range(3):
        path, start = write_segment(tmp_path, f"t-0/{start:020d}.meta", [(number, None, b"%d" % number)])
        paths.append(path)
    options, parts = planned(tmp_path)
    paths[ordinal].unlink()
    found = [one for part in parts for one in read_parts(part, options, ("body",))]
    damage = [one for one in found if isinstance(one, Damage)]
    assert sum(one.num_rows for one in found if not isinstance(one, Damage)) == 2
    assert [one.path for one in damage] == ([str(paths[ordinal])] if lost else [])
    assert ("was deleted while the read ran" in caplog.text) is not lost


def test_a_log_file_that_goes_while_it_is_read_costs_its_messages(tmp_path, caplog):
    """Retention takes the oldest; it is said in the log."""
    with open_store(tmp_path) as store:
        for i in range(8):
            put(store, "T", 0, b"%d" % i * 30_000)
    options, parts = planned(tmp_path)
    log_file(tmp_path).unlink()
    found = [one for part in parts for one in read_parts(part, options, ("body",))]
    assert sum(one.num_rows for one in found) == 6
    assert f"{log_file(tmp_path)} was deleted while the read ran" in caplog.text


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_file_that_is_damaged_anywhere_is_damage_and_no_other_error(tmp_path, method):
    """Of any compression: each byte changed to the largest there is."""
    path = tmp_path / "t-0" / f"{0:020d}.meta.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("it.meta", b"".join(frame(n, 0, b"%d" % n) for n in range(8)))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        rows, damage = read(tmp_path, ("body",))
        assert len(rows) <= 8
        assert len(rows) == 8 or damage


# ------------------------------------------------------------------ archives of the pipeline
def archived(root, messages, batch=1, publish=True, row_group_size=None):
    """A batch of an archive, one message a millisecond from 2026-03-01 on; returns its Parquet file."""
    folder = ArchiveFolder(root)
    folder.make()
    count = len(messages)
    times = pa.array([1_772_323_200_000_000 + i * 1000 for i in range(count)], pa.int64()).cast(
        records.TYPES["store_time"]
    )
    table = pa.table({
        "broker": pa.array(["b"] * count), "queue_id": pa.array([0] * count, pa.int32()),
        "queue_offset": pa.array(range(count), pa.int64()), "message_id": pa.array([str(i) for i in range(count)]),
        "tag": pa.array([None] * count, pa.string()), "keys": pa.array([[]] * count, records.TYPES["keys"]),
        "body": pa.array(messages, pa.binary()), "born_time": times, "store_time": times,
        "properties": pa.array([[("a", "b")]] * count, records.TYPES["properties"]),
        "flag": pa.array([0] * count, pa.int32()), "reconsume_times": pa.array([0] * count, pa.int32()),
    })  # fmt: skip
    staged = folder.staging / f"{batch}.parquet"
    staged.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, staged, row_group_size=row_group_size)
    path = f"topic=orders/date=2026-03-01/q-{batch:010d}-b-0-{0:020d}.parquet"
    file = ArchivedFile(
        path=path,
        staged=folder.relative(staged),
        topic="orders",
        date="2026-03-01",
        rows=count,
        size=staged.stat().st_size,
    )
    positions = offsets.to_json({MessageQueue("orders", "b", 0): count})
    manifest = Manifest(query="6f1c9a2e", batch=batch, files=[file], rows=count, repeats=0, positions=positions)
    if publish:
        folder.commit(manifest)
        folder.finish(manifest)
    return folder.path / path


def test_only_published_files_of_an_archive_are_rows(tmp_path):
    """With their topic, which is in the folder's name, and null for what was not archived."""
    archived(tmp_path / "a", [b"one", b"two"])
    stray = archived(tmp_path / "a", [b"unpublished"], batch=2, publish=False)
    stray.write_bytes((ArchiveFolder(tmp_path / "a").staging / "2.parquet").read_bytes())
    rows, damage = read(tmp_path / "a")
    assert damage == []
    assert [(row["topic"], row["broker"], row["queue_offset"], row["body"], row["log_offset"]) for row in rows] == [
        ("orders", "b", 0, b"one", None), ("orders", "b", 1, b"two", None),
    ]  # fmt: skip
    assert bodies(tmp_path / "a", topics="refunds") == []


def test_rows_of_version_2_have_hosts_and_ids(tmp_path):
    """Of version 1 nobody knows them; an archive may hold both."""
    folder, queue = ArchiveFolder(tmp_path), MessageQueue("orders", "broker-a", 0)
    publish(folder, 1, {queue: range(1)})
    publish(folder, 2, {queue: range(1, 2)}, new=True)
    rows, _ = read(tmp_path, ("queue_offset", "offset_id", "born_host", "sys_flag"))
    assert sorted(tuple(row.values()) for row in rows) == [
        (0, None, None, None), (1, "0A00000200002A9F0000000000000007", "10.0.0.1:4000", 0),
    ]  # fmt: skip
    assert [row["offset_id"] for row in read(tmp_path, ("offset_id", "log_offset", "store_host"))[0]][1] is not None


def test_a_large_archived_file_is_cut_at_its_row_groups(tmp_path, monkeypatch):
    """Each row once."""
    monkeypatch.setattr(files_plan, "PIECE_BYTES_MIN", 1)
    messages = [os.urandom(2000) for _ in range(50)]
    archived(tmp_path, messages, row_group_size=10)
    _, parts = planned(tmp_path, minPartitions=5)
    assert [[part.groups for part in one] for one in parts] == [[(number,)] for number in range(5)]
    assert bodies(tmp_path, minPartitions=5) == messages


def test_a_published_file_that_is_missing_or_broken_is_damage(tmp_path):
    """And so is a manifest that cannot be read; the others are rows."""
    gone = archived(tmp_path, [b"one"])
    broken = archived(tmp_path, [b"two"], batch=2)
    archived(tmp_path, [b"three"], batch=3)
    gone.unlink()
    broken.write_bytes(b"no Parquet")
    (tmp_path / "_manifests" / "6f1c9a2e-0000000004.json").write_text("{")
    rows, damage = read(tmp_path, ("body",))
    assert [row["body"] for row in rows] == [b"three"]
    assert {one.path for one in damage} == {
        str(gone),
        str(broken),
        str(tmp_path / "_manifests" / "6f1c9a2e-0000000004.json"),
    }


def planned_by_reader(path, **options) -> int:
    """Partitions that Spark is told of. Raises ConfigError."""
    given = FilesOptions.of({"path": str(path), **options})
    return len(FilesReader(given, StructType().add("body", BinaryType())).partitions())


def test_a_topic_that_is_nowhere_is_refused_and_not_empty(tmp_path):
    """As the source that asks brokers does; with what is there. A glob may match nothing."""
    with open_store(tmp_path / "store") as store:
        put(store, "orders", 0, b"1")
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    (tmp_path / "store" / "config" / "topics.json").write_text('{"topicConfigTable":{"no-messages-yet":{}}}')
    with pytest.raises(ConfigError, match=r"of the topic order; the nearest is orders; there are .*orders"):
        planned_by_reader(tmp_path / "store", topics="order")
    with pytest.raises(ConfigError, match="of the topic refunds; there are"):
        planned_by_reader(tmp_path / "store", topics="orders,refunds", rows="messages")
    for topics in ("orders", "no-messages-yet", "refunds-*", "*", ""):
        planned_by_reader(tmp_path / "store", topics=topics)
    archived(tmp_path / "a", [b"one"])
    for topics in ("orders", "ref*"):
        planned_by_reader(tmp_path / "a", topics=topics)
    with pytest.raises(ConfigError, match="of the topic refunds"):
        planned_by_reader(tmp_path / "a", topics="refunds")
    write_segment(tmp_path / "old", f"test-0/{0:020d}.meta", [(1, None, b"x")])
    planned_by_reader(tmp_path / "old", topics="test")
    with pytest.raises(ConfigError, match="of the topic tset; the nearest is test"):
        planned_by_reader(tmp_path / "old", topics="tset")


def test_a_topic_that_may_be_there_is_not_refused(tmp_path):
    """Of a log without its consume queues nobody knows the topics, nor of a manifest that cannot be read."""
    with open_store(tmp_path) as store:
        put(store, "orders", 0, b"1")
    shutil.rmtree(tmp_path / "consumequeue")
    planned_by_reader(tmp_path, topics="refunds")
    archived(tmp_path / "b", [b"one"])
    (manifest,) = (tmp_path / "b" / "_manifests").iterdir()
    manifest.write_text("{")
    planned_by_reader(tmp_path / "b", topics="refunds")
