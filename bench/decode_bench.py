"""What decoded bodies cost the archive: CPU time a message of the decoders, beside that of writing its row to Parquet; bytes of
the files with and without; and a batch's commit to an Iceberg table.

    python bench/decode_bench.py
    python bench/decode_bench.py --count 400000 --runs 5

Bodies are orders of 6 fields, 130 bytes of JSON. One in 1 000 is broken. Prints one JSON object, the best of the runs, which
take turns; microseconds of CPU time a message unless the name says otherwise:
  write                           the archive's 11 columns, to tmpfs
  json, avro, protobuf, utf8      bodies to columns, without writing
  json_broken                     the same where every tenth body is broken
  json_write                      the columns, with `decoded` and `body`
  bytes, json_bytes, only_bytes   of a message in the file: without columns of the body; with both; without the body
  commit_ms, commit_cpu_ms        one batch of 8 files to a table that has 1 000
"""

import argparse
import io
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import fastavro  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from tests.pipelines.archive.support import publish, rows_of  # noqa: E402

from metaq.archive.folder import ArchiveFolder  # noqa: E402
from metaq.archive.parquet import parquet_writer  # noqa: E402
from metaq.model.queue import MessageQueue  # noqa: E402
from metaq.pipelines.archive.decoding import BodyColumns  # noqa: E402
from metaq.spark.decode.avro_binary import avro_plan  # noqa: E402
from metaq.spark.decode.protobuf_binary import decoder, protobuf_plan  # noqa: E402
from metaq.spark.decode.typed_json import json_plan  # noqa: E402
from metaq.spark.decode.utf8 import utf8_plan  # noqa: E402

QUEUE = MessageQueue("orders", "broker-a", 0)
KIND = pa.struct(
    [
        pa.field("order_id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("country", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "country", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
MICROS = 1_772_323_200_000_000
BATCH = 10_000


def order(number: int) -> dict[str, object]:
    return {
        "order_id": number,
        "customer": f"customer-{number * 7919 % 100_003}",
        "amount": round(number * 0.37 % 500, 2),
        "paid": number % 3 == 0,
        "country": ("de", "fr", "nl", "pl")[number % 4],
        "at": "2026-03-01T00:00:00Z",
    }


def as_avro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO_PARSED, {**order(number), "at": MICROS + number})
    return out.getvalue()


AVRO_PARSED = fastavro.parse_schema(AVRO)


def descriptors() -> bytes:
    """Of `message Order`, as protoc would write it."""
    from google.protobuf import descriptor_pb2

    field = descriptor_pb2.FieldDescriptorProto
    kinds = [
        field.TYPE_INT64,
        field.TYPE_STRING,
        field.TYPE_DOUBLE,
        field.TYPE_BOOL,
        field.TYPE_STRING,
        field.TYPE_INT64,
    ]
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (one, kind) in enumerate(zip(KIND, kinds, strict=True), 1):
        message.field.add(name=one.name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def as_protobuf(data: bytes, count: int) -> list[bytes]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    assert decoder(data, "shop.Order")  # it is one
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(data).file[0])
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return [kind(**{**order(number), "at": MICROS}).SerializeToString() for number in range(count)]


def batches_of(bodies: list[bytes]) -> list[pa.RecordBatch]:
    """Rows of the archive."""
    found = []
    for begin in range(0, len(bodies), BATCH):
        part = bodies[begin : begin + BATCH]
        batch = rows_of(QUEUE, range(begin, begin + len(part)))
        at = batch.schema.get_field_index("body")
        found.append(batch.set_column(at, "body", pa.array(part, pa.binary())))
    return found


def broken(bodies: list[bytes], every: int) -> list[bytes]:
    return [body[:-3] if number % every == 0 else body for number, body in enumerate(bodies)]


def cpu(act) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def write(path: Path, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    with parquet_writer(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def commits(folder: Path) -> dict[str, float]:
    """A batch's commit to a table of 1 000 files."""
    from metaq.archive.iceberg import IcebergTables

    archive = ArchiveFolder(folder / "out")
    queues = [MessageQueue("orders", "broker-a", number) for number in range(8)]
    for batch in range(1, 126):
        publish(archive, batch, {queue: range(batch * 5, batch * 5 + 5) for queue in queues})
    tables = IcebergTables(archive, 3600)
    tables.align()
    walls, cpus = [], []
    for batch in range(126, 134):
        manifest = publish(archive, batch, {queue: range(batch * 5, batch * 5 + 5) for queue in queues})
        began, used = time.perf_counter(), time.process_time()
        tables.publish(manifest)
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - used)
    tables.close()
    return {"commit_ms": round(min(walls) * 1e3, 1), "commit_cpu_ms": round(min(cpus) * 1e3, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--disk", default="/dev/shm")
    chosen = parser.parse_args()
    texts = [json.dumps(order(number)).encode() for number in range(chosen.count)]
    data = descriptors()
    plain = {
        "json": (json_plan(KIND), broken(texts, 1000)),
        "json_broken": (json_plan(KIND), broken(texts, 10)),
        "avro": (avro_plan(AVRO), broken([as_avro(number) for number in range(chosen.count)], 1000)),
        "protobuf": (protobuf_plan(data, "shop.Order", ""), broken(as_protobuf(data, chosen.count), 1000)),
        "utf8": (utf8_plan(), broken(texts, 1000)),
    }
    tasks = {name: (BodyColumns(plan).ready(), batches_of(bodies)) for name, (plan, bodies) in plain.items()}
    rows = tasks["json"][1]
    both, only = BodyColumns(json_plan(KIND)), BodyColumns(json_plan(KIND), keep_body=False)
    found: dict[str, float] = {}

    def least(name: str, seconds: float) -> None:
        value = seconds / chosen.count * 1e6
        found[name] = round(min(found.get(name, value), value), 3)

    with tempfile.TemporaryDirectory(dir=chosen.disk) as folder:
        place = Path(folder)
        kinds = {"": (rows, rows[0].schema)}
        for name, columns in (("json_", both), ("only_", only)):
            kinds[name] = ([columns.ready()(batch) for batch in rows], columns.schema(rows[0].schema))
        for _ in range(chosen.runs):
            for name, (columns, batches) in tasks.items():
                least(name, cpu(lambda: [columns(batch) for batch in batches]))  # noqa: B023
            for name in ("", "json_"):
                least(f"{name}write", cpu(lambda: write(place / "f", kinds[name][1], kinds[name][0])))  # noqa: B023
        for name, (batches, schema) in kinds.items():
            write(place / "f", schema, batches)
            assert pq.read_metadata(place / "f").num_rows == chosen.count
            found[f"{name}bytes"] = round((place / "f").stat().st_size / chosen.count, 1)
        found |= commits(place)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
