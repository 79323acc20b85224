"""Parser of Debezium's change events, JSON, with the schema envelope or without.

    {"schema": {...}, "payload": {"op": "u", "before": {...}, "after": {...}, "ts_ms": ...,
     "source": {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "lsn": 24023128, ...}}}

Without the envelope the body is the payload. `op` is c (insert), u, d, r (read by a snapshot); t is TRUNCATE, m a message of
the application. A body `null` is a tombstone for Kafka's compaction, which is ignored here. Heartbeats and the begin and end of
transactions have no `op`.

Only the envelope's schema has the types of values: without it, days, microseconds and base64 stay plain numbers and texts.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from metaq.pipelines.changes import kinds
from metaq.pipelines.changes.change import DELETE, INSERT, UPDATE, Change, NotAChange, Sequence_, Statement

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder for a large value that the database did not log because it had not changed."""

_OPS = {"c": INSERT, "r": INSERT, "u": UPDATE, "d": DELETE}
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  in no time zone, as the columns are
_PLAIN = {
    "int8": kinds.LONG, "int16": kinds.LONG, "int32": kinds.LONG, "int64": kinds.LONG, "float": kinds.DOUBLE,
    "float32": kinds.DOUBLE, "float64": kinds.DOUBLE, "double": kinds.DOUBLE, "boolean": kinds.BOOLEAN,
    "string": kinds.STRING, "bytes": kinds.BINARY,
}  # fmt: skip
_PER_SECOND = {
    "io.debezium.time.Timestamp": 1_000, "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1_000_000, "io.debezium.time.NanoTimestamp": 1_000_000_000,
}  # fmt: skip
_TIMES = {
    "io.debezium.time.Time": 1_000, "org.apache.kafka.connect.data.Time": 1_000,
    "io.debezium.time.MicroTime": 1_000_000, "io.debezium.time.NanoTime": 1_000_000_000,
}  # fmt: skip
_DATES = {"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def is_one(body: Mapping[str, Any]) -> bool:
    """Return whether a JSON object looks like a Debezium event."""
    inner = body.get("payload") if "payload" in body else body
    return inner is None or (isinstance(inner, dict) and isinstance(inner.get("source"), dict))


def changes(
    body: Mapping[str, Any], message_keys: Sequence[str], keys: Mapping[str, tuple[str, ...]]
) -> tuple[list[Change], Mapping[str, Any] | None]:
    """Return the changes of an event, without sequences, and its payload; no changes for events that are not about rows.

    Args:
        message_keys: the message's keys: Debezium's own key, a JSON object, if it was sent as such.
        keys: the option `keyColumns`, by table; overrides the message's key.

    Raises: NotAChange: not such an event. Statement: TRUNCATE or DDL.
    """
    payload = body.get("payload") if "payload" in body else body
    fields = _fields(body.get("schema")) if "payload" in body else {}
    if payload is None:
        return [], None
    if not isinstance(payload, dict):
        raise NotAChange("payload of a Debezium event is no object")
    source = payload.get("source")
    table = table_of(source) if isinstance(source, dict) else ""
    op = payload.get("op")
    if op == "t" or "ddl" in payload:
        raise Statement(str(payload.get("ddl") or f"TRUNCATE of {table}")[:300])
    if op == "m" or (op is None and "ts_ms" in payload):
        return [], None
    if not isinstance(op, str) or op not in _OPS:
        raise NotAChange(f"op is {op!r}: Debezium's events have c, u, d or r")
    if not table:
        raise NotAChange("source of a Debezium event names no table")
    before, after = (_row(table, payload, side, fields.get(side)) for side in ("before", "after"))
    columns = keys.get(table) or keys.get("") or _key_columns(message_keys)
    if not columns:
        raise NotAChange(
            f"which columns of {table} are its key? Name them with keyColumns: the message's keys do not have Debezium's key"
        )
    if op == "d":
        # A delete has its row in `before`.
        found = [Change(DELETE, table, _key(table, columns, before), kinds=_some(before, columns))]
    else:
        key = _key(table, columns, after)
        # `_key` refuses an event without `after`.
        assert after is not None
        found = [Change(_OPS[op], table, key, row=after[0], kinds=after[1])]
        if op == "u" and before is not None and all(before[0].get(name) is not None for name in columns):
            was = _key(table, columns, before)
            # Debezium sends a delete and an insert for a changed key of its own; keyColumns may name another one.
            if was != key:
                found = [Change(DELETE, table, was), Change(INSERT, table, key, row=after[0], kinds=after[1])]
    return found, payload


def sequence(source: Mapping[str, Any]) -> Sequence_ | None:
    """Return the position of an event in its database's log; None: unknown for this connector.

    PostgreSQL's `lsn`, MySQL's and MariaDB's binlog position, SQL Server's `change_lsn`: it grows with each change of a row.
    """
    if isinstance(lsn := source.get("lsn"), int):
        return (lsn,)
    file, place = source.get("file"), source.get("pos")
    if isinstance(file, str) and isinstance(place, int) and (number := re.search(r"(\d+)$", file)):
        # A binlog event may change several rows, which `row` numbers.
        row = source.get("row")
        return (int(number[1]), place, row if isinstance(row, int) else 0)
    change = source.get("change_lsn")
    if isinstance(change, str) and re.fullmatch(r"[0-9a-fA-F]+(:[0-9a-fA-F]+)*", change):
        # Changes with one change_lsn, such as the two of an update, are numbered.
        serial = source.get("event_serial_no")
        return (*(int(part, 16) for part in change.split(":")), serial if isinstance(serial, int) else 0)
    return None


def table_of(source: Mapping[str, Any]) -> str:
    """Return `shop.orders`, in databases with schemas `public.orders`: there a connector reads one database."""
    table = source.get("table") or source.get("collection")
    if not isinstance(table, str) or not table:
        return ""
    home = source.get("schema") or source.get("db")
    return f"{home}.{table}" if isinstance(home, str) and home else table


def _fields(schema: Any) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return side (before, after) → column → its field, from the envelope's schema."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for side in schema.get("fields") or () if isinstance(schema, dict) else ():
        if isinstance(side, dict) and side.get("field") in {"before", "after"}:
            found[side["field"]] = {
                field["field"]: field
                for field in side.get("fields") or ()
                if isinstance(field, dict) and isinstance(field.get("field"), str)
            }
    return found


def _row(
    table: str, payload: Mapping[str, Any], side: str, fields: Mapping[str, Mapping[str, Any]] | None
) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Return columns and kinds of one side; None: the event does not have it."""
    row = payload.get(side)
    if row is None:
        return None
    if not isinstance(row, dict):
        raise NotAChange(f"{side} of a Debezium event of {table} is no object")
    # Left out: an update leaves the columns that it does not name.
    there = {name: value for name, value in row.items() if value != UNAVAILABLE}
    if fields is None:
        return kinds.plain(there)
    values: dict[str, Any] = {}
    found: dict[str, str] = {}
    for name, value in there.items():
        field = fields.get(name, {})
        try:
            values[name], kind = None if value is None else _value(value, field), kind_of(field)
        except (ValueError, TypeError, OverflowError, binascii.Error):
            raise NotAChange(f"{name} of {table} is {str(value)[:100]!r}, which its schema does not allow") from None
        if kind is None:
            values[name] = kinds.json_text(value) if isinstance(value, dict | list) else value
            kind = kinds.kind_of(values[name])
        if kind is not None:
            found[name] = kind
    return values, found


def kind_of(field: Mapping[str, Any]) -> str | None:
    """Return the kind of a field of a Connect schema; None: the schema does not have it."""
    name, kind = field.get("name"), field.get("type")
    if name in _DATES:
        return kinds.DATE
    if name in _PER_SECOND:
        return kinds.DATETIME
    if name == "io.debezium.time.ZonedTimestamp":
        return kinds.TIMESTAMP
    if name in _TIMES:
        return kinds.STRING
    if name == _DECIMAL:
        facts = field.get("parameters") or {}
        # Kafka Connect's Decimal must name its scale, and may leave the precision out.
        return kinds.decimal_kind(
            int(facts.get("connect.decimal.precision", kinds.DIGITS_MAX)), int(facts.get("scale", 0))
        )
    return _PLAIN.get(str(kind), kinds.STRING) if kind is not None else None


def _value(value: Any, field: Mapping[str, Any]) -> Any:
    """Return the JSON value of the field's kind. Raises ValueError, TypeError, OverflowError."""
    name, kind = field.get("name"), kind_of(field)
    if name in _DATES:
        return str((_EPOCH + dt.timedelta(days=value)).date())
    if name in _PER_SECOND:
        moment = _EPOCH + dt.timedelta(microseconds=value * 1_000_000 // _PER_SECOND[name])
        return moment.isoformat(" ", "microseconds")
    if name in _TIMES:
        return str((_EPOCH + dt.timedelta(microseconds=value * 1_000_000 // _TIMES[name])).time())
    # Kafka's JSON converter writes decimals in base64, or as numbers (`decimal.format=numeric`).
    if name == _DECIMAL and not isinstance(value, int | float):
        number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        scale = int((field.get("parameters") or {}).get("scale", 0))
        # The default context would round to 28 digits.
        return str(decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=1000)))
    if kind == kinds.STRING and isinstance(value, dict | list):
        return kinds.json_text(value)
    if kind is not None:
        kinds.python_value(value, kind)
    return value


def _key_columns(message_keys: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of Debezium's key, if the message's keys are one; else ().

    RocketMQ splits keys at blanks, which a JSON text may contain: they are joined again first.
    """
    try:
        found = msgspec.json.decode(" ".join(message_keys))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ()
    inner = found.get("payload", found) if isinstance(found, dict) else None
    return tuple(inner) if isinstance(inner, dict) else ()


def _key(table: str, columns: Sequence[str], side: tuple[dict[str, Any], dict[str, str]] | None) -> dict[str, Any]:
    values = side[0] if side is not None else {}
    missing = [name for name in columns if values.get(name) is None]
    if missing:
        raise NotAChange(f"a row of {table} has no {', '.join(missing)}, which is of its key")
    return {name: values[name] for name in columns}


def _some(side: tuple[dict[str, Any], dict[str, str]] | None, columns: Sequence[str]) -> dict[str, str]:
    return {name: side[1][name] for name in columns if name in side[1]} if side is not None else {}
