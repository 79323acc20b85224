"""Decoding of bodies to changes: detects the format, and finds the sequence. No I/O.

The plain format is for the user's own producers:

    {"op": "update", "table": "orders", "key": {"id": 7}, "seq": 42, "row": {"state": "paid"}}

`table` may be missing. `key` is an object of the key's columns, or one value where keyColumns names the column; the row
need not repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from metaq.pipelines.changes import canal, debezium, kinds
from metaq.pipelines.changes.change import DELETE, INSERT, UPDATE, Change, NotAChange, Sequence_

AUTO, CANAL, DEBEZIUM, PLAIN = "auto", "canal", "debezium", "plain"
FORMATS = (AUTO, CANAL, DEBEZIUM, PLAIN)

_OPS = {
    **dict.fromkeys((INSERT, "c", "i", "r", "INSERT"), INSERT),
    **dict.fromkeys((UPDATE, "u", "UPDATE"), UPDATE),
    **dict.fromkeys((DELETE, "d", "DELETE"), DELETE),
}
_PLAIN_TABLE = "changes"
"""Table of plain changes without a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """Decoder of a topic's bodies. Plain values: it is pickled for the workers."""

    format: str = AUTO
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Table (or "" for all others) → columns of its key."""
    sequence: str = ""
    """Path of the sequence in the body (of Debezium: in the payload), `source.lsn`; empty: the format's own."""
    sequenced: bool = True
    """Whether changes must have a sequence, if the format has one or a path is given."""

    def decode(self, body: bytes, message_keys: Sequence[str] = ()) -> list[Change]:
        """Return the changes of one message, in order; [] for a message that is not about rows.

        Raises: NotAChange: it cannot be read. Statement: DDL, TRUNCATE or the like.
        """
        # A tombstone for Kafka's compaction: it has no body there, and `null` where JSON is wanted.
        if not body.strip():
            return []
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise NotAChange(f"it is no JSON: {fault}") from None
        if found is None:
            return []
        if not isinstance(found, dict):
            raise NotAChange("it is no JSON object")
        try:
            return self._decode(found, message_keys)
        # Strangers' JSON may have lists for objects and the like; what the parsers do not check raises one of these.
        except (AttributeError, LookupError, TypeError, ValueError) as fault:
            raise NotAChange(f"its JSON has not the shape of the format: {fault}") from None

    def _decode(self, found: dict[str, Any], message_keys: Sequence[str]) -> list[Change]:
        match self.format if self.format != AUTO else format_of(found):
            case "canal":
                changes = canal.changes(found, self.keys)
                return self._numbered(changes, found, None) if self.sequence else changes
            case "debezium":
                changes, payload = debezium.changes(found, message_keys, self.keys)
                return self._numbered(changes, payload, debezium.sequence) if payload is not None else changes
            case _:
                change = _plain(found, self.keys)
                own = change.sequence
                return self._numbered([change], found, None) if self.sequence or own is None else [change]

    def _numbered(self, changes: list[Change], body: Mapping[str, Any], own: Any) -> list[Change]:
        if not self.sequenced:
            return changes
        if self.sequence:
            found = sequence_of(at(body, self.sequence))
        else:
            found = own(body.get("source") or {}) if own is not None else None
        if found is None:
            where = f"at {self.sequence}" if self.sequence else "where this format has it: name its path with sequence"
            raise NotAChange(f"there is no sequence {where}; or set sequenceScope = none")
        return [replace(change, sequence=found) for change in changes]


def format_of(body: Mapping[str, Any]) -> str:
    """Return the format of a JSON object. Raises NotAChange: none of them."""
    if debezium.is_one(body) and ("payload" in body or "source" in body):
        return DEBEZIUM
    if "type" in body and ("data" in body or "isDdl" in body):
        return CANAL
    if "op" in body and "key" in body:
        return PLAIN
    if "ts_ms" in body or "ddl" in body:
        return DEBEZIUM
    raise NotAChange("it is neither Canal's nor Debezium's JSON, nor of the plain format: op, key, seq, row")


def at(body: Any, path: str) -> Any:
    """Return the value at a path such as `source.lsn`; None: there is none. A number in the path is a list index."""
    for name in path.split("."):
        if isinstance(body, dict):
            body = body.get(name)
        elif isinstance(body, list) and name.isdigit() and int(name) < len(body):
            body = body[int(name)]
        else:
            return None
    return body


def sequence_of(value: Any) -> Sequence_ | None:
    """Parse a whole number, a text that is or ends with one (`mysql-bin.000003`), or a list of those; None: anything else."""
    parts = value if isinstance(value, list) else [value]
    numbers = [_number(part) for part in parts]
    return None if not numbers or None in numbers else tuple(number for number in numbers if number is not None)


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        text = value.strip()
        digits = re.fullmatch(r"-?\d{1,19}", text) or re.search(r"(?<!\d)\d{1,19}$", text)
        value = int(digits[0]) if digits else None
    # Parquet and Spark hold sequences as 64-bit numbers.
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and -(1 << 63) <= value < 1 << 63 else None


def _plain(body: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> Change:
    op, key, row = _OPS.get(str(body.get("op"))), body.get("key"), body.get("row")
    table = body.get("table", _PLAIN_TABLE)
    if op is None:
        raise NotAChange(f"op is {body.get('op')!r}: need insert, update or delete")
    if not isinstance(table, str) or not table:
        raise NotAChange(f"table is {table!r}: need a name")
    columns = keys.get(table) or keys.get("") or ()
    if not isinstance(key, dict):
        if len(columns) != 1 or key is None or isinstance(key, list):
            raise NotAChange(f"key is {key!r}: need an object, or one value where keyColumns names its column")
        key = {columns[0]: key}
    if not key or any(value is None or isinstance(value, dict | list) for value in key.values()):
        raise NotAChange(f"key is {key!r}: need columns with one value each")
    sequence = None
    if body.get("seq") is not None:
        sequence = sequence_of(body["seq"])
        if sequence is None:
            raise NotAChange(f"seq is {body['seq']!r}: need a whole number, or a list of them")
    if op == DELETE:
        return Change(op, table, key, sequence, kinds=kinds.plain(key)[1])
    if not isinstance(row, dict):
        raise NotAChange(f"row is {row!r}: an {op} needs an object")
    values, found = kinds.plain({**key, **row, **key})
    return Change(op, table, key, sequence, values, found)
