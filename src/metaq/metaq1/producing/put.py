"""One message on its way to its server."""

from __future__ import annotations

from metaq.errors import ClientClosed, ConnectionFailed, MetaqError, RemoteProtocolError
from metaq.metaq1.conversation import answers
from metaq.metaq1.model.message import SendResult
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.producing.futures import SendFuture
from metaq.metaq1.shared.connection import Outcome, Request
from metaq.metaq1.shared.core import FactoryCore
from metaq.wire.metaq1.commands import checked_put
from metaq.wire.metaq1.frame import checksum


class Put(Request):
    """A message that belongs to no transaction, counted as under way until its future has the outcome.

    Args:
        core: of the factory.
        topic: a word of the protocol.
        flag, body: of the message on the wire.
        partition, address: where it goes.
        timeout: seconds for all.

    Raises BufferFull.
    """

    __slots__ = ("_address", "_body", "_core", "_flag", "_partition", "_seconds", "_topic", "future")

    def __init__(
        self,
        core: FactoryCore,
        topic: str,
        flag: int,
        body: bytes,
        partition: Partition,
        address: str,
        timeout: float,
    ) -> None:
        super().__init__()
        core.admit(len(body))
        self._core, self._topic, self._flag, self._body = core, topic, flag, body
        self._partition, self._address, self._seconds = partition, address, timeout
        self.future = SendFuture(core.callbacks, core.wakes)

    @property
    def action(self) -> str:
        return f"send to topic {self._topic}"

    def begin(self) -> None:
        """In the loop: send it."""
        link = self._core.links.get(self._address)
        if link is None:
            error = ConnectionFailed(f"{self._address} has left since the partition was chosen, to {self.action}")
            error.sent = False
            self.end(ClientClosed("the session factory was closed") if self._core.closed else error)
            return
        link.send(self, self._seconds)

    def make(self, opaque: int) -> bytes:
        return put_bytes(self._topic, self._partition, self._flag, self._body, opaque)

    def settle(self, outcome: Outcome) -> None:
        self._core.done(len(self._body))
        result = stored(outcome, self._address, self, self._partition.broker_id)
        if isinstance(result, MetaqError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


def put_bytes(topic: str, partition: Partition, flag: int, body: bytes, opaque: int) -> bytes:
    """Encode the command of a message that belongs to no transaction."""
    return checked_put(topic.encode(), partition.partition, flag, checksum(body), opaque, body)


def stored(outcome: Outcome, address: str, request: Request, broker_id: int) -> SendResult | MetaqError:
    """Return where a message was stored, or why it was not."""
    if isinstance(outcome, MetaqError):
        return outcome
    try:
        return answers.stored(outcome, address, request.action, broker_id)
    except RemoteProtocolError as error:
        return RemoteProtocolError(f"{address}, asked to {request.action}: {error}")
    except MetaqError as error:
        return error
