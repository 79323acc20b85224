"""`MetaQ1Handler`, the handler for `logging` whose records go to servers of MetaQ 1.x."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import logging
import threading
from typing import Any

from msgspec import structs

from metaq.clock import SYSTEM, Clock
from metaq.errors import BrokerError, ConfigError, InvalidMessage, MetaqError, RequestTimeout
from metaq.logging_handler.base import (
    BUFFER_BYTES,
    BUFFER_RECORDS,
    EXIT_SECONDS,
    LINGER_SECONDS,
    TOPIC,
    TopicHandler,
    close_all,
)
from metaq.logging_handler.buffer import Entry
from metaq.logging_handler.sender import Way
from metaq.metaq1 import Message, MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from metaq.metaq1.model.message import check_topic_word
from metaq.metaq1.shared.links import ConnectionPace
from metaq.wire.metaq1.commands import Code
from metaq.wire.metaq1.frame import HEAD_BYTES

SEND_SECONDS = 4.0
"""Longest wait for ZooKeeper, for a connection to a server and for an answer. Less than `flush_seconds`: a program that ends early is told
why its records are lost, too."""
ATTRIBUTE_BYTES = 1024
"""Kept free in a message beside a record: the attribute and its length."""


class MetaQ1Handler(TopicHandler):
    """Sends log records to a topic of MetaQ 1.x, as `metaq.MetaQHandler` does to one of RocketMQ's protocol.

    The attribute of a message is the level's name; 1.x has no properties and no keys, so that the service is in the JSON
    object alone.
    """

    def __init__(
        self,
        config: MetaClientConfig | None = None,
        *,
        zk_connect: str | None = None,
        server_url: str | None = None,
        topic: str = TOPIC,
        service: str | None = None,
        level: int | str = logging.NOTSET,
        buffer_records_max: int = BUFFER_RECORDS,
        buffer_bytes_max: int = BUFFER_BYTES,
        record_bytes_max: int | None = None,
        linger: float = LINGER_SECONDS,
        flush_seconds: float = EXIT_SECONDS,
        clock: Clock = SYSTEM,
    ) -> None:
        """

        Args:
            config: of a session factory, which the handler makes and closes; or, as a file of `logging.config` can say it,
            zk_connect: `host:port` of ZooKeeper; or
            server_url: `meta://host:port` of one server.
            record_bytes_max: longer bodies are cut; None: what `config.max_message_bytes` leaves.
            others: as of `metaq.MetaQHandler`.

        Raises: ConfigError, TypeError, InvalidMessage: the topic's name. No connection is made and no thread started before
        the first record.
        """
        if sum(one is not None for one in (config, zk_connect, server_url)) != 1:
            raise ConfigError("give one of config, zk_connect and server_url")
        if config is None:
            zookeeper = ZKConfig(zk_connect=zk_connect) if zk_connect is not None else None
            config = MetaClientConfig(server_url=server_url, zk_config=zookeeper)
        check_topic_word(topic)
        # Raises what is wrong with it here, where there is somebody to be told; it connects to nothing.
        MetaMessageSessionFactory(config).shutdown()
        self._config = config
        if record_bytes_max is None:
            record_bytes_max = config.max_message_bytes - HEAD_BYTES - ATTRIBUTE_BYTES
        super().__init__(
            topic, service, (), level, buffer_records_max=buffer_records_max, buffer_bytes_max=buffer_bytes_max,
            record_bytes_max=record_bytes_max, linger=linger, flush_seconds=flush_seconds, clock=clock,
        )  # fmt: skip

    def _connect(self) -> Way:
        return _FactoryWay(self._config, self.topic)


class _FactoryWay:
    """By a session factory of its own."""

    def __init__(self, config: MetaClientConfig, topic: str) -> None:
        zookeeper = config.zk_config
        if zookeeper is not None and zookeeper.zk_connection_timeout > SEND_SECONDS:
            config = structs.replace(config, zk_config=structs.replace(zookeeper, zk_connection_timeout=SEND_SECONDS))
        pace = ConnectionPace(connect=SEND_SECONDS, reconnect_times=config.max_reconnect_times)
        self._factory, self._topic = MetaMessageSessionFactory(config, pace=pace), topic
        self._producer = self._factory.create_producer()

    def prepare(self) -> None:
        self._producer.publish(self._topic)

    def submit(self, entry: Entry) -> Any:
        return self._producer.submit(Message(self._topic, entry.body, entry.tag), timeout=SEND_SECONDS)

    def error(self, entry: Entry, send: Any, seconds: float) -> Exception | None:  # noqa: ARG002  a Way's
        try:
            error: Exception | None = send.exception(seconds)
        except concurrent.futures.TimeoutError:
            return RequestTimeout(f"no answer for a message of topic {self._topic} within {seconds:g} s")
        return error

    def is_too_long(self, error: Exception) -> bool:
        return isinstance(error, InvalidMessage)

    def may_pass(self, error: Exception) -> bool:
        # A partition that an operator has closed is opened again.
        return getattr(error, "retriable", False) or (isinstance(error, BrokerError) and error.code == Code.FORBIDDEN)

    def close(self, seconds: float) -> None:
        """A factory waits some seconds for sends under way; who closes a handler need not."""
        with contextlib.suppress(
            RuntimeError
        ):  # no thread starts at the interpreter's end, where factories end by themselves
            thread = threading.Thread(target=self._shut_down, name="metaq-logging-end", daemon=True)
            thread.start()
            thread.join(seconds)

    def _shut_down(self) -> None:
        # The interpreter's end may come first, and ends it.
        with contextlib.suppress(concurrent.futures.CancelledError, MetaqError):
            self._factory.shutdown()


# Once more, behind the hook of session factories: the last to be registered is the first to run, and those are still open then.
atexit.register(close_all)
