"""Decoded bodies in the archive. The oracle is pyarrow and Python's json, never Spark."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections import Counter

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from metaq.archive.decoding import CORRUPT, DECODED, Decoding, newest_decoding, save_decoding
from metaq.archive.folder import ArchiveFolder
from metaq.archive.parquet import parquet_writer, without_offsets
from metaq.archive.replay import ArchivedTopic
from metaq.errors import ConfigError, StoreCorrupt, StoreForeign
from metaq.model.queue import MessageQueue
from metaq.pipelines.archive.decoding import BodyColumns, corrupt_in, plan_of, settle, wanted
from metaq.pipelines.archive.options import ArchiveOptions
from metaq.pipelines.configuration import configure
from metaq.spark import table
from tests.pipelines.archive.support import publish, rows_of
from tests.pipelines.archive.test_service import run
from tests.scripted import ScriptedCluster
from tests.spark.decode import test_avro_binary as avro
from tests.spark.decode import test_protobuf_binary as protobuf

TODAY = 1_700_006_400_000  # 2023-11-15, 00:00 UTC
QUEUE = MessageQueue("orders", "broker-a", 0)


def options(**given) -> ArchiveOptions:
    return ArchiveOptions(topics="orders", output="out", **given)


def columns_of(decoding: Decoding, *bodies: bytes) -> list[dict]:
    """What the archive's columns of these bodies are, as workers make them."""
    columns = pickle.loads(pickle.dumps(BodyColumns.of(decoding)))
    batch = pa.concat_batches([rows_of(QUEUE, [number], body=body) for number, body in enumerate(bodies)])
    made = columns.ready()(batch)
    assert made.schema == columns.schema(batch.schema)
    return made.select([DECODED, CORRUPT]).to_pylist()


# ------------------------------------------------------------------ what is said
@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"decode": "xml"}, "decode=xml: allowed are json, avro, protobuf, utf8, hessian"),
        ({"decode": "json"}, "decode=json needs the columns: decodeSchema, or decodeSchemaFile"),
        ({"decode": "json", "decode_schema": "a int", "decode_schema_file": "f"}, "one of both"),
        ({"decode": "avro"}, "decode=avro needs decodeSchemaFile"),
        ({"decode": "protobuf", "decode_schema_file": "f"}, "decode=protobuf needs decodeMessage"),
        ({"decode": "utf8", "decode_schema": "a int"}, "decodeSchema is for decode=json, not for utf8"),
        ({"decode": "json", "decode_schema": "a int", "decode_framing": "plain"}, "decodeFraming is for decode=avro"),
        ({"decode_message": "a.B"}, "decodeMessage is for decoded bodies: say decode=protobuf too"),
        ({"keep_body": False}, "keepBody=false keeps nothing of what was sent"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(given, match):
    with pytest.raises(ConfigError, match=match):
        options(**given).check()


def test_the_options_are_those_of_files_and_flags(tmp_path):
    """In TOML, in either spelling."""
    file = tmp_path / "archive.toml"
    file.write_text(
        'pipeline = "archive"\ntopics = ["orders"]\noutput = "out"\ndecode = "json"\ndecodeSchema = "id bigint"\nkeep_body = false\n'
    )
    found = configure(None, file).options
    assert (found.decode, found.decode_schema, found.keep_body) == ("json", "id bigint", False)


# ------------------------------------------------------------------ every format
def test_every_format_becomes_columns_and_what_does_not_decode_is_kept(tmp_path):
    """By the record alone: the files that the options named may be gone."""
    schema, desc = tmp_path / "order.avsc", tmp_path / "shop.desc"
    schema.write_text(json.dumps(avro.ORDER))
    desc.write_bytes(protobuf.FILES.SerializeToString())
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps([avro.ORDER]))
    record = avro.written(avro.ORDER, avro.FULL)
    framed = b"\xc3\x01" + avro.fingerprint(avro.ORDER) + record
    message = protobuf.full().SerializeToString()
    cases = {
        "utf8": (options(decode="utf8"), "é".encode(), {"text": "é"}),
        "hessian": (options(decode="hessian"), b"c\x00\x01S\x00\x02hiz", {"text": "hi"}),
        "avro": (options(decode="avro", decode_schema_file=str(schema)), record, None),
        "registry": (options(decode="avro", decode_registry_file=str(registry)), framed, None),
        "protobuf": (
            options(decode="protobuf", decode_schema_file=str(desc), decode_message="shop.Order"), message, None
        ),
    }  # fmt: skip
    records = {}
    for name, (chosen, _, _) in cases.items():
        chosen.check()
        records[name] = wanted(chosen)
    for path in (schema, desc, registry):
        path.unlink()
    for name, (_, good, fields) in cases.items():
        folder = ArchiveFolder(tmp_path / name)
        save_decoding(folder, records[name])
        found = newest_decoding(folder)
        assert found == records[name]
        rows = columns_of(found, good, b"\xff\xff\xff", good)
        assert rows[1] == {DECODED: None, CORRUPT: b"\xff\xff\xff"}
        assert rows[0] == rows[2]
        assert rows[0][CORRUPT] is None
        if fields is not None:
            assert rows[0][DECODED] == fields
        else:
            assert rows[0][DECODED]["id" if name in {"avro", "registry"} else "a_string"] in {7, "é"}


def test_no_column_is_a_duration(tmp_path):
    """Neither Spark nor Iceberg would find it in a Parquet file: it is microseconds."""
    desc = tmp_path / "shop.desc"
    desc.write_bytes(protobuf.FILES.SerializeToString())
    kind = plan_of(
        wanted(options(decode="protobuf", decode_schema_file=str(desc), decode_message="shop.Order"))
    ).kind  # fmt: skip
    assert "duration[" not in str(kind)
    assert "duration[" in str(protobuf.columns(desc.read_bytes(), "shop.Order", "FILE"))


def test_files_that_cannot_be_read_and_records_that_are_broken_are_named(tmp_path):
    """With what to do."""
    missing = str(tmp_path / "none.avsc")
    with pytest.raises(ConfigError, match=f"{missing} cannot be read"):
        wanted(options(decode="avro", decode_schema_file=missing))
    with pytest.raises(ConfigError, match="cannot read the protobuf descriptors"):
        wanted(options(decode="protobuf", decode_schema_file=missing, decode_message="a.B"))
    folder = ArchiveFolder(tmp_path / "out")
    (folder.path / "_decode").mkdir(parents=True)
    (folder.path / "_decode" / "0000000001.json").write_text("{")
    with pytest.raises(StoreCorrupt, match="which says how bodies are decoded, cannot be read"):
        newest_decoding(folder)
    (folder.path / "_decode" / "0000000001.json").write_text('{"v": 99, "format": "cbor"}')
    with pytest.raises(StoreForeign, match="how bodies are decoded, was written in version 99"):
        newest_decoding(folder)


def test_an_archive_without_bodies_cannot_be_replayed(tmp_path):
    """It is said, where an empty body would be taken for what was sent."""
    folder = ArchiveFolder(tmp_path / "out")
    publish(folder, 1, {QUEUE: range(3)})
    save_decoding(folder, Decoding(format="utf8"))
    ArchivedTopic(folder.path, "orders")
    save_decoding(folder, Decoding(format="utf8", keep_body=False))
    with pytest.raises(ConfigError, match=r"has no bodies \(keepBody=false\)"):
        ArchivedTopic(folder.path, "orders")


def test_repeats_that_are_taken_out_are_counted_no_more(tmp_path):
    """How many bodies of a file did not decode is in its footer, nested fields of that name or not."""
    columns = BodyColumns.of(Decoding(format="utf8"))
    batch = pa.concat_batches([rows_of(QUEUE, [number], body=b"\xff" * 100_000) for number in range(4)])
    with parquet_writer(tmp_path / "f.parquet", columns.schema(batch.schema)) as writer:
        writer.write_batch(columns.ready()(batch))
        writer.write_batch(columns.ready()(rows_of(QUEUE, [4], body=b"fine")))
    assert corrupt_in(tmp_path / "f.parquet") == 4
    assert without_offsets(tmp_path / "f.parquet", [0, 2, 4]) == 2
    assert corrupt_in(tmp_path / "f.parquet") == 2


# ------------------------------------------------------------------ an archive goes on
@pytest.mark.spark
def test_columns_may_be_added_and_nothing_else(spark, tmp_path):
    """What is archived is never read otherwise than before; how bodies become columns may change."""
    folder = ArchiveFolder(tmp_path / "out")
    chosen = {"decode": "json", "decode_schema": "id bigint, a struct<x: int>, l array<struct<y: string>>"}
    folder.make()
    assert settle(folder, options()) is None
    settle(folder, options(decode="utf8"))
    settle(folder, options(**chosen))  # Nothing is archived yet: anything may be changed.
    assert newest_decoding(folder).format == "json"
    publish(folder, 1, {QUEUE: range(3)})
    settle(folder, options(**chosen))
    assert len(list((folder.path / "_decode").iterdir())) == 1
    for schema, match in (
        (
            "id int, a struct<x: int>, l array<struct<y: string>>",
            r"decoded.id is int64 in the archive, and was to be int32",
        ),
        ("id bigint, l array<struct<y: string>>", r"decoded.a is missing"),
        ("id bigint, a struct<z: int>, l array<struct<y: string>>", r"decoded.a.x is missing"),
        ("id bigint, a struct<x: int>, l array<struct<y: int>>", r"decoded.l\[\].y is string in the archive"),
    ):
        with pytest.raises(ConfigError, match=match + r".*Columns may only be added. Give what was there before"):
            settle(folder, options(decode="json", decode_schema=schema))
    with pytest.raises(ConfigError, match=r"holds decoded bodies \(decode=json\), and decode is not given"):
        settle(folder, options())
    with pytest.raises(ConfigError, match=r"was begun with keepBody=true"):
        settle(folder, options(keep_body=False, **chosen))
    grown = "new date, id bigint, a struct<w: double, x: int>, l array<struct<y: string, z: int>>"
    settle(folder, options(decode="json", decode_schema=grown))
    assert "new:date" in newest_decoding(folder).schema
    for schema, match in (
        ("id interval day to second", "decodeSchema: id is interval"),
        ("id bigint,", "decode.json takes a schema such as"),
        ("m map<int,int>", "the keys of JSON's objects are strings"),
    ):
        with pytest.raises(ConfigError, match=match):
            settle(folder, options(decode="json", decode_schema=schema))


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        yield running


def bodies(numbers) -> list[bytes]:
    """Every tenth is broken."""
    return [
        b"{broken %d" % i if i % 10 == 0 else json.dumps({"id": i, "who": f"u{i % 3}", "tags": ["a"]}).encode()
        for i in numbers
    ]


def seen(rows) -> Counter:
    """Offset, id or corrupt body: of rows as dicts."""
    return Counter((row["queue_offset"], row[DECODED]["id"] if row[DECODED] else bytes(row[CORRUPT])) for row in rows)


def meant(numbers) -> Counter:
    return Counter((i, b"{broken %d" % i if i % 10 == 0 else i) for i in numbers)


JSON = {"decode": "json", "decode_schema": "id bigint, who string"}


@pytest.mark.spark
def test_json_bodies_are_columns_of_the_archive_and_of_its_table(spark, cluster, tmp_path):
    """Broken ones are counted, said, and kept; the live tail is decoded the same; a column comes to it later."""
    output = tmp_path / "out"
    cluster.put("orders", 0, bodies(range(100)), TODAY)
    (report,) = run(spark, cluster, output, decode=JSON)
    assert (report.rows, report.corrupt) == (100, 10)
    assert "100 messages in 1 file," in str(report)
    assert ", 10 bodies do not decode" in str(report)
    assert ArchiveFolder(output).last().corrupt == 10
    (file,) = output.rglob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert seen(rows) == meant(range(100))
    assert [row["body"] for row in rows] == bodies(range(100))
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).path_in_schema == "broker"
    cluster.put("orders", 0, bodies(range(100, 130)), TODAY + 1000)
    run(spark, cluster, output, decode={**JSON, "decode_schema": "id bigint, tags array<string>, who string"})
    cluster.put("orders", 0, bodies(range(130, 150)), TODAY + 2000)
    whole = table("orders", archive=output, name_servers=cluster.namesrv, spark=spark)
    assert whole.columns[-2:] == [DECODED, CORRUPT]
    rows = [row.asDict(recursive=True) for row in whole.collect()]
    assert seen(rows) == meant(range(150))
    with_tags = {row["queue_offset"] for row in rows if row[DECODED] and row[DECODED]["tags"] == ["a"]}
    assert with_tags == {i for i in range(100, 150) if i % 10}
    assert whole.where("decoded.who = 'u1'").count() == sum(i % 3 == 1 and i % 10 > 0 for i in range(150))


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.spark_all
@pytest.mark.spark
def test_without_bodies_files_are_merged_and_parted_and_old_dates_go_as_ever(spark, cluster, tmp_path):
    """`body` is nowhere; what does not decode is whole in `_corrupt`; repeats are known as before."""
    output, chosen = tmp_path / "out", {"decode": {**JSON, "keep_body": False}, "partition_by": "date,tag"}
    cluster.put("orders", 0, bodies(range(100)), TODAY)
    cluster.put("orders", 0, bodies([100]), TODAY + 1, "UNIQ_KEY\x01" + "AB" * 16)
    cluster.put("orders", 0, bodies([101, 100]), TODAY + 2, "UNIQ_KEY\x01" + "AB" * 16)
    (report,) = run(spark, cluster, output, messages_per_file=40, compact_files=1, grace_seconds=0, **chosen)
    assert (report.rows, report.repeats, report.corrupt, report.compacted > 1) == (101, 2, 11, True)
    found = ds.dataset(output, partitioning="hive").to_table()
    assert "body" not in found.schema.names
    assert seen(found.to_pylist()) == meant(range(101))
    cluster.put("orders", 0, bodies(range(103, 110)), TODAY + 3)
    whole = table("orders", archive=output, name_servers=cluster.namesrv, spark=spark)
    assert "body" not in whole.columns
    assert seen(row.asDict(recursive=True) for row in whole.collect()) == meant([*range(101), *range(103, 110)])
    read = spark.read.format("metaq").load(str(output)).select("queue_offset", "body").collect()
    assert {row.body for row in read} == {None}
    (report,) = run(spark, cluster, output, keep_days=1, trust_clock=True, grace_seconds=0, **chosen)
    assert report.expired > 0
    assert not list(output.rglob("*.parquet"))
    assert dt.datetime.fromtimestamp(TODAY / 1000, dt.UTC).date() == dt.date(2023, 11, 15)
