"""Parser of Canal's flat messages (`canal.mq.flatMessage = true`), JSON.

    {"id": 3, "database": "shop", "table": "orders", "pkNames": ["id"], "isDdl": false, "type": "UPDATE",
     "es": 1700000000000, "ts": 1700000000123, "sql": "", "sqlType": {"id": -5, ...}, "mysqlType": {"id": "bigint(20)", ...},
     "data": [{"id": "1", "state": "paid"}], "old": [{"state": "new"}]}

A message has the rows of one table that one binlog event changed; `old` has the old values of columns that an UPDATE changed.
Values are texts, whatever their type, and blobs are texts in ISO 8859-1.

None of its numbers is a sequence by itself. `id` counts Canal's batches: the messages of one batch share it, also where they
change the same row, and it restarts at 1 with Canal. `es` is the time at which a statement began, which is not the order in
which two statements locked a row. So none is used unless the option `sequence` names it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from metaq.pipelines.changes import kinds
from metaq.pipelines.changes.change import DELETE, INSERT, UPDATE, Change, NotAChange, Statement

_OPS = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
_TYPE = re.compile(r"\s*([a-z]+)(?:\s*\(([^)]*)\))?(.*)", re.IGNORECASE | re.DOTALL)
_LONG = {"tinyint", "smallint", "mediumint", "int", "integer", "year"}
_DOUBLE = {"float", "double", "real"}
_BINARY = {"tinyblob", "blob", "mediumblob", "longblob", "binary", "varbinary"}
_PLAIN = {"date": kinds.DATE, "datetime": kinds.DATETIME, "timestamp": kinds.DATETIME, "boolean": kinds.LONG}


def changes(body: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> list[Change]:
    """Return the changes of a message, without sequences.

    Args: keys: the option `keyColumns`, by table; overrides `pkNames`.
    Raises: NotAChange: not such a message. Statement: DDL, or a statement that was logged as such.
    """
    kind, table = body.get("type"), _table(body)
    if not isinstance(kind, str):
        raise NotAChange("it has no type, as Canal's flat messages have")
    if body.get("isDdl") or kind not in _OPS:
        raise Statement(f"{kind} of {table}: {str(body.get('sql') or '')[:300]}".rstrip(": "))
    rows, old = body.get("data"), body.get("old")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise NotAChange(f"data of a Canal {kind} of {table} is no list of rows")
    if old is not None and (not isinstance(old, list) or len(old) != len(rows)):
        raise NotAChange(f"old of a Canal {kind} of {table} does not go with its data")
    types = body.get("mysqlType")
    known = {name: kind_of(text) for name, text in types.items()} if isinstance(types, dict) else {}
    own = body.get("pkNames")
    own = tuple(name for name in own if isinstance(name, str)) if isinstance(own, list) else ()
    columns = keys.get(table) or keys.get("") or own
    if not columns:
        raise NotAChange(f"{table} has no primary key: name its columns with keyColumns")
    found: list[Change] = []
    # `old` is null but for an UPDATE.
    for row, was in zip(rows, old or [None] * len(rows), strict=True):
        found += _of_row(_OPS[kind], table, columns, row, was, known)
    return found


def _of_row(
    op: str, table: str, columns: tuple[str, ...], row: dict[str, Any], was: Any, known: Mapping[str, str]
) -> list[Change]:
    values = {name: _value(table, name, value, known.get(name)) for name, value in row.items()}
    missing = [name for name in columns if values.get(name) is None]
    if missing:
        raise NotAChange(f"a row of {table} has no {', '.join(missing)}, which is of its key")
    its_kinds = {name: known.get(name) or kinds.STRING for name, value in values.items() if value is not None}
    key = {name: values[name] for name in columns}
    if op == DELETE:
        return [Change(DELETE, table, key, kinds={name: its_kinds[name] for name in columns})]
    if op == UPDATE and isinstance(was, dict) and any(name in was for name in columns):
        before = {
            name: _value(table, name, was[name], known.get(name)) if name in was else key[name] for name in columns
        }
        # An UPDATE of the primary key: for the state it is a delete and an insert.
        if before != key:
            return [Change(DELETE, table, before), Change(INSERT, table, key, row=values, kinds=its_kinds)]
    return [Change(op, table, key, row=values, kinds=its_kinds)]


def _table(body: Mapping[str, Any]) -> str:
    names = [name for name in (body.get("database"), body.get("table")) if isinstance(name, str) and name]
    return ".".join(names)


def kind_of(mysql_type: Any) -> str:
    """Return the kind of a column from MySQL's name of its type."""
    found = _TYPE.match(mysql_type) if isinstance(mysql_type, str) else None
    if found is None:
        return kinds.STRING
    name, inside, behind = found[1].lower(), found[2] or "", found[3].lower()
    if name in _LONG:
        return kinds.LONG
    if name == "bigint":
        # Up to 2**64 - 1, beyond a signed 64-bit number.
        return kinds.decimal_kind(20, 0) if "unsigned" in behind else kinds.LONG
    if name in {"decimal", "numeric"}:
        # MySQL's DECIMAL without digits is DECIMAL(10,0).
        numbers = [int(part) for part in inside.split(",") if part.strip().isdigit()] or [10]
        return kinds.decimal_kind(numbers[0], numbers[1] if len(numbers) > 1 else 0)
    if name in _DOUBLE:
        return kinds.DOUBLE
    return kinds.BINARY if name in _BINARY else _PLAIN.get(name, kinds.STRING)


def _value(table: str, name: str, value: Any, kind: str | None) -> Any:
    """Parse Canal's text into the JSON value of a kind. Raises NotAChange: it does not fit."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise NotAChange(f"{name} of {table} is {value!r}; Canal's values are texts")
    if kind in {kinds.DATE, kinds.DATETIME} and value.startswith("0000-00-00"):
        return None  # MySQL's zero date, which stands for none.
    try:
        if kind == kinds.LONG:
            return kinds.python_value(value, kind)
        if kind == kinds.DOUBLE:
            return float(value)
        if kind == kinds.BINARY:
            return base64.b64encode(value.encode("latin-1")).decode()
        if kind is not None and kind != kinds.STRING:
            kinds.python_value(value, kind)
    except (ValueError, UnicodeEncodeError):
        raise NotAChange(f"{name} of {table} is {value[:100]!r}, which is no {kind}") from None
    return value
