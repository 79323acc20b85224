"""Bodies by the schema of their topic: Avro and Protobuf, and what is refused or shown otherwise."""

from __future__ import annotations

import io
import json
import pathlib

import httpx
import pytest

import metaq
from metaq.admin import Admin
from metaq.dashboard.bodies import SHOWN_MAX, body_of
from metaq.dashboard.decoding.schemas import Decoder, read_schemas
from metaq.errors import ConfigError
from tests.dashboard.messages.conftest import HOSTILE, Site, is_text_only, values
from tests.dashboard.running import browsing, dashboard

pytestmark = pytest.mark.xdist_group("dashboard messages")

fastavro = pytest.importorskip("fastavro", reason="Avro bodies are read by it: pip install 'pymetaq[decode]'")
descriptor_pb2 = pytest.importorskip(
    "google.protobuf.descriptor_pb2", reason="Protobuf bodies are read by it: pip install 'pymetaq[decode]'"
)

ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}, {"name": "raw", "type": ["null", "bytes"]}],
}  # fmt: skip


def avro(value: dict[str, object]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDER), value)
    return stream.getvalue()


def descriptors() -> bytes:
    """shop.Payment: int64 id = 1, string note = 2."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Payment")
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="note", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "order.avsc").write_text(json.dumps(ORDER))
    (folder / "shop.desc").write_bytes(descriptors())
    path = folder / "schemas.toml"
    path.write_text(
        '[topics.avro-orders]\nformat = "avro"\nschema = "order.avsc"\n'
        '[topics.framed]\nformat = "avro"\nschema = "order.avsc"\nframing = "confluent"\n'
        '[topics.proto]\nformat = "protobuf"\ndescriptors = "shop.desc"\nmessage = "shop.Payment"\n'
    )
    return path


def test_bodies_by_their_schemas(schemas: pathlib.Path):
    found = read_schemas(str(schemas))
    value = {"id": 1 << 60, "note": "hi", "raw": b"\x00\xff"}
    shown = {"id": 1 << 60, "note": "hi", "raw": "00ff"}
    body = body_of(avro(value), "", found["avro-orders"])
    assert (body.kind, json.loads(body.text), body.kinds) == ("avro", shown, ("avro", "json", "text", "hex"))
    assert json.loads(body_of(b"\x00\x00\x00\x00\x07" + avro(value), "", found["framed"]).text) == shown
    proto = body_of(b"\x08\x2a\x12\x02hi", "", found["proto"])
    assert (proto.kind, json.loads(proto.text)) == ("protobuf", {"id": "42", "note": "hi"})
    assert body_of(avro(value), "hex", found["avro-orders"]).kind == "hex"


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        ("avro-orders", b"no avro at all"), ("avro-orders", b"\x02\x80"), ("framed", b"\x01ab"), ("proto", b"\xff\xff"),
        ("avro-orders", b"\x02\x04hi\x00more"), ("avro-orders", b"\x02" * (SHOWN_MAX + 1)),
    ],
)  # fmt: skip
def test_a_body_of_another_schema_is_shown_as_any_other(schemas: pathlib.Path, topic: str, body: bytes):
    found = body_of(body, "", read_schemas(str(schemas))[topic])
    assert found.kind in {"text", "hex"}
    assert "cannot be shown by the schema of its topic" in found.note


def test_what_a_decoder_raises_is_told():
    def decode(_body: bytes) -> str:
        raise ValueError("it is not so")

    assert body_of(b"{}", "", Decoder("avro", decode)).note.endswith("(avro): it is not so")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "items": "null"}, "billions"),
        ({"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}, "holds itself"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, "billions"),
        ({"type": "moon"}, "no Avro schema"),
    ],
)
def test_schemas_that_let_small_bodies_grow_are_refused(tmp_path: pathlib.Path, schema: object, why: str):
    (tmp_path / "s.avsc").write_text(json.dumps(schema))
    (tmp_path / "s.toml").write_text('[topics.t]\nformat = "avro"\nschema = "s.avsc"\n')
    with pytest.raises(ConfigError, match=why):
        read_schemas(str(tmp_path / "s.toml"))


@pytest.mark.parametrize(
    "text",
    [
        "no toml", '[topics.t]\nformat = "thrift"\n', '[topics.t]\nformat = "avro"\n', '[topics.t]\nformat = "avro"\nschema = "gone"\n',
        '[topics.t]\nformat = "protobuf"\ndescriptors = "s.toml"\nmessage = "a.B"\n', "[tropics]\n",
        '[topics.t]\nformat = "avro"\nschema = "s.toml"\nframing = "none"\n',
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_told(tmp_path: pathlib.Path, text: str):
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"s\.toml"):
        read_schemas(str(tmp_path / "s.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_schemas(str(tmp_path / "gone.toml"))


def test_the_page_of_a_message_shows_it(site: Site, schemas: pathlib.Path):
    with Admin(site.namesrv) as admin:
        admin.create_topic("avro-orders", queues=1)
    with metaq.Producer(site.namesrv) as producer:
        receipt = producer.send("avro-orders", avro({"id": 7, "note": HOSTILE, "raw": None}))
    with dashboard(site.loop, site.namesrv, schemas=str(schemas)) as running, browsing(running) as client:
        _is_shown(client, f"/messages/{receipt.message_id}?topic=avro-orders")


def _is_shown(client: httpx.Client, path: str) -> None:
    found = values(client, path)
    assert (found["body"]["kind"], json.loads(found["body"]["text"])) == (
        "avro",
        {"id": 7, "note": HOSTILE, "raw": None},
    )
    page = client.get(path).text
    assert is_text_only(page, HOSTILE.replace('"', '\\"')) or HOSTILE not in page
    assert ">Hexadecimal</a>" in page
    assert values(client, f"{path}&body=hex")["body"]["kind"] == "hex"
