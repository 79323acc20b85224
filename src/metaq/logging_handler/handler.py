"""`MetaQHandler`, the handler for `logging`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from metaq.client.identity.access import ENVIRONMENT, Access
from metaq.client.identity.names import checked
from metaq.client.identity.options import ClientOptions, check_whole, checked_seconds
from metaq.client.identity.sources import address_server_of, checked_addresses
from metaq.client.producing.producer import Producer
from metaq.client.shared.loop import background_ident, preload
from metaq.clock import SYSTEM, Clock
from metaq.errors import ConfigError, InvalidMessage
from metaq.logging_handler.buffer import FORKED, UNFORMATTED, Entry
from metaq.logging_handler.formats import JsonFormatter, cut, encoded, text_bytes
from metaq.logging_handler.sender import CUT_BYTES_MIN, LOG, OWN_THREADS, Sender, Settings, reasons
from metaq.model.message import BODY_BYTES_MAX, check_tag, check_user_properties
from metaq.model.topics.topic import check_topic

TOPIC = "business-logs"
GROUP = "metaq_logging"
EXIT_SECONDS = 5.0
"""Seconds that the interpreter's exit waits for all handlers together."""
SEND_SECONDS = 10.0
KEYS_MAX, KEY_CHARS_MAX = 8, 128
_TAGS_MAX = 256


class MetaQHandler(logging.Handler):
    """Sends log records to a topic, from a thread of its own.

    Logging to it never waits and never raises. Without a formatter, or with a `JsonFormatter`, a message is a JSON
    object (`metaq.logging_handler.formats`); with another one its text. The tag is the level's name, the property
    `service` the service's. Records of `metaq` and its loggers, and of the sending threads, are skipped: each would
    cause others.
    """

    sends_to_metaq = True
    """Marks such handlers: their own log records must not go to one."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        topic: str = TOPIC,
        service: str | None = None,
        producer: Producer | None = None,
        keys: str | Iterable[str] = (),
        level: int | str = logging.NOTSET,
        buffer_records_max: int = 10_000,
        buffer_bytes_max: int = 16 * 1024 * 1024,
        record_bytes_max: int = BODY_BYTES_MAX,
        linger: float = 0.05,
        flush_seconds: float = EXIT_SECONDS,
        producer_options: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """

        Args:
            name_servers: `host:port`, `;`-separated; by default the environment's NAMESRV_ADDR.
            producer: one of the application's instead, which is not closed here and does not work in a forked child.
            service: the name of the program that logs, by default that of its file.
            keys: names of attributes of the record, `service` or `logger`, whose values become the message's keys, by
                which it can be looked up; at most 8.
            buffer_records_max, buffer_bytes_max: what may wait to be sent or acknowledged; what comes beyond is
                dropped.
            record_bytes_max: longer bodies are cut, and so are those that a broker refuses for their length.
            linger: seconds that a first record waits for others.
            flush_seconds: how long `flush` and `close` wait.
            producer_options: more arguments of `metaq.Producer`, such as `namespace` and `acl_file`.

        Raises: ConfigError, TypeError. No connection is made and no thread started before the first record.
        """
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
        if producer is not None and (name_servers is not None or producer_options is not None):
            raise ConfigError("give a producer, or name_servers and producer_options for one of the handler's own")
        if producer is not None and not isinstance(producer, Producer):
            raise TypeError(f"producer is {producer!r}: pass a metaq.Producer")
        self._given, self._name_servers = producer, name_servers
        self._producer_options = {"group": GROUP, "timeout": SEND_SECONDS, **(producer_options or {})}
        # A wrong address is reported here: later there is no caller who could be told.
        if producer is None and address_server_of(name_servers, ClientOptions()) is None:
            checked_addresses(name_servers)
            # Credentials, too: a file that is missing, or half a pair.
            Access(**{name: self._producer_options.get(name) for name in ENVIRONMENT}).credentials()
        self._clock = clock
        self._settings = Settings(
            topic=checked(check_topic, topic), service=self.service, buffer_records_max=buffer_records_max,
            buffer_bytes_max=buffer_bytes_max, record_bytes_max=min(record_bytes_max, buffer_bytes_max), linger=linger,
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

    # -------------------------------------------------------------- figures

    @property
    def topic(self) -> str:
        return self._settings.topic

    @property
    def sent(self) -> int:
        """Number of records that a broker has acknowledged; all figures are of this process."""
        return self._sender.sent

    @property
    def waiting(self) -> int:
        """Number of records that are not acknowledged yet."""
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
        return Sender(self._settings, self._connect, self._summary, self._clock, shared=self._given is not None)

    def _connect(self) -> Producer:
        if self._given is not None:
            return self._given
        return Producer(self._name_servers, **self._producer_options)

    def _begin_child(self) -> None:
        """Start over in a forked child: the waiting records and the thread are the parent's."""
        self._orphan = self._given is not None
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


_handlers: weakref.WeakSet[MetaQHandler] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
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
