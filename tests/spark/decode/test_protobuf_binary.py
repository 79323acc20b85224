"""Protobuf bodies, by descriptor files as `protoc` writes them."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.spark import decode
from metaq.spark.decode import protobuf_binary
from metaq.spark.decode.batches import struct_array
from metaq.spark.decode.protobuf_binary import columns, decoder

Field = descriptor_pb2.FieldDescriptorProto
KNOWN = (duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
GOOGLE = ".google.protobuf."


def field(kind, name, number, what, **more):
    """A field: `what` is a type of the language, or the name of a message or enum, which begins with a dot."""
    new = kind.field.add(name=name, number=number, label=more.pop("label", Field.LABEL_OPTIONAL))
    if what.startswith("."):
        new.type = Field.TYPE_ENUM if what == ".shop.Kind" else Field.TYPE_MESSAGE
        new.type_name = what
    else:
        new.type = Field.Type.Value(f"TYPE_{what.upper()}")
    for option, value in more.items():
        setattr(new, option, value)


def descriptors():
    """What `protoc --include_imports` would write for a shop's two files."""
    files = descriptor_pb2.FileDescriptorSet()
    for module in KNOWN:
        module.DESCRIPTOR.CopyToProto(files.file.add())
    shop = files.file.add(
        name="shop.proto", package="shop", syntax="proto3", dependency=[file.name for file in files.file]
    )
    kinds = shop.enum_type.add(name="Kind")
    for number, name in enumerate(["NEW", "OLD"]):
        kinds.value.add(name=name, number=number)
    line = shop.message_type.add(name="Line")
    field(line, "n", 1, "float")
    field(line, "kind", 2, ".shop.Kind")
    order = shop.message_type.add(name="Order")
    for number, name in enumerate(
        ["double", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32", "sfixed32",
         "sfixed64", "sint32", "sint64"], start=1,
    ):  # fmt: skip
        field(order, f"a_{name}", number, name)
    field(order, "kind", 20, ".shop.Kind")
    field(order, "lines", 21, ".shop.Line", label=Field.LABEL_REPEATED)
    field(order, "numbers", 22, "int32", label=Field.LABEL_REPEATED)
    entry = order.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, "string")
    field(entry, "value", 2, ".shop.Line")
    field(order, "by_name", 23, ".shop.Order.ByNameEntry", label=Field.LABEL_REPEATED)
    order.oneof_decl.add(name="choice")
    field(order, "one", 24, "int32", oneof_index=0)
    field(order, "other", 25, "string", oneof_index=0)
    for number, name in enumerate(["Timestamp", "Duration", "Struct", "Int32Value", "StringValue", "Empty"], start=30):
        field(order, f"g_{name.lower()}", number, f"{GOOGLE}{name}")
    order.oneof_decl.add(name="_maybe")
    field(order, "maybe", 40, "int32", oneof_index=1, proto3_optional=True)
    field(shop.message_type.add(name="Tree"), "children", 1, ".shop.Tree", label=Field.LABEL_REPEATED)
    shop.message_type.add(name="Nothing")
    field(shop.message_type.add(name="Holds"), "_corrupt", 1, "int32")
    field(shop.message_type.add(name="Many"), "items", 1, ".shop.Order", label=Field.LABEL_REPEATED)
    test = files.file.add(name="old.proto", package="old", syntax="proto2").message_type.add(name="Test")
    field(test, "a", 1, "int32", label=Field.LABEL_REQUIRED)
    field(test, "b", 2, "string", default_value="none")
    return files


FILES = descriptors()
EMPTY = {
    "a_double": 0.0, "a_int64": 0, "a_uint64": decimal.Decimal(0), "a_int32": 0, "a_fixed64": decimal.Decimal(0), "a_fixed32": 0,
    "a_bool": False, "a_string": "", "a_bytes": b"", "a_uint32": 0, "a_sfixed32": 0, "a_sfixed64": 0, "a_sint32": 0,
    "a_sint64": 0, "kind": "NEW", "lines": [], "numbers": [], "by_name": [], "one": None, "other": None, "g_timestamp": None,
    "g_duration": None, "g_struct": None, "g_int32value": None, "g_stringvalue": None, "g_empty": None, "maybe": None,
}  # fmt: skip


def message(name, **fields):
    """A message of the descriptors, made by the library itself."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in FILES.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**fields)


def full():
    order = message(
        "shop.Order", a_uint64=2**64 - 1, a_fixed64=2**63, a_uint32=2**32 - 1, a_string="é", a_bytes=b"\xff"
    )
    order.kind = 7
    order.lines.add(n=0.5, kind="OLD")
    order.numbers.extend([1, -2])
    order.by_name["b"].n = 2
    order.by_name["a"].kind = 1
    order.other = ""
    order.g_timestamp.FromDatetime(dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC))
    order.g_duration.seconds = 3
    order.g_struct["x"] = [1, None]
    order.g_int32value.value = 0
    order.g_stringvalue.value = "s"
    order.g_empty.SetInParent()
    order.maybe = 0
    return order


FULL = EMPTY | {
    "a_uint64": decimal.Decimal(2**64 - 1), "a_fixed64": decimal.Decimal(2**63), "a_uint32": 2**32 - 1, "a_string": "é",
    "a_bytes": b"\xff", "kind": "7", "lines": [{"n": 0.5, "kind": "OLD"}], "numbers": [1, -2],
    "by_name": [("a", {"n": 0.0, "kind": "OLD"}), ("b", {"n": 2.0, "kind": "NEW"})], "other": "",
    "g_timestamp": dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC), "g_duration": dt.timedelta(0, 3),
    "g_struct": '{"x": [1.0, null]}', "g_int32value": 0, "g_stringvalue": "s", "g_empty": True, "maybe": 0,
}  # fmt: skip


def read(name, bodies):
    """What each body became: its fields, or None for corrupt."""
    data = FILES.SerializeToString()
    return struct_array(pa.array(bodies, pa.binary()), decoder(data, name), columns(data, name, "FILE")).to_pylist()


def test_the_examples_of_the_formats_own_page_are_read():
    """a = 150; b = "testing"; a required field that is missing makes a body corrupt, one that is unknown does not."""
    a, b = bytes.fromhex("089601"), bytes.fromhex("120774657374696e67")
    both = {"a": 150, "b": "testing"}
    assert read("old.Test", [a, a + b, b + a, b, a + b"\x18\x01", b"", None]) == [
        {"a": 150, "b": None}, both, both, None, {"a": 150, "b": None}, None, None,
    ]  # fmt: skip


def test_every_kind_of_field_has_its_column():
    """Presence is null where the language has it, the zero where it has not; an unknown number of an enum is that number."""
    assert read("shop.Order", [full().SerializeToString(), b""]) == [FULL, EMPTY]


def test_what_is_no_message_is_corrupt_by_itself():
    """Cut off, a string that is not UTF-8, a wrong end of group, a length of 2 GiB, a nesting of 100 000 groups, the year 10 000."""
    whole = full().SerializeToString()
    bad = [
        whole[:-1],
        b"\x42\x01\xff",
        b"\x0c",
        b"\x4a\xff\xff\xff\xff\x07" + b"x" * 50,
        b"\x0b" * 100_000,
        b"\xff" * (4 << 20),
    ]
    late = message("shop.Order")
    late.g_timestamp.seconds = 253_402_300_800
    bad.append(late.SerializeToString())
    rows = read("shop.Order", [whole, *bad, whole])
    assert rows == [FULL, *[None] * len(bad), FULL]


def test_a_body_whose_fields_take_far_more_than_its_bytes_is_corrupt():
    """Messages without a byte, of 27 fields: 100 KB would become 13 MB."""
    good, bomb = b"\x0a\x00" * 2, b"\x0a\x00" * 50_000
    assert read("shop.Many", [good, bomb, good]) == [{"items": [EMPTY, EMPTY]}, None, {"items": [EMPTY, EMPTY]}]


def test_a_body_of_more_values_than_a_worker_can_hold_is_given_up_early(monkeypatch):
    """Counted over lists within lists, and anew for each body."""
    monkeypatch.setattr(protobuf_binary, "VALUES_MAX", 200)
    small, large = b"\x0a\x00" * 6, b"\x0a\x00" * 8
    assert read("shop.Many", [small, large, small]) == [{"items": [EMPTY] * 6}, None, {"items": [EMPTY] * 6}]


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_give_a_row_each(bodies):
    """Fields or nothing, in their places; those between are not touched."""
    whole = full().SerializeToString()
    damaged = [whole[: len(body)] + body + whole[len(body) :] for body in bodies]
    rows = read("shop.Order", [*bodies, whole, *damaged])
    assert len(rows) == 2 * len(bodies) + 1
    assert rows[len(bodies)] == FULL


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Order", r"has no message type Order: is it shop\.Order\?"),
        ("nonsense", r"no message type nonsense: there are old\.Test, shop\.Holds, shop\.Line"),
        ("shop.Tree", r"shop\.Tree holds itself, shop\.Tree > shop\.Tree"),
        ("shop.Nothing", r"shop\.Nothing has no fields"),
        ("google.protobuf.Timestamp", r"google\.protobuf\.Timestamp has no fields of its own"),
        ("shop.Holds", "a field _corrupt"),
    ],
)
def test_a_type_without_columns_is_refused_in_one_sentence(name, text, tmp_path):
    """Before any query, and without Spark."""
    file = tmp_path / "shop.desc"
    file.write_bytes(FILES.SerializeToString())
    with pytest.raises(ConfigError, match=text):
        decode.protobuf(file, name)


def test_a_file_that_is_no_whole_descriptor_set_is_named(tmp_path):
    """Away, not one, or without the files that it imports: then the way to make one is said."""
    file = tmp_path / "shop.desc"
    with pytest.raises(ConfigError, match=r"cannot read the protobuf descriptors in .*shop\.desc"):
        decode.protobuf(file, "shop.Order")
    alone = descriptor_pb2.FileDescriptorSet(file=[file for file in FILES.file if file.name == "shop.proto"])
    for content in (b"\xff\xff", alone.SerializeToString()):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"shop\.desc is no whole set .* protoc --include_imports"):
            decode.protobuf(file, "shop.Order")
