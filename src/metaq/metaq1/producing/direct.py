"""Direct sends: the calling thread writes the message and reads the answer itself, on the connection that the loop has to the server.

That needs nothing else to be under way in the factory: so a message overtakes none that its thread has handed in before, and many
threads, whose messages the loop sends and reads together, lose nothing. Everything else goes to the loop, and so does a send that
meets anything but its answer: the loop judges it as one of its own.
"""

from __future__ import annotations

import threading
from typing import Final

from metaq.clock import SYSTEM
from metaq.errors import MetaqError
from metaq.metaq1.model.message import SendResult
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.put import put_bytes, stored
from metaq.metaq1.shared.connection import Connection, Outcome, Request
from metaq.metaq1.shared.core import FactoryCore

LARGE_BYTES: Final = 64 * 1024
"""Longest body that is sent so: to a longer one two hand-overs are nothing, and the socket would not take it at once."""
LOOK_SECONDS: Final = 1.0


class Direct(Request):
    """A message that its own thread sends."""

    __slots__ = ("_body", "_flag", "_partition", "_settled", "_topic", "outcome")

    def __init__(self, topic: str, flag: int, body: bytes, partition: Partition) -> None:
        super().__init__()
        self._topic, self._flag, self._body, self._partition = topic, flag, body, partition
        self.outcome: Outcome | None = None
        self._settled = threading.Lock()
        self._settled.acquire()

    @property
    def action(self) -> str:
        return f"send to topic {self._topic}"

    def make(self, opaque: int) -> bytes:
        return put_bytes(self._topic, self._partition, self._flag, self._body, opaque)

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._settled.release()

    def wait(self, connection: Connection, until: float) -> Outcome | None:
        """Wait for the loop to settle it, until a time of `SYSTEM.monotonic`. Returns None if it does not."""
        while self.outcome is None and (left := until - SYSTEM.monotonic()) > 0:
            self._settled.acquire(timeout=min(left, LOOK_SECONDS))
        if self.outcome is None:
            connection.forget(self)
        return self.outcome


def send_directly(
    core: FactoryCore, topic: str, flag: int, body: bytes, partition: Partition, address: str, timeout: float
) -> SendResult | None:
    """Send a message of a thread that waits. Returns None if nothing was sent, and the loop is to do it. Raises what a send raises."""
    link = core.links.get(address)
    if link is None or (connection := link.up) is None or core.messages or len(body) > LARGE_BYTES:
        return None
    lent = connection.lent
    if lent is None:
        connection.wishes += 1
        return None
    size = len(body)
    core.admit(size)
    try:
        # Another thread may have come between: then its send is under way in the loop, or will be.
        if core.messages > 1:
            return None
        request = Direct(topic, flag, body, partition)
        began = SYSTEM.monotonic()
        outcome: Outcome | None = connection.exchange(lent, request, timeout)
        if request.connection is None:
            return None
        if outcome is None:
            outcome = request.wait(connection, began + timeout)
            outcome = outcome or link.late(request.action, timeout, sent=True)
    finally:
        core.done_aside(size)
    result = stored(outcome, address, request, partition.broker_id)
    if isinstance(result, MetaqError):
        raise result
    return result
