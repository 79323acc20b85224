"""The file that says which topics have which schema."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from metaq.errors import ConfigError

FORMATS: Final = ("avro", "protobuf")


class Decoder(Struct, frozen=True):
    """`format`: one of FORMATS. `decode`: returns a body as JSON; raises ValueError: it is not of the schema."""

    format: str
    decode: Callable[[bytes], str]


class AvroSchema(Struct, frozen=True, forbid_unknown_fields=True, tag="avro", tag_field="format"):
    """`schema`: file of the schema, JSON. `framing`: what stands in front of a record."""

    schema: str
    framing: str = "plain"


class ProtobufSchema(Struct, frozen=True, forbid_unknown_fields=True, tag="protobuf", tag_field="format"):
    """`descriptors`: file of `protoc --include_imports --descriptor_set_out`. `message`: full name of the type."""

    descriptors: str
    message: str


class SchemaFile(Struct, frozen=True, forbid_unknown_fields=True):
    topics: dict[str, AvroSchema | ProtobufSchema] = {}


def read_schemas(path: str | None) -> Mapping[str, Decoder]:
    """Return topic → how its bodies are decoded. Raises ConfigError: the file, or one that it names, cannot be used; a package is missing."""
    if path is None:
        return {}
    try:
        text = Path(path).read_text()
        found = msgspec.convert(tomllib.loads(text), SchemaFile)
    except OSError as error:
        raise ConfigError(f"the schemas in {path} cannot be read: {error}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} does not say which topics have which schema: {error}") from None
    folder = Path(path).parent
    return {topic: _decoder(one, folder, f"{path}, topic {topic}") for topic, one in found.topics.items()}


def _decoder(one: AvroSchema | ProtobufSchema, folder: Path, where: str) -> Decoder:
    try:
        if isinstance(one, AvroSchema):
            from metaq.dashboard.decoding.avro import avro_decoder

            return Decoder("avro", avro_decoder(_read(folder / one.schema, where), one.framing, where))
        from metaq.dashboard.decoding.protobuf import protobuf_decoder

        return Decoder("protobuf", protobuf_decoder(_read(folder / one.descriptors, where), one.message, where))
    except ImportError as error:
        raise ConfigError(f"{where}: this needs the package {error.name}: pip install 'pymetaq[decode]'") from None


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error}") from None
