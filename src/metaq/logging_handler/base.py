"""What the handlers for `logging` share: records become entries of a buffer, which a thread sends."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath

from metaq.client.identity.options import check_whole, checked_seconds
from metaq.client.shared.loop import background_ident, preload
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, InvalidMessage
from metaq.logging_handler.buffer import FORKED, UNFORMATTED, Entry
from metaq.logging_handler.formats import JsonFormatter, cut, encoded, text_bytes
from metaq.logging_handler.sender import CUT_BYTES_MIN, LOG, OWN_THREADS, Sender, Settings, Way, reasons
from metaq.model.message import check_tag, check_user_properties

TOPIC = "business-logs"
EXIT_SECONDS = 5.0
"""Seconds that the interpreter's exit waits for all handlers together."""
BUFFER_RECORDS, BUFFER_BYTES = 10_000, 16 * 1024 * 1024
LINGER_SECONDS = 0.05
KEYS_MAX, KEY_CHARS_MAX = 8, 128
_TAGS_MAX = 256


class TopicHandler(logging.Handler):
    """Sends log records to a topic, from a thread of its own.

    Logging to it never waits and never raises. Without a formatter, or with a `JsonFormatter`, a message is a JSON
    object (`metaq.logging_handler.formats`); with another one its text. Records of `metaq` and its loggers, and of the
    sending threads, are skipped: each would cause others.

    Args:
        topic: checked.
        keys: names of attributes of the record, `service` or `logger`, whose values become the message's keys.
        others: as of `MetaQHandler`.

    Raises: ConfigError, TypeError. No connection is made and no thread started before the first record.
    """

    sends_to_metaq = True
    """Marks such handlers: their own log records must not go to one."""
    _is_shared = False
    """The producer is the application's, and does not work in a forked child."""

    def __init__(
        self,
        topic: str,
        service: str | None,
        keys: str | Iterable[str],
        level: int | str,
        *,
        buffer_records_max: int,
        buffer_bytes_max: int,
        record_bytes_max: int,
        linger: float,
        flush_seconds: float,
        clock: Clock,
    ) -> None:
        super().__init__(level)
        for name, number, least in (
            ("buffer_records_max", buffer_records_max, 1),
            ("buffer_bytes_max", buffer_bytes_max, CUT_BYTES_MIN),
            ("record_bytes_max", record_bytes_max, CUT_BYTES_MIN),
        ):
            check_whole(name, number)
            if number < least:
                raise ConfigError(f"{name}={number}: need at least {least}")
        checked_seconds("linger", linger, least=0.0)
        self._flush_seconds = checked_seconds("flush_seconds", flush_seconds, least=0.0)
        self.service = _checked_service(service)
        self._keys = _checked_keys(keys)
        self._clock = clock
        self._settings = Settings(
            topic=topic, buffer_records_max=buffer_records_max, buffer_bytes_max=buffer_bytes_max,
            record_bytes_max=min(record_bytes_max, buffer_bytes_max), linger=linger,
        )  # fmt: skip
        self._json = JsonFormatter(self.service)
        self._tags: dict[str, str | None] = {}
        self._closed = self._orphan = False
        self.passed_over = 0
        """Number of records of our own loggers and threads, which were skipped."""
        self._sender = self._new_sender()
        # The sending thread would import them later, and a fork may come in the middle of that.
        preload()
        _handlers.add(self)

    def _connect(self) -> Way:
        """Return the way to the server. Called in the sending thread, again in a forked child."""
        raise NotImplementedError

    # -------------------------------------------------------------- figures

    @property
    def topic(self) -> str:
        """Name of the topic that records go to."""
        return self._settings.topic

    @property
    def sent(self) -> int:
        """Number of records that a broker has acknowledged; all figures are of this process."""
        return self._sender.sent

    @property
    def waiting(self) -> int:
        """Number of records that are not acknowledged yet, of this process."""
        return self._sender.buffer.count

    @property
    def dropped(self) -> dict[str, int]:
        """Reason → number of records not sent: `full`, `closed`, `refused`, `unformatted`, `forked`."""
        return dict(self._sender.buffer.dropped)

    @property
    def shortened(self) -> int:
        """Number of cuts; a record that the broker refuses as too long is cut again, and counts again."""
        return self._sender.shortened

    @property
    def restarts(self) -> int:
        """How often the thread that sends was found dead and started again."""
        return self._sender.restarts

    # -------------------------------------------------------------- what logging calls

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record as any handler, but without its lock: a thread that waits in `flush` or `close` may hold that."""
        try:
            found = self.filter(record)
        except Exception as error:  # noqa: BLE001  a filter of the application's
            self._not_made(record, error)
            return False
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        """Encode the record and put it into the buffer. Raises nothing. Several threads may call the Formatter at once."""
        if self._is_own(record):
            self.passed_over += 1
            return
        sender = self._sender
        try:
            entry = self._entry(record, sender)
        except Exception as error:  # noqa: BLE001  a formatter or a value of the application's
            self._not_made(record, error)
            return
        if self._orphan:  # A forked child, whose producer is the application's and so the parent's.
            sender.buffer.drop(FORKED)
            text = (
                "log records of this forked child are lost: the producer of topic %s is its parent's. Give name_servers"
            )
            sender.warn("forked", text, self.topic)
            return
        sender.put(entry)
        # After the `put`, which has counted the record as dropped.
        if self._closed:
            sender.late(record.name)

    def flush(self, timeout: float | None = None) -> bool:  # type: ignore[override]  # it returns more than logging asks
        """Wait until everything logged so far is acknowledged. Returns False: not after `timeout` (`flush_seconds`) seconds."""
        return self._closed or self._sender.flush(self._flush_seconds if timeout is None else timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more records, and send the waiting ones within `timeout` (`flush_seconds`) seconds.

        Records that are left are dropped, counted as `closed`, and logged. The application's own producer stays open.
        """
        self._end(self._flush_seconds if timeout is None else timeout)
        super().close()

    def _end(self, timeout: float) -> None:
        self._closed = True
        self._sender.close(timeout)

    # -------------------------------------------------------------- a record

    def _is_own(self, record: logging.LogRecord) -> bool:
        # By name and by thread: a record about a failed send would cause another send, and so on.
        thread = record.thread if record.thread is not None else threading.get_ident()
        return (
            record.name == "metaq" or record.name.startswith("metaq.") or thread in OWN_THREADS or thread == background_ident()
        )  # fmt: skip

    def _entry(self, record: logging.LogRecord, sender: Sender) -> Entry:
        formatter = self.formatter or self._json
        is_json = isinstance(formatter, JsonFormatter)
        # Not by `format`, which would decode the JSON to text only to be encoded again.
        body = (
            encoded(formatter.fields(record))
            if isinstance(formatter, JsonFormatter)
            else text_bytes(formatter.format(record))
        )
        if len(body) > sender.record_bytes_max:
            body = cut(body, sender.record_bytes_max, is_json=is_json)
            sender.shortened += 1
        keys = self._keys_of(record) if self._keys else ()
        return Entry(body, self._tag(record.levelname), keys, is_json)

    def _tag(self, level: str) -> str | None:
        """Return the level's name as a tag; `Level 15`, logging's name of a number without one, becomes `Level-15`."""
        if level not in self._tags:
            # Programs may make up levels without end; the usual ones are a handful.
            if len(self._tags) > _TAGS_MAX:
                self._tags.clear()
            tag = "-".join(str(level).replace("|", " ").split())
            try:
                self._tags[level] = check_tag(tag)
            except InvalidMessage:
                self._tags[level] = None
        return self._tags[level]

    def _keys_of(self, record: logging.LogRecord) -> tuple[str, ...]:
        values = (
            self.service if name == "service" else getattr(record, "name" if name == "logger" else name, None)
            for name in self._keys
        )
        words = (
            "_".join(str(value).translate(_SEPARATORS).split())[:KEY_CHARS_MAX] for value in values if value is not None
        )
        return tuple(word.encode("utf-8", "replace").decode() for word in words if word)

    def _summary(self, dropped: Counter[str]) -> Entry:
        """Return a record with the number of dropped ones; the reasons are in its `extra`."""
        text = f"{dropped.total()} log records of {self.service} were dropped ({reasons(dropped)})"
        values = {"name": LOG.name, "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
        record = logging.makeLogRecord({**values, "dropped": dict(dropped)})
        return self._entry(record, self._sender)

    def _not_made(self, record: logging.LogRecord, error: Exception) -> None:
        self._sender.buffer.drop(UNFORMATTED)
        text = "a record of logger %s, at %s:%s, is lost: it could not be formatted or filtered: %r"
        self._sender.warn("unformatted", text, record.name, record.pathname, record.lineno, error)

    # -------------------------------------------------------------- processes

    def _new_sender(self) -> Sender:
        return Sender(self._settings, self._connect, self._summary, self._clock)

    def _begin_child(self) -> None:
        """Start over in a forked child: the waiting records and the thread are the parent's."""
        self._orphan = self._is_shared
        self.passed_over = 0
        self._sender = self._new_sender()
        if self._closed:
            self._sender.close(0.0)


# Bytes 1 and 2 separate properties in a message.
_SEPARATORS = dict.fromkeys((1, 2), " ")


def _checked_service(service: str | None) -> str:
    """Validate a service's name. Raises TypeError; InvalidMessage: a property cannot contain it."""
    if service is None:
        service = PurePath(sys.argv[0]).stem if sys.argv and sys.argv[0] not in {"", "-c", "-m"} else "python"
    if not isinstance(service, str):
        raise TypeError(f"service is {service!r}: pass a name, a str")
    if service:
        check_user_properties({"service": service})
    return service


def _checked_keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"keys is {keys!r}: pass names of a record's attributes")
    if len(names) > KEYS_MAX:
        raise ConfigError(f"keys names {len(names)} attributes: at most {KEYS_MAX}")
    return names


_handlers: weakref.WeakSet[TopicHandler] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close all handlers at exit. Registered after the client's own hooks, so it runs before them.

    `logging.shutdown` would close them too late, when the client has ended.
    """
    # One deadline for all handlers: an exit is not to take five seconds for each.
    deadline = SYSTEM.monotonic() + EXIT_SECONDS
    for handler in list(_handlers):
        handler._end(max(0.0, min(handler._flush_seconds, deadline - SYSTEM.monotonic())))  # noqa: SLF001  the module's own class


def _begin_child() -> None:
    # The parent's threads do not run here, and their idents may be given to others.
    OWN_THREADS.clear()
    for handler in list(_handlers):
        handler._begin_child()  # noqa: SLF001  the module's own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
