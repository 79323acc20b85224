"""Options of the archive's decoding of bodies."""

from __future__ import annotations

from dataclasses import dataclass, fields

from metaq.errors import ConfigError
from metaq.option_table import OptionTable, camel, option

FORMATS = ("json", "avro", "protobuf", "utf8", "hessian")
_FITS = {
    "decode_schema": ("json",),
    "decode_schema_file": ("json", "avro", "protobuf"),
    "decode_message": ("protobuf",),
    "decode_registry_file": ("avro",),
    "decode_framing": ("avro",),
}
"""Option → formats that use it."""


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(OptionTable):
    """Options of decoding bodies into columns."""

    decode: str | None = option(
        None,
        "Format by which bodies are decoded into the columns of the struct `decoded`; a body that cannot be decoded goes to "
        "`_corrupt`. Default: bodies are not decoded.",
        choices=FORMATS,
    )
    decode_schema: str | None = option(None, "Columns of JSON bodies, such as `id bigint, tags array<string>`.")
    decode_schema_file: str | None = option(
        None,
        "Path of a file with the schema: the columns for JSON, an Avro schema, or protoc's descriptor set for Protobuf.",
    )
    decode_message: str | None = option(None, "Full name of the type of Protobuf bodies, such as `shop.Order`.")
    decode_registry_file: str | None = option(
        None,
        "Path of a file with the schemas by which Avro bodies were written, by id or fingerprint (docs/decoding.md).",
    )
    decode_framing: str | None = option(
        None, "What an Avro body has before the record.", choices=("plain", "single-object", "confluent")
    )
    keep_body: bool = option(True, "Archive the body itself, too; without it a decoded archive cannot be replayed.")

    def check_decoding(self) -> None:
        """Validate the decoding options. Raises ConfigError: an option that the format does not use, or a missing one."""
        given = {item.name for item in fields(self) if item.name in _FITS and getattr(self, item.name) is not None}
        if self.decode is None:
            if wrong := sorted(given):
                raise ConfigError(
                    f"{camel(wrong[0])} is for decoded bodies: say decode={' or '.join(_FITS[wrong[0]])} too"
                )
            if not self.keep_body:
                raise ConfigError(
                    "keepBody=false keeps nothing of what was sent: say with decode what is archived instead"
                )
            return
        for name in sorted(given):
            if self.decode not in _FITS[name]:
                raise ConfigError(f"{camel(name)} is for decode={' or '.join(_FITS[name])}, not for {self.decode}")
        if self.decode == "json" and ("decode_schema" in given) == ("decode_schema_file" in given):
            raise ConfigError("decode=json needs the columns: decodeSchema, or decodeSchemaFile, one of both")
        if self.decode == "avro" and not given & {"decode_schema_file", "decode_registry_file"}:
            raise ConfigError("decode=avro needs decodeSchemaFile, an Avro schema")
        if self.decode == "protobuf":
            for name in ("decode_schema_file", "decode_message"):
                if name not in given:
                    raise ConfigError(
                        f"decode=protobuf needs {camel(name)}: a descriptor file of protoc and the name of a type in it"
                    )
