"""Avro bodies. A schema by which a small body could become a huge value, or an endless one, is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import fastavro

from metaq.dashboard.decoding.json_text import as_json
from metaq.errors import ConfigError

HEADER_BYTES: Final = {"plain": 0, "confluent": 5, "single-object": 10}
"""Framing → bytes in front of the record: a mark and the number, or the fingerprint, of its schema, which is taken to be the one given."""
_MARKS: Final = {"plain": b"", "confluent": b"\x00", "single-object": b"\xc3\x01"}
_DEPTH_MAX: Final = 100
_SMALLEST: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def avro_decoder(schema: bytes, framing: str, where: str) -> Callable[[bytes], str]:
    """Return a function that decodes one body. `where`: for errors. Raises ConfigError: no schema, or one that is refused."""
    if framing not in HEADER_BYTES:
        raise ConfigError(f"{where}: there is no framing {framing!r}: it is {', '.join(HEADER_BYTES)}")
    try:
        parsed = fastavro.parse_schema(json.loads(schema))
        _smallest(parsed, {}, ())
    except (ValueError, KeyError, TypeError, RecursionError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"{where}: this is no Avro schema that can be used: {error}") from None
    mark, start = _MARKS[framing], HEADER_BYTES[framing]

    def decode(body: bytes) -> str:
        if len(body) < start or not body.startswith(mark):
            raise ValueError(f"it does not begin as Avro of the framing {framing}")
        stream = io.BytesIO(body)
        stream.seek(start)
        try:
            value = fastavro.schemaless_reader(stream, parsed, None)
        except Exception as error:  # noqa: BLE001  fastavro raises whatever a body leads it to
            raise ValueError(f"{type(error).__name__}: {error}") from None
        # fastavro stops behind the record, so a body of another schema may look whole.
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes stand behind the record")
        return as_json(value)

    return decode


def _smallest(schema: Any, named: dict[str, Any], around: tuple[str, ...]) -> int:
    """Return the fewest bytes of a value. Raises ConfigError: items of no bytes, of which a list has any number; or endless nesting."""
    if len(around) > _DEPTH_MAX:
        raise ConfigError(f"it is nested more than {_DEPTH_MAX} levels deep")
    if isinstance(schema, list):
        return 1 + min((_smallest(one, named, (*around, "")) for one in schema), default=0)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        return _smallest(kind, named, (*around, ""))
    if kind in _SMALLEST:
        return _SMALLEST[kind]
    if kind in {"array", "map"}:
        size = _smallest(schema["items" if kind == "array" else "values"], named, (*around, ""))
        if kind == "array" and size == 0:
            raise ConfigError("it has an array of items that take no bytes, of which a small body may have billions")
        return 1
    if kind in {"fixed", "enum", "record", "error"}:
        named[schema["name"]] = schema
    else:
        schema = named[kind]
        kind = schema["type"]
    if kind in {"fixed", "enum"}:
        return int(schema["size"]) if kind == "fixed" else 1
    name = schema["name"]
    if name in around:
        raise ConfigError(f"its record {name} holds itself")
    return sum(_smallest(field["type"], named, (*around, name)) for field in schema["fields"])
