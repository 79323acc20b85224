"""Replies of a consumer to the requests among its messages."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any

from msgspec import Struct

from metaq.client.conversation.sending.replies import answering, reply_topic_of
from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.identity.options import checked_seconds
from metaq.client.producing.accumulator import outgoing_of
from metaq.client.shared.core import ClientCore
from metaq.client.shared.sending import Sender, SendRules
from metaq.errors import MetaqError
from metaq.model import Message, MessageQueue, SendReceipt, StoredMessage
from metaq.model.message import BODY_BYTES_MAX, as_body, as_keys

log = logging.getLogger("metaq.client")

REPLY_SECONDS = 3.0
COMPRESS_OVER = 4096
"""As a producer's `compress_over`."""
NO_KEYS: tuple[str, ...] = ()


class ReplyFuture(concurrent.futures.Future[SendReceipt]):
    """A reply under way. It can be waited for with `result(timeout)`, or awaited, in any event loop."""

    def __await__(self) -> Generator[Any, None, SendReceipt]:
        return asyncio.wrap_future(self).__await__()


class Reply(Struct, frozen=True):
    """A reply, and the seconds that it may take."""

    message: Message
    seconds: float


def reply_to(
    request: StoredMessage,
    body: bytes | bytearray | memoryview,
    *,
    tag: str | None,
    keys: str | Iterable[str],
    properties: dict[str, str] | None,
    flag: int,
    timeout: float,
) -> Reply:
    """Raises ClientError: it is no request; TypeError, InvalidMessage, ConfigError: what no reply can be."""
    topic = reply_topic_of(request)
    checked_seconds("timeout", timeout, least=0.001)
    message = Message(topic, as_body(body), tag, as_keys(keys), flag=flag, properties=properties or {})
    return Reply(message, timeout)


class _OwnBrokerFirst:
    """Chooses the queue of each try: first at the broker that holds the request, for there its sender is connected."""

    def __init__(self, broker: str) -> None:
        self._broker, self._tries = broker, 0

    def __call__(self, queues: list[MessageQueue]) -> MessageQueue:
        ordered = sorted(queues, key=lambda queue: queue.broker != self._broker)
        # Each further try goes to another broker: the request's own may be down.
        self._tries += 1
        brokers = list(dict.fromkeys(queue.broker for queue in ordered))
        wanted = brokers[(self._tries - 1) % len(brokers)]
        return next(queue for queue in ordered if queue.broker == wanted)


class Replying:
    """One consumer's replies. Any thread."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core.shared()  # The topic of replies belongs to the brokers: no namespace has its own.
        self._sender = Sender(self._core, core.namespace.wrapped(group), SendRules())

    def begin(self, request: StoredMessage, reply: Reply, on_its_way: Callable[[], None] | None = None) -> ReplyFuture:
        """Send it. What goes wrong is raised by the future, and said in the log.

        `on_its_way` is called in the loop: what it has done there later comes behind the reply.
        """
        self._core.check_process()
        # Each reply has an id prefix of its own, so that its number in the batch is 0.
        message_id = f"{self._core.id_prefixes.next().decode()}0000"
        outgoing = outgoing_of(reply.message, message_id, "", bytes_max=BODY_BYTES_MAX, compress_over=COMPRESS_OVER)
        future = ReplyFuture()
        work = functools.partial(self._send, future, request, answering(request, outgoing), reply.seconds, message_id)
        self._core.thread.post(self._start, work, on_its_way)
        return future

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], on_its_way: Callable[[], None] | None) -> None:
        self._core.spawn(work())
        if on_its_way is not None:  # A turn later: what it makes others do at once would keep the reply from going out.
            asyncio.get_running_loop().call_soon(on_its_way)

    async def _send(
        self, future: ReplyFuture, request: StoredMessage, outgoing: Outgoing, seconds: float, message_id: str
    ) -> None:
        # From here on it cannot be cancelled, since it may be on its way.
        if not future.set_running_or_notify_cancel():
            return
        try:
            stored = await self._sender.send(outgoing, seconds, _OwnBrokerFirst(request.broker))
        except BaseException as error:
            if isinstance(error, MetaqError):
                log.warning("the reply to %s did not reach its requester: %s", request, error)
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(SendReceipt(message_id, stored.queue, stored.offset, stored.status, stored.offset_ids))
