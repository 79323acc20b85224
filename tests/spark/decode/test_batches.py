"""The decoders that are Python, in Spark's workers."""

from __future__ import annotations

import json

import pytest

from metaq.spark import decode
from tests.spark.decode import test_avro_binary as avro
from tests.spark.decode import test_protobuf_binary as protobuf
from tests.spark.decode.bodies import anything, frame_of


@pytest.mark.spark
def test_avro_and_protobuf_bodies_in_spark(spark, tmp_path):
    """Their files are read where the query is made; each UDF runs once, however many fields are taken from it."""
    schemas, descriptors = tmp_path / "schemas.json", tmp_path / "shop.desc"
    schemas.write_text(json.dumps({"7": avro.ORDER}))
    descriptors.write_bytes(protobuf.FILES.SerializeToString())
    record = b"\xc3\x01" + avro.fingerprint(avro.ORDER) + avro.written(avro.ORDER, avro.FULL)
    message = protobuf.full().SerializeToString()
    bodies = [record, message, None, *anything(3, [record, message], 100)]
    frame = frame_of(spark, bodies)
    frame = decode.expand(frame, decode.avro(registry_file=schemas), prefix="avro_").withColumnRenamed(
        "_corrupt", "no_avro"
    )
    frame = decode.expand(frame, decode.protobuf(descriptors, "shop.Order"), prefix="proto_")
    schemas.unlink()
    descriptors.unlink()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ArrowEvalPython") == 2, plan
    table = frame.orderBy("i").toArrow()
    assert table["i"].to_pylist() == list(range(len(bodies)))
    for prefix, corrupt, read in (
        (
            "avro_",
            "no_avro",
            lambda: avro.read(avro.ORDER, bodies, "single-object", {avro.fingerprint(avro.ORDER): avro.ORDER}),
        ),
        ("proto_", "_corrupt", lambda: protobuf.read("shop.Order", bodies)),
    ):
        names = [name for name in table.column_names if name.startswith(prefix)]
        for body, wanted, row, bad in zip(
            bodies, read(), table.select(names).to_pylist(), table[corrupt].to_pylist(), strict=True
        ):
            assert bad == (body if wanted is None else None)
            fields = {name.removeprefix(prefix): value for name, value in row.items()}
            fields |= {"days": dict(fields["days"])} if fields.get("days") else {}
            assert fields == (wanted or dict.fromkeys(fields))
    rows = table.to_pylist()
    assert (rows[0]["avro_id"], rows[1]["proto_a_string"]) == (7, "é")
