"""Encoding of log records: a JSON object, or the text of a Formatter; cut if it is too long. No I/O.

The object has `time` (ISO 8601, UTC, microseconds), `level`, `logger`, `message`, `service`, `process` (id), `thread` (name);
`exception` and `stack`, as text, if the record has them; and `extra`, an object of the attributes that the program gave by
`extra=`. `cut`: bytes of the whole object, if it was cut.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every record; all others are from the program's `extra=`."""
EXTRA, CUT = "extra", "cut"
_DEPTH_MAX = 6
_LEAF_BYTES_MIN = 64
_ROUNDS_MAX = 100


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, see the module. A subclass may change `fields`. Thread-safe.

    Args: service: name of the program that logs.
    """

    def __init__(self, service: str = "") -> None:
        super().__init__()
        self.service = service

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the object's fields, in order.

        Keys: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `service`, `process` (its id), `thread` (its name); and where there are
        any, `exception` and `stack` (texts) and `extra`, name → value of what the program gave as `extra=`.
        """
        found: dict[str, Any] = {
            "time": iso_time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": message_of(record),
            "service": self.service,
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)  # As Formatter.format: others need not do it again.
        if record.exc_text:
            found["exception"] = record.exc_text
        if record.stack_info:
            found["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in record.__dict__.items() if name not in STANDARD}
        if extra:
            found[EXTRA] = extra
        return found

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end. Values that JSON has not are written as their texts."""
        return encoded(self.fields(record)).decode()


def iso_time(created: float) -> str:
    """Return seconds since 1970 as `2026-11-23T08:00:00.123456Z`."""
    time = dt.datetime.fromtimestamp(created, dt.UTC)
    return time.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def message_of(record: logging.LogRecord) -> str:
    """Return the record's message; if its arguments do not fit the format, both and the error, so that nothing is lost."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  whatever a program's arguments raise
        return f"{shown(record.msg)} % {shown(record.args)} [{type(error).__name__}: {shown(error)}]"


def shown(value: object) -> str:
    """Return any value as text. Raises nothing."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  whatever a program's own class raises
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


_JSON = msgspec.json.Encoder(enc_hook=shown)


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Encode as JSON, whatever the values are: other types become text, lone surrogates `\\ud800`."""
    try:
        return _JSON.encode(fields)
    except Exception:  # noqa: BLE001  a circle, half a character, a class that raises: make everything plain first
        return _JSON.encode({_text(name): _plain(value, 0) for name, value in fields.items()})


def _plain(value: object, depth: int) -> object:
    """Return the value made of dicts, lists, texts and numbers only."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < _DEPTH_MAX and isinstance(value, Mapping):
        return {_text(name): _plain(one, depth + 1) for name, one in value.items()}
    if depth < _DEPTH_MAX and isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    return _text(value)


def _text(value: object) -> str:
    return shown(value).encode("utf-8", "backslashreplace").decode()


def text_bytes(text: str) -> bytes:
    """Encode a Formatter's text as UTF-8. Never empty: brokers refuse empty bodies."""
    return text.encode("utf-8", "backslashreplace") or b"\n"


# ------------------------------------------------------------------ too long


def cut(body: bytes, bytes_max: int, *, is_json: bool) -> bytes:
    """Cut `body` to at most `bytes_max` bytes (256 or more), with a mark where bytes were removed.

    A JSON object stays one: its longest values are cut first.
    """
    if len(body) <= bytes_max:
        return body
    return (_cut_object(body, bytes_max) if is_json else None) or _cut_text(body, bytes_max)


def _cut_text(body: bytes, bytes_max: int) -> bytes:
    mark = f"… [cut, it had {len(body)} bytes]".encode()
    return body[: bytes_max - len(mark)].decode("utf-8", "ignore").encode() + mark


def _cut_object(body: bytes, bytes_max: int) -> bytes | None:
    """Cut a JSON object. Returns None: not an object, or too many small values."""
    fields = msgspec.json.decode(body)
    if not isinstance(fields, dict):
        return None
    fields[CUT] = len(body)
    for _ in range(_ROUNDS_MAX):
        over = len(encoded(fields)) - bytes_max
        if over <= 0:
            return encoded(fields)
        extra = fields.get(EXTRA)
        homes = [fields, extra] if isinstance(extra, dict) else [fields]
        size, home, name = max(
            ((len(_JSON.encode(value)), home, name)
             for home in homes for name, value in home.items() if value is not extra),
            key=lambda leaf: leaf[0],
        )  # fmt: skip
        # Only small values are left, most of them in `extra`: that goes as a whole, since cutting them gains nothing.
        if size <= _LEAF_BYTES_MIN:
            if extra is None:
                return None
            fields[EXTRA] = extra = None
            del fields[EXTRA]
            continue
        value = home[name]
        text = value if isinstance(value, str) else _JSON.encode(value).decode()
        # At least a quarter goes each time, so that a few rounds are enough although escapes make the sizes inexact.
        keep = min(len(text) * max(0, size - over - _LEAF_BYTES_MIN) // size, len(text) * 3 // 4)
        home[name] = f"{text[:keep]}… [{len(text) - keep} characters cut]"
    return None
