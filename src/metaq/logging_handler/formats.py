"""A log record as bytes: one JSON object, or what a Formatter writes; cut where it is too long. Nothing here is sent.

The object has `time` (ISO 8601, UTC, microseconds), `level`, `logger`, `message`, `service`, `process` (its id), `thread` (its
name); `exception` and `stack`, as text, of records that have them; and `extra`, an object with what the program gave by
`extra=`. `cut` says how many bytes an object had that was too long.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""Attributes of every record: all others are the program's own, by `extra=`."""
EXTRA, CUT = "extra", "cut"
_DEPTH_MAX = 6
_LEAF_BYTES_MIN = 64
_ROUNDS_MAX = 100


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, see above. A subclass may change `fields`.

    Args: service: the name of the program that logs. Safe to use from several threads.
    """

    def __init__(self, service: str = "") -> None:
        super().__init__()
        self.service = service

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What the object holds, in its order."""
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
        return encoded(self.fields(record)).decode()


def iso_time(created: float) -> str:
    """Seconds since the epoch as `2026-11-23T08:00:00.123456Z`."""
    time = dt.datetime.fromtimestamp(created, dt.UTC)
    return time.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def message_of(record: logging.LogRecord) -> str:
    """The record's message; of arguments that do not fit it, both, and why: what was to be said is not lost."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  whatever a program's arguments raise
        return f"{shown(record.msg)} % {shown(record.args)} [{type(error).__name__}: {shown(error)}]"


def shown(value: object) -> str:
    """Any value as text; raises nothing."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  whatever a program's own class raises
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


_JSON = msgspec.json.Encoder(enc_hook=shown)


def encoded(fields: Mapping[str, Any]) -> bytes:
    """JSON, whatever the values are: what JSON does not know is text, half characters are written as `\\ud800`."""
    try:
        return _JSON.encode(fields)
    except Exception:  # noqa: BLE001  a circle, half a character, a class that raises: make everything plain first
        return _JSON.encode({_text(name): _plain(value, 0) for name, value in fields.items()})


def _plain(value: object, depth: int) -> object:
    """The same out of dicts, lists, texts and numbers alone."""
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
    """UTF-8 of what a Formatter wrote. Never empty: no broker takes that."""
    return text.encode("utf-8", "backslashreplace") or b"\n"


# ------------------------------------------------------------------ too long


def cut(body: bytes, bytes_max: int, *, is_json: bool) -> bytes:
    """`body` in at most `bytes_max` bytes (256 or more), with a mark where something was taken out.

    A JSON object stays one: its longest values are cut first.
    """
    if len(body) <= bytes_max:
        return body
    return (_cut_object(body, bytes_max) if is_json else None) or _cut_text(body, bytes_max)


def _cut_text(body: bytes, bytes_max: int) -> bytes:
    mark = f"… [cut, it had {len(body)} bytes]".encode()
    return body[: bytes_max - len(mark)].decode("utf-8", "ignore").encode() + mark


def _cut_object(body: bytes, bytes_max: int) -> bytes | None:
    """None: it is no object, or consists of too many small values."""
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
        if size <= _LEAF_BYTES_MIN:
            if extra is None:
                return None
            fields[EXTRA] = extra = None
            del fields[EXTRA]
            continue
        value = home[name]
        text = value if isinstance(value, str) else _JSON.encode(value).decode()
        keep = min(len(text) * max(0, size - over - _LEAF_BYTES_MIN) // size, len(text) * 3 // 4)
        home[name] = f"{text[:keep]}… [{len(text) - keep} characters cut]"
    return None
