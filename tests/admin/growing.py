"""Clients that send and consume all the time while a cluster changes."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import metaq
from metaq.errors import MetaqError
from tests.support import PATIENCE, eventually

POLL = 0.2
"""Seconds between two looks at routes."""

BEFORE = b"before"
"""Body of messages that are none of a `Traffic`."""


class Traffic:
    """A producer and a consumer of one topic, each in a thread, until `stop`."""

    def __init__(self, namesrv, topic, group):
        self.namesrv, self.topic, self.group = namesrv, topic, group
        self.failed, self.sent, self.seen, self.from_brokers = [], Counter(), Counter(), Counter()
        self._ends = threading.Event()
        self._full = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._consume)]

    def __enter__(self):
        for one in self._threads:
            one.start()
        eventually(lambda: sum(self.sent.values()) > 20 and sum(self.seen.values()) > 20)
        return self

    def __exit__(self, *error):
        self._ends.set()
        self._threads[0].join()
        with contextlib.suppress(Exception):
            eventually(lambda: len(self.seen) >= self.total, PATIENCE if error[0] is None else 1)
        self._full.set()
        self._threads[1].join()

    @property
    def total(self):
        return sum(self.sent.values())

    def since(self):
        """Brokers that get messages from now on, of the next thirty."""
        before = self.sent.copy()
        eventually(lambda: self.total > sum(before.values()) + 30)
        return {broker for broker, count in self.sent.items() if count > before[broker]}

    def whole(self):
        """Nothing failed, and each message was consumed once."""
        assert self.failed == []
        assert len(self.seen) == self.total
        assert set(self.seen.values()) == {1}

    def _send(self):
        number = 0
        with metaq.Producer(
            self.namesrv, instance_name=f"{self.group}-p", poll_name_server_interval=POLL, retries=0
        ) as producer:
            while not self._ends.wait(0.003):
                try:
                    done = producer.send(self.topic, b"%d" % number)
                except MetaqError as error:
                    self.failed.append(error)
                else:
                    if done.status.name != "SEND_OK":
                        self.failed.append(done)
                    self.sent[done.queue.broker] += 1
                    number += 1

    def _consume(self):
        with metaq.Consumer(
            self.namesrv, group=self.group, topics=self.topic, start="earliest", instance_name=f"{self.group}-c",
            poll_name_server_interval=POLL,
        ) as consumer:  # fmt: skip
            while not self._full.is_set():
                with contextlib.suppress(metaq.errors.MetaqError):
                    message = consumer.receive(0.1)
                    if message is not None:
                        message.ack()
                        if message.body == BEFORE:
                            continue
                        self.seen[message.body] += 1
                        self.from_brokers[message.queue.broker] += 1
