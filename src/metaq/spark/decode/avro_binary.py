"""Decoder of Avro bodies: plain, with the single-object header, or with the 5-byte header of Confluent's serializers."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import fastavro
import msgspec

from metaq.errors import ConfigError
from metaq.spark.decode import avro_schema
from metaq.spark.decode.batches import Decode, Plan, Value, by_batches

Framing = Literal["plain", "single-object", "confluent"]
FRAMINGS = ("plain", "single-object", "confluent")
_SINGLE_OBJECT, _CONFLUENT = b"\xc3\x01", b"\x00"
_FINGERPRINT_BYTES, _ID_BYTES = 8, 4

_LOG = logging.getLogger(__name__)


class Writers(msgspec.Struct, frozen=True):
    """Writer schemas by the key in a body's header. As JSON texts: they are pickled and sent to workers."""

    by_key: dict[bytes, str]
    """Fingerprint (8 bytes) or id (4 bytes), as in the body; the empty key is the schema of plain bodies."""


def avro(
    schema: str | Mapping[str, Any] | None = None,
    column: Any = "body",
    *,
    registry_file: str | Path | None = None,
    framing: Framing | None = None,
) -> Any:
    """One Avro record: a struct of the fields of `schema` and `_corrupt binary`.

    A body is corrupt if it does not fit its schema to its last byte, if its header names a schema that is not known, or if
    its schema cannot be resolved to `schema`.

    Args:
        schema: Avro JSON, as text or as Python values, of a record: the reader schema, whose fields are the columns; without
            a registry also the writer schema. May be left out if the registry has a single schema.
        column: name of the binary column, or a Column.
        registry_file: writer schemas, JSON: `{"7": SCHEMA, "63dd24e7cc258f8a": SCHEMA}`, by the ids of Confluent's registry,
            or by the CRC-64-AVRO fingerprint; a list of schemas does for the latter. Read when this is called, on the
            driver: workers need no such file.
        framing: `plain`: the body is the record. `single-object`: `C3 01` and the fingerprint are before it.
            `confluent`: `00` and the id are. By default `single-object` with a registry file, else `plain`.

    Raises: ConfigError: a schema or file that cannot be read or has no columns, a framing that lacks its registry.
    """
    return by_batches(column, avro_plan(schema, registry_file=registry_file, framing=framing))


def avro_plan(
    schema: str | Mapping[str, Any] | None = None,
    *,
    registry_file: str | Path | None = None,
    framing: Framing | None = None,
) -> Plan:
    """Return the decoder plan of `avro`. Raises ConfigError as that does."""
    framing = framing or ("single-object" if registry_file is not None else "plain")
    if framing not in FRAMINGS:
        raise ConfigError(f"decode.avro knows no framing {framing!r}: it is {', '.join(FRAMINGS)}")
    if framing == "plain" and registry_file is not None:
        raise ConfigError("plain Avro bodies do not say which schema of a registry file they were written with")
    if framing == "confluent" and registry_file is None:
        raise ConfigError("Confluent's header holds an id: decode.avro needs the registry_file that says whose")
    stored = [] if registry_file is None else _registry(Path(registry_file))
    if schema is None:
        texts = {json.dumps(each) for _, each in stored}
        if len(texts) != 1:
            raise ConfigError(
                f"decode.avro needs the schema whose fields are the columns: {registry_file} holds {len(texts)}"
                if stored
                else "decode.avro needs a schema"
            )
        schema = json.loads(texts.pop())
    reader = _json(schema, "the schema of decode.avro") if isinstance(schema, str) else schema
    known, named = avro_schema.parsed(reader, "the schema of decode.avro")
    if not isinstance(known, dict) or known["type"] not in {"record", "error"}:
        raise ConfigError("decode.avro takes the schema of a record, whose fields are the columns")
    _check(known, named, "the schema of decode.avro")
    kind, _ = avro_schema.column(known, named, "")
    writers = _writers(framing, stored, reader, str(registry_file))
    return Plan(kind, decoder, (json.dumps(reader), framing, writers))


def avro_plan_of(reader: str, framing: Framing, writers: Writers) -> Plan:
    """Return the plan again from the arguments that `avro_plan` found and that were saved. Raises ConfigError."""
    known, named = avro_schema.parsed(json.loads(reader), "the schema of decode.avro")
    kind, _ = avro_schema.column(known, named, "")
    return Plan(kind, decoder, (reader, framing, writers))


def decoder(reader: str, framing: Framing, writers: Writers) -> Decode:
    """Return a function that decodes one body. Called once per task."""
    schema, named = avro_schema.parsed(json.loads(reader), "the schema of decode.avro")
    _, convert = avro_schema.column(schema, named, "")
    plain_reader = fastavro.parse_schema(avro_schema.bare(json.loads(reader)))
    schemas = {key: fastavro.parse_schema(avro_schema.bare(json.loads(text))) for key, text in writers.by_key.items()}
    # No schema resolution, which costs time.
    same = {key for key, each in schemas.items() if each == plain_reader}
    mark, size = {
        "plain": (b"", 0),
        "single-object": (_SINGLE_OBJECT, _FINGERPRINT_BYTES),
        "confluent": (_CONFLUENT, _ID_BYTES),
    }[framing]
    start = len(mark) + size

    def decode(body: bytes) -> Value:
        key = body[len(mark) : start]
        if not body.startswith(mark) or key not in schemas:
            raise ValueError("no header, or that of a schema which is not known")
        stream = io.BytesIO(body)
        stream.seek(start)
        value: Value = fastavro.schemaless_reader(stream, schemas[key], None if key in same else plain_reader)
        # fastavro stops behind the record, so a body of another schema may look whole.
        if stream.tell() != len(body):
            raise ValueError("bytes behind the record")
        return value if convert is None else convert(value)

    return decode


def fingerprint(schema: Any) -> bytes:
    """Return the CRC-64-AVRO of the schema's canonical form, little-endian, as in a body's header."""
    text = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(fastavro.schema.fingerprint(text, "CRC-64-AVRO"))


def _writers(framing: Framing, stored: list[tuple[str, Any]], reader: Any, where: str) -> Writers:
    if framing == "plain":
        return Writers({b"": json.dumps(reader)})
    if not stored:
        return Writers({fingerprint(reader): json.dumps(reader)})
    by_key: dict[bytes, str] = {}
    for name, schema in stored:
        whose = f"schema {name} of {where}"
        known, named = avro_schema.parsed(schema, whose)
        mark = fingerprint(schema)
        # 16 decimal digits are a fingerprint in hex; an id has at most 10.
        as_id = name.isdecimal() and len(name) < 2 * _FINGERPRINT_BYTES
        # Tools write the fingerprint as a number, bodies have it little-endian: either order is accepted.
        if not as_id and name.lower() not in {mark.hex(), mark[::-1].hex(), ""}:
            raise ConfigError(f"{whose} has another fingerprint: {mark[::-1].hex()}")
        try:
            avro_schema.smallest(known, named)
        except ConfigError as fault:
            _LOG.warning("%s: %s, so bodies that were written with it go to _corrupt", whose, fault)
            continue
        if framing == "single-object":
            by_key[mark] = json.dumps(schema)
        elif as_id:
            by_key[int(name).to_bytes(_ID_BYTES, "big")] = json.dumps(schema)
    if not by_key:
        raise ConfigError(f"{where} holds no schema for bodies with the framing {framing}")
    return Writers(by_key)


def _registry(path: Path) -> list[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as fault:
        raise ConfigError(f"cannot read the Avro schemas in {path}: {fault}") from fault
    content = _json(text, str(path))
    if isinstance(content, list):
        return [("", schema) for schema in content]
    if not isinstance(content, dict) or "type" in content:
        raise ConfigError(f"{path} must hold schemas by id or fingerprint, or a list of schemas")
    for name in content:
        is_id = name.isdecimal() and len(name) < 2 * _FINGERPRINT_BYTES and int(name) < 1 << 8 * _ID_BYTES
        if not is_id and not _is_hex(name):
            raise ConfigError(
                f"{path} has a schema {name!r}, which is neither an id nor a fingerprint of 16 hex digits"
            )
    # A schema may be a JSON text in the JSON file, as Confluent's registry returns it.
    return [
        (name, _json(each, f"schema {name} of {path}") if _is_text(each) else each) for name, each in content.items()
    ]


def _is_hex(name: str) -> bool:
    return len(name) == 2 * _FINGERPRINT_BYTES and all(char in "0123456789abcdefABCDEF" for char in name)


def _is_text(schema: Any) -> bool:
    return isinstance(schema, str) and schema.lstrip().startswith(("{", "["))


def _json(text: str, whose: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise ConfigError(f"{whose} is no JSON: {fault}") from fault


def _check(known: Any, named: dict[str, Any], whose: str) -> None:
    try:
        avro_schema.smallest(known, named)
    except ConfigError as fault:
        raise ConfigError(f"{whose} cannot be read from bodies of just anybody: {fault}") from fault
