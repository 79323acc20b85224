"""Bodies as Canal and Debezium write them, after their documented formats."""

from __future__ import annotations

import json

CANAL_INSERT = {
    "data": [
        {"id": "1", "state": "new", "amount": "12.50", "made": "2026-03-01 10:00:00", "photo": "\x00\xff"},
        {"id": "2", "state": None, "amount": "-3.00", "made": "0000-00-00 00:00:00", "photo": None},
    ],
    "database": "shop", "es": 1772359200000, "id": 3, "isDdl": False,
    "mysqlType": {
        "id": "bigint(20)", "state": "varchar(20)", "amount": "decimal(10,2)", "made": "datetime", "photo": "blob",
    },
    "old": None, "pkNames": ["id"], "sql": "",
    "sqlType": {"id": -5, "state": 12, "amount": 3, "made": 93, "photo": 2004},
    "table": "orders", "ts": 1772359200123, "type": "INSERT",
}  # fmt: skip
CANAL_UPDATE = CANAL_INSERT | {
    "data": [{"id": "1", "state": "paid", "amount": "12.50", "made": "2026-03-01 10:00:00", "photo": None}],
    "old": [{"state": "new", "photo": "\x00\xff"}],
    "type": "UPDATE",
}
CANAL_MOVE = CANAL_UPDATE | {"data": [{**CANAL_UPDATE["data"][0], "id": "9"}], "old": [{"id": "1"}]}
CANAL_DELETE = CANAL_INSERT | {"data": [CANAL_INSERT["data"][1]], "type": "DELETE"}
CANAL_DDL = {
    "data": None, "database": "shop", "es": 1772359200000, "id": 4, "isDdl": True, "mysqlType": None, "old": None,
    "pkNames": None, "sql": "ALTER TABLE orders ADD COLUMN note TEXT", "sqlType": None, "table": "orders",
    "ts": 1772359200123, "type": "ALTER",
}  # fmt: skip


def _field(name, kind, logical=None, **parameters):
    field = {"field": name, "type": kind, "optional": True}
    return field | ({"name": logical, "version": 1, "parameters": parameters} if logical else {})


DEBEZIUM_COLUMNS = [
    _field("id", "int64"),
    _field("state", "string"),
    _field(
        "amount", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2", **{"connect.decimal.precision": "10"}
    ),
    _field("day", "int32", "io.debezium.time.Date"),
    _field("made", "int64", "io.debezium.time.MicroTimestamp"),
    _field("seen", "string", "io.debezium.time.ZonedTimestamp"),
    _field("hour", "int64", "io.debezium.time.MicroTime"),
    _field("photo", "bytes"),
    _field("good", "boolean"),
    _field("weight", "double"),
]
DEBEZIUM_ROW = {
    "id": 1, "state": "new", "amount": "BOI=", "day": 20513, "made": 1772359200000001, "seen": "2026-03-01T10:00:00Z",
    "hour": 3600000000, "photo": "AP8=", "good": True, "weight": 1.5,
}  # fmt: skip
POSTGRES = {
    "version": "2.5.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1772359200000, "snapshot": "false",
    "db": "shop", "sequence": '["24023119","24023128"]', "schema": "public", "table": "orders", "txId": 555,
    "lsn": 24023128, "xmin": None,
}  # fmt: skip
MYSQL = {
    "version": "2.5.0.Final", "connector": "mysql", "name": "shop", "ts_ms": 1772359200000, "snapshot": "false",
    "db": "shop", "sequence": None, "table": "orders", "server_id": 223344, "gtid": None, "file": "mysql-bin.000003",
    "pos": 484, "row": 1, "thread": 7, "query": None,
}  # fmt: skip
SQL_SERVER = {
    "version": "2.5.0.Final", "connector": "sqlserver", "name": "shop", "ts_ms": 1772359200000, "snapshot": "false",
    "db": "shop", "schema": "dbo", "table": "orders", "change_lsn": "00000027:00000758:0003",
    "commit_lsn": "00000027:00000758:0005", "event_serial_no": 2,
}  # fmt: skip


def debezium(op, before, after, source=POSTGRES, *, envelope=False):
    payload = {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1772359200100,
        "transaction": None,
    }
    if not envelope:
        return payload
    fields = [
        {"type": "struct", "fields": DEBEZIUM_COLUMNS, "optional": True, "name": "shop.Value", "field": side}
        for side in ("before", "after")
    ]
    return {"schema": {"type": "struct", "fields": fields, "name": "shop.Envelope"}, "payload": payload}


def as_bytes(body) -> bytes:
    return json.dumps(body).encode()
