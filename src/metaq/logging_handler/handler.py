"""`MetaQHandler`, the handler for `logging` whose records go to brokers of RocketMQ's protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from metaq.client.identity.access import ENVIRONMENT, Access
from metaq.client.identity.names import checked
from metaq.client.identity.options import ClientOptions
from metaq.client.identity.sources import address_server_of, checked_addresses
from metaq.client.producing.producer import Producer
from metaq.client.shared.futures import SendFuture
from metaq.clock import SYSTEM, Clock
from metaq.errors import AccessDenied, BrokerError, ConfigError, InvalidMessage, RequestTimeout
from metaq.logging_handler.base import (
    BUFFER_BYTES,
    BUFFER_RECORDS,
    EXIT_SECONDS,
    LINGER_SECONDS,
    TOPIC,
    TopicHandler,
)
from metaq.logging_handler.buffer import Entry
from metaq.logging_handler.sender import Way
from metaq.model import Message
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.topics.topic import check_topic
from metaq.wire.codes import ResponseCode

GROUP = "metaq_logging"
SEND_SECONDS = 4.0
"""Less than `flush_seconds`: a program that ends early is told why its records are lost, too."""


class MetaQHandler(TopicHandler):
    """Sends log records to a topic, from a thread of its own.

    Logging to it never waits and never raises. Without a formatter, or with a `JsonFormatter`, a message is a JSON
    object (`metaq.logging_handler.formats`); with another one its text. The tag is the level's name, the property
    `service` the service's. Records of `metaq` and its loggers, and of the sending threads, are skipped: each would
    cause others.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        topic: str = TOPIC,
        service: str | None = None,
        producer: Producer | None = None,
        keys: str | Iterable[str] = (),
        level: int | str = logging.NOTSET,
        buffer_records_max: int = BUFFER_RECORDS,
        buffer_bytes_max: int = BUFFER_BYTES,
        record_bytes_max: int = BODY_BYTES_MAX,
        linger: float = LINGER_SECONDS,
        flush_seconds: float = EXIT_SECONDS,
        producer_options: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """

        Args:
            name_servers: `host:port`, `;`-separated; by default the environment's NAMESRV_ADDR.
            topic: where records go, `business-logs` by default.
            level: the least level of a record, as of `logging.Handler`.
            producer: one of the application's instead, which is not closed here and does not work in a forked child.
            service: the name of the program that logs, by default that of its file.
            keys: names of attributes of the record, `service` or `logger`, whose values become the message's keys, by
                which it can be looked up; at most 8.
            buffer_records_max, buffer_bytes_max: what may wait to be sent or acknowledged, 10 000 records and 16 MiB by default; what
                comes beyond is dropped.
            record_bytes_max: bodies of more bytes (4 MiB) are cut, and so are those that a broker refuses for their length.
            linger: seconds that a first record waits for others.
            flush_seconds: seconds that `flush` and `close` wait, 5 by default.
            producer_options: more arguments of `metaq.Producer`, such as `namespace` and `acl_file`.

        Raises: ConfigError, TypeError. No connection is made and no thread started before the first record.
        """
        if producer is not None and (name_servers is not None or producer_options is not None):
            raise ConfigError("give a producer, or name_servers and producer_options for one of the handler's own")
        if producer is not None and not isinstance(producer, Producer):
            raise TypeError(f"producer is {producer!r}: pass a metaq.Producer")
        self._given, self._name_servers, self._is_shared = producer, name_servers, producer is not None
        self._producer_options = {"group": GROUP, "timeout": SEND_SECONDS, **(producer_options or {})}
        # A wrong address is reported here: later there is no caller who could be told.
        if producer is None and address_server_of(name_servers, ClientOptions()) is None:
            checked_addresses(name_servers)
            # Credentials, too: a file that is missing, or half a pair.
            Access(**{name: self._producer_options.get(name) for name in ENVIRONMENT}).credentials()
        super().__init__(
            checked(check_topic, topic), service, keys, level, buffer_records_max=buffer_records_max,
            buffer_bytes_max=buffer_bytes_max, record_bytes_max=record_bytes_max, linger=linger, flush_seconds=flush_seconds,
            clock=clock,
        )  # fmt: skip

    def _connect(self) -> Way:
        producer = Producer(self._name_servers, **self._producer_options) if self._given is None else self._given
        return _ProducerWay(producer, self.topic, self.service, is_shared=self._is_shared)


class _ProducerWay:
    """By a `metaq.Producer`, which is not closed here if it `is_shared`."""

    def __init__(self, producer: Producer, topic: str, service: str, *, is_shared: bool) -> None:
        self._producer, self._topic, self._is_shared = producer, topic, is_shared
        self._properties = {"service": service} if service else {}

    def prepare(self) -> None:
        """A producer finds its brokers by itself."""

    def submit(self, entry: Entry) -> SendFuture:
        message = Message(self._topic, entry.body, entry.tag, entry.keys, properties=self._properties)
        send = self._producer.submit(message, message_id=entry.message_id)
        entry.message_id = send.message_id  # A retry has the same id: it may be stored already.
        return send

    def error(self, entry: Entry, send: SendFuture, seconds: float) -> Exception | None:  # noqa: ARG002  a Way's
        try:
            return send.exception(seconds)
        except RequestTimeout as late:
            return late

    def is_too_long(self, error: Exception) -> bool:
        return isinstance(error, InvalidMessage) or (
            isinstance(error, BrokerError) and error.code == ResponseCode.MESSAGE_ILLEGAL
        )

    def may_pass(self, error: Exception) -> bool:
        # An account or a right can be mended while records wait for it.
        return getattr(error, "retriable", False) or isinstance(error, AccessDenied)

    def close(self, seconds: float) -> None:
        if not self._is_shared:
            self._producer.close(seconds)
