"""Bodies of the archive as columns: parsing the options, the check against archived columns, and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sql
from pyspark.sql import types

from metaq.archive.decoding import (
    CORRUPT,
    DECODED,
    Decoding,
    forget_decodings,
    newest_decoding,
    save_decoding,
)
from metaq.archive.folder import ArchiveFolder
from metaq.client.arrow import records
from metaq.errors import ConfigError
from metaq.pipelines.archive.archived_rows import marked
from metaq.pipelines.archive.decoding_options import DecodeOptions
from metaq.spark import schema
from metaq.spark.decode.batches import Build, Plan, spark_type, struct_array, value_of
from metaq.spark.decode.hessian1 import hessian_plan
from metaq.spark.decode.json_text import columns_of_schema
from metaq.spark.decode.typed_json import json_plan
from metaq.spark.decode.utf8 import utf8_plan

_TEXT_MAX = 200
"""Characters of a type in an error text."""


@dataclass(frozen=True, slots=True)
class BodyColumns:
    """Decoder of bodies into columns. Plain values: it is pickled for the workers."""

    plan: Plan
    """Decoder of one body."""
    keep_body: bool = True
    """Whether the column `body` stays."""

    @classmethod
    def of(cls, decoding: Decoding) -> Self:
        """Make it from the archive's record of its decoding. Raises ConfigError: a library is missing."""
        return cls(plan_of(decoding), decoding.keep_body)

    def schema(self, plain: pa.Schema) -> pa.Schema:
        """Return the schema of the archived files, from that of messages."""
        kept = [field for field in plain if self._keeps(field.name)]
        # In a struct: no field can have the name of a column, nor of one that a later release adds.
        return pa.schema([*kept, pa.field(DECODED, self.plan.kind), pa.field(CORRUPT, pa.binary())])

    def ready(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function that decodes a batch, for one task. No body makes it raise."""
        decode = self.plan.make(*self.plan.arguments)

        def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
            bodies = batch.column("body")
            # What is still compressed is no body, whatever a decoder makes of it.
            unread = marked(batch)
            read = pc.if_else(pa.array(unread), pa.scalar(None, pa.binary()), bodies) if unread.any() else bodies
            found = struct_array(read, decode, self.plan.kind, self.plan.build)
            corrupt = pc.if_else(found.is_null(), bodies, pa.scalar(None, pa.binary()))
            kept = [name for name in batch.schema.names if self._keeps(name)]
            return pa.RecordBatch.from_arrays(
                [*(batch.column(name) for name in kept), found, corrupt], schema=self.schema(batch.schema)
            )

        return columns

    def spark_columns(self, columns: Sequence[str]) -> types.StructType:
        """Return Spark's schema for archived files of any age: the given columns of messages, and today's decoded ones."""
        plain = types.StructType.fromDDL(schema.ddl(records.schema_of([name for name in columns if self._keeps(name)])))
        return plain.add(DECODED, spark_type(self.plan.kind)).add(CORRUPT, types.BinaryType())

    def expanded(self, frame: Any) -> Any:
        """Return a DataFrame of live messages with the same columns as archived ones."""
        # By the archive's decoder and not Spark's `from_json`: both parts of a table must agree on every body.
        value = value_of(self.plan, sql.col("body"))
        found = frame.withColumn(DECODED, value).withColumn(
            CORRUPT, sql.when(sql.col(DECODED).isNull(), sql.col("body"))
        )
        return found if self.keep_body else found.drop("body")

    def _keeps(self, name: str) -> bool:
        return self.keep_body or name != "body"


def corrupt_in(path: Path) -> int:
    """Return the number of bodies in a file that did not decode: from its statistics, or without decoding from `sys_flag`."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = [file.schema.column(number).path for number in range(len(file.schema))]
        if CORRUPT not in names:
            return int(np.count_nonzero(marked(file.read(["sys_flag"]))))
        at = names.index(CORRUPT)
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        return sum(group.num_rows - group.column(at).statistics.null_count for group in groups if group.num_rows)


# ------------------------------------------------------------------ what is wanted
def wanted(options: DecodeOptions) -> Decoding | None:
    """Return the decoding that the options, and the files they name, ask for; None: none. Raises ConfigError."""
    if options.decode is None:
        return None
    given: dict[str, Any] = {}
    # The schemas themselves and not their paths: the files may be gone when the archive goes on.
    if options.decode == "json":
        text = options.decode_schema or _text(str(options.decode_schema_file))
        given["schema"] = columns_of_schema(" ".join(text.split())).simpleString()
    elif options.decode == "avro":
        # Lazily: it needs an extra, like protobuf below.
        from metaq.spark.decode import avro_binary

        reading = _text(options.decode_schema_file) if options.decode_schema_file is not None else None
        framing = cast("avro_binary.Framing | None", options.decode_framing)
        plan = avro_binary.avro_plan(reading, registry_file=options.decode_registry_file, framing=framing)
        reader, found, writers = plan.arguments
        given |= {"schema": reader, "framing": found}
        given["writers"] = {key.hex(): one for key, one in writers.by_key.items()}
    elif options.decode == "protobuf":
        from metaq.spark.decode import protobuf_binary

        given["descriptors"] = protobuf_binary.read_descriptors(str(options.decode_schema_file))
        given["message"] = options.decode_message
    decoding = Decoding(format=options.decode, keep_body=options.keep_body, **given)
    kind = str(plan_of(decoding).kind)
    return Decoding(format=options.decode, keep_body=options.keep_body, columns=kind, **given)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as fault:
        raise ConfigError(f"decodeSchemaFile: {path} cannot be read: {fault}") from None


def plan_of(decoding: Decoding) -> Plan:
    """Return the decoder of an archive's record. Raises ConfigError: a schema is wrong, or the extra `decode` is missing."""
    try:
        return _stored(_plan_of(decoding))
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.startswith("metaq"):
            raise
        raise ConfigError(
            f"decode={decoding.format} needs {fault.name}: pip install 'pymetaq[spark,decode]'"
        ) from fault


def _plan_of(decoding: Decoding) -> Plan:
    if decoding.format == "json":
        return json_plan(_arrow_type(columns_of_schema(decoding.schema), ""))
    if decoding.format == "avro":
        from metaq.spark.decode import avro_binary

        writers = avro_binary.Writers({bytes.fromhex(key): text for key, text in decoding.writers.items()})
        return avro_binary.avro_plan_of(decoding.schema, cast("avro_binary.Framing", decoding.framing), writers)
    if decoding.format == "protobuf":
        from metaq.spark.decode import protobuf_binary

        return protobuf_binary.protobuf_plan(decoding.descriptors, decoding.message, "the descriptor file")
    return utf8_plan() if decoding.format == "utf8" else hessian_plan()


# ------------------------------------------------------------------ what an archive has, and may get
def settle(folder: ArchiveFolder, options: DecodeOptions) -> BodyColumns | None:
    """Check the options' decoding against the archive's, and record it there. For the run that has the lease.

    Columns may be added and the format may change; types of archived columns may not.
    Raises: ConfigError: says what is different, and what to do. OSError.
    """
    new, old = wanted(options), newest_decoding(folder)
    plan = plan_of(new) if new is not None else None
    # No batch was archived with it: it binds nobody.
    if old is not None and folder.last() is None:
        if new != old:
            forget_decodings(folder)
        old = old if new == old else None
    if old is not None:
        _check_growth(folder, old, new, plan)
    if new is not None and new != old:
        save_decoding(folder, new)
    return None if new is None or plan is None else BodyColumns(plan, new.keep_body)


def _check_growth(folder: ArchiveFolder, old: Decoding, new: Decoding | None, plan: Plan | None) -> None:
    way = "Give what was there before, or an empty output folder with a checkpoint of its own"
    if new is None or plan is None:
        raise ConfigError(f"{folder.path} holds decoded bodies (decode={old.format}), and decode is not given. {way}.")
    if new.keep_body != old.keep_body:
        raise ConfigError(
            f"{folder.path} was begun with keepBody={str(old.keep_body).lower()}: an archive keeps that for ever. {way}."
        )
    if lost := _lost(plan_of(old).kind, plan.kind, DECODED):
        raise ConfigError(f"{folder.path} cannot go on with other columns: {lost}. Columns may only be added. {way}.")


def _lost(old: pa.DataType, new: pa.DataType, path: str) -> str | None:
    """Return the first thing of `old` that `new` lacks or changes, as a text; None: `new` only adds."""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        for field in old:
            at = new.get_field_index(field.name)
            if at < 0:
                return f"{path}.{field.name} is missing"
            if lost := _lost(field.type, new.field(at).type, f"{path}.{field.name}"):
                return lost
        return None
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _lost(old.value_type, new.value_type, f"{path}[]")
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        return _lost(old.item_type, new.item_type, f"{path}[]")
    return None if old == new else f"{path} is {_short(old)} in the archive, and was to be {_short(new)}"


def _short(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


# ------------------------------------------------------------------ types
def _stored(plan: Plan) -> Plan:
    """Return the plan with durations as microseconds: neither Spark nor Iceberg reads a duration from Parquet."""
    kind = _without_durations(plan.kind)
    if kind == plan.kind:
        return plan
    return Plan(kind, plan.make, plan.arguments, _Recast(plan.kind, plan.build))


@dataclass(frozen=True, slots=True)
class _Recast:
    """Builds arrays of one type and casts them to another of the same layout. A class, because it is pickled."""

    kind: pa.DataType
    build: Build

    def __call__(self, values: Any, kind: pa.DataType) -> pa.Array:
        return self.build(values, self.kind).cast(kind)


def _without_durations(kind: pa.DataType) -> Any:
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_durations(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_durations(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_without_durations(kind.key_type), _without_durations(kind.item_type))
    return kind


_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def _arrow_type(kind: types.DataType, path: str) -> Any:
    """Return the archived type of a Spark type. Raises ConfigError: JSON has no value of that type."""
    if isinstance(kind, types.StructType):
        return pa.struct(
            [pa.field(one.name, _arrow_type(one.dataType, f"{path}.{one.name}" if path else one.name)) for one in kind]
        )
    if isinstance(kind, types.ArrayType):
        return pa.list_(_arrow_type(kind.elementType, f"{path}[]"))
    if isinstance(kind, types.MapType):
        return pa.map_(_arrow_type(kind.keyType, f"{path}[]"), _arrow_type(kind.valueType, f"{path}[]"))
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    name = kind.simpleString()
    if name not in _ARROW:
        raise ConfigError(
            f"decodeSchema: {path} is {name}; an archive of JSON has {', '.join(_ARROW)}, decimal, array, map, struct"
        )
    return _ARROW[name]
