"""Decoder of Protobuf bodies, by the descriptor set that `protoc --include_imports --descriptor_set_out=FILE` writes."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from metaq.errors import ConfigError
from metaq.spark.decode.batches import Decode, Plan, Value, by_batches, instant

Convert = Callable[[Any], Any]
"""Converts a value of the protobuf library to one that Arrow accepts."""

_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
}
_UNSIGNED_LONGS = {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}
_GOOGLE = "google.protobuf."
_WRAPPERS = {
    f"{_GOOGLE}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_AS_JSON = {f"{_GOOGLE}{kind}" for kind in ("Struct", "Value", "ListValue")}
_MICROS = 1_000_000
VALUES_MAX = 8 << 20
"""Most values per body. Two bytes can encode a message of a hundred fields: without a limit a body of 4 MiB takes gigabytes."""


class _Budget:
    """Counts the values of one body, and raises above VALUES_MAX."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VALUES_MAX

    def take(self, count: int) -> None:
        """Count values before they are made. Raises ValueError: too many."""
        self.left -= count
        if self.left < 0:
            raise ValueError(f"more than {VALUES_MAX} values")


def protobuf(descriptor_file: str | Path, message: str, column: Any = "body") -> Any:
    """Decode a Protobuf message: a struct of its fields and `_corrupt binary`.

    A body is corrupt if it is no protobuf message, if a string in it is not UTF-8, or if a required field is missing. The
    format itself is generous: an empty body is a message without fields, and fields that the type does not know are
    passed over.

    Args:
        descriptor_file: written by `protoc --include_imports --descriptor_set_out=FILE`. Read when this is called, on the
            driver.
        message: full name of the message type, `shop.Order`.
        column: name of the binary column, or a Column.

    Raises: ConfigError: not a descriptor set, or a type that is not in it, has no fields, or contains itself.
    """
    return by_batches(column, protobuf_plan(read_descriptors(descriptor_file), message, str(descriptor_file)))


def read_descriptors(path: str | Path) -> bytes:
    """Return a descriptor file's bytes. Raises ConfigError: it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as fault:
        raise ConfigError(f"cannot read the protobuf descriptors in {path}: {fault}") from fault


def protobuf_plan(descriptors: bytes, message: str, where: str) -> Plan:
    """Return the decoder plan of `protobuf`. `where`: the descriptors' file, for errors. Raises ConfigError as `protobuf`."""
    return Plan(columns(descriptors, message, where), decoder, (descriptors, message))


def columns(descriptors: bytes, message: str, where: str) -> pa.StructType:
    """Return the fields of a message type. `where`: the descriptors' file, for errors. Raises ConfigError as `protobuf`."""
    kind, _ = _message(_find(descriptors, message, where), (), _Budget())
    if not pa.types.is_struct(kind):
        raise ConfigError(f"the protobuf type {message} has no fields of its own: take it from a field of another type")
    return kind


def decoder(descriptors: bytes, message: str) -> Decode:
    """Return a function that decodes one body. Called once per task."""
    found = _find(descriptors, message, "the descriptor file")
    budget = _Budget()
    _, convert = _message(found, (), budget)
    make = message_factory.GetMessageClass(found)

    def decode(body: bytes) -> Value:
        parsed = make()
        parsed.MergeFromString(body)
        if not parsed.IsInitialized():
            raise DecodeError("a required field is missing")
        budget.left = VALUES_MAX
        value: Value = convert(parsed)
        return value

    return decode


def _find(descriptors: bytes, message: str, where: str) -> Descriptor:
    # A pool of its own: the process's default pool refuses a second version of a file.
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError, ValueError) as fault:
        raise ConfigError(
            f"{where} is no whole set of protobuf descriptors: make it with "
            f"protoc --include_imports --descriptor_set_out=FILE ({fault})"
        ) from fault
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        packages = {f"{file.package}." if file.package else "" for file in files.file}
        names = sorted(
            (f"{file.package}." if file.package else "") + kind.name
            for file in files.file
            for kind in file.message_type
            if not file.package.startswith(_GOOGLE.rstrip("."))
        )
        near = next((prefix + message for prefix in packages if prefix + message in names), None)
        hint = f"is it {near}?" if near else f"there are {', '.join(names[:20]) or 'none'}"
        raise ConfigError(f"{where} has no message type {message}: {hint}") from None


def _message(kind: Descriptor, around: tuple[str, ...], budget: _Budget) -> tuple[pa.DataType, Convert]:
    """Return the Arrow type of a message type and the conversion of its messages. `around`: enclosing types."""
    name = kind.full_name
    if name == f"{_GOOGLE}Timestamp":
        return pa.timestamp("us", tz="UTC"), lambda message: instant(_micros(message))
    if name == f"{_GOOGLE}Duration":
        return pa.duration("us"), _micros
    if name in _WRAPPERS:
        inner, convert = _single(kind.fields_by_name["value"], around, budget)
        return inner, lambda message: convert(message.value)
    if name in _AS_JSON:
        return pa.string(), lambda message: json_format.MessageToJson(message, indent=None, ensure_ascii=False)
    if name in around:
        raise ConfigError(
            f"the protobuf type {name} holds itself, {' > '.join((*around, name))}: no column can nest without end"
        )
    # A struct without fields is no column: a Boolean says that the message is there.
    if not kind.fields:
        return pa.bool_(), lambda _: True
    fields: list[pa.Field] = []
    converts: list[tuple[str, bool, Convert]] = []
    for field in kind.fields:
        inner, convert = _field(field, (*around, name), budget)
        fields.append(pa.field(field.name, inner))
        converts.append((field.name, field.has_presence and not field.is_repeated, convert))

    def whole(message: Any) -> Value:
        budget.take(len(converts))
        return {
            name: None if may_lack and not message.HasField(name) else convert(getattr(message, name))
            for name, may_lack, convert in converts
        }

    return pa.struct(fields), whole


def _field(field: FieldDescriptor, around: tuple[str, ...], budget: _Budget) -> tuple[pa.DataType, Convert]:
    if not field.is_repeated:
        return _single(field, around, budget)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key_type, key_of = _single(entry.fields_by_name["key"], around, budget)
        value_type, value_of = _single(entry.fields_by_name["value"], around, budget)

        def pairs(mapping: Any) -> list[tuple[Any, Any]]:
            budget.take(2 * len(mapping))
            # Sorted: the order of a protobuf map is undefined.
            return [(key_of(key), value_of(mapping[key])) for key in sorted(mapping)]

        return pa.map_(key_type, value_type), pairs
    kind, convert = _single(field, around, budget)

    def values(items: Any) -> list[Any]:
        budget.take(len(items))
        return [convert(item) for item in items]

    return pa.list_(kind), values


def _single(field: FieldDescriptor, around: tuple[str, ...], budget: _Budget) -> tuple[pa.DataType, Convert]:
    if field.message_type is not None:
        return _message(field.message_type, around, budget)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # proto3 keeps numbers that the enum does not name.
        return pa.string(), lambda number: names.get(number) or str(number)
    if field.type in _UNSIGNED_LONGS:  # Spark has no unsigned types.
        return pa.decimal128(20, 0), decimal.Decimal
    return _SCALARS[field.type], _same


def _same(value: Any) -> Any:
    return value


def _micros(message: Any) -> int:
    """Return the microseconds of a Timestamp, since 1970, or of a Duration."""
    return int(message.seconds) * _MICROS + int(message.nanos) // 1000
