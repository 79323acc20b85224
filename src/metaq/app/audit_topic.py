"""The topic of a broker that gets the lines of its audit log."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from metaq.broker.broker import Broker
from metaq.broker.requests import Send
from metaq.errors import Refused, StoreError
from metaq.log import RateLimitedLog
from metaq.saved import Saving

log = logging.getLogger(__name__)

WAITING_MAX: Final = 4096
"""Lines that wait for the topic: while it is made, or while the broker is a slave."""
SENT_PER_TICK: Final = 256


class AuditTopic:
    """The topic of a broker that gets the lines of its audit log, too. What cannot be sent stands in the files alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._faults = RateLimitedLog(log)

    def put(self, line: bytes) -> None:
        """Send a line soon. While too many wait, the oldest is left out."""
        self._waiting.append(line)

    def tick(self, broker: Broker) -> None:
        """Send what waits, a part of it."""
        if not broker.leads:
            return
        for _ in range(min(len(self._waiting), SENT_PER_TICK)):
            environment = broker.environment
            line = self._waiting[0].rstrip(b"\n")
            try:
                broker.sends.send(
                    Send(
                        topic=self.name, body=line, born_ms=environment.clock.now_ms(), born_host=environment.store_host
                    )
                )
            except Saving:
                return  # the topic is being made
            except (Refused, StoreError) as error:
                self._faults.warning("send", "the topic %s does not get lines of the audit log: %s", self.name, error)
            self._waiting.popleft()
        if broker.held_pulls.grown:
            broker.answer_pulls()
