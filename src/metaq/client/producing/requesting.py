"""One producer's requests: sent like messages that go alone, and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from metaq.client.conversation.sending.replies import asking
from metaq.client.conversation.sending.sending import Outgoing
from metaq.client.producing.accumulator import Accumulator, BatchStream
from metaq.client.shared.core import ClientCore
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.requests import AwaitedReply, settle
from metaq.client.shared.sending import Sender
from metaq.errors import BufferFull, RequestTimeout
from metaq.model import Message, SendReceipt, StoredMessage


class Requesting:
    """Sends requests and awaits their replies: in the caller's thread where that is quick, else in the loop."""

    def __init__(self, core: ClientCore, accumulator: Accumulator, sender: Sender, *, waits_when_full: bool) -> None:
        self._core, self._accumulator, self._sender = core, accumulator, sender
        self._waits_when_full = waits_when_full

    @property
    def is_known(self) -> bool:
        """Any thread: whether the brokers know where replies to us go."""
        return self._core.is_requester(self._sender)

    def ask(self, message: Message, stream: BatchStream, seconds: float) -> StoredMessage | None:
        """In the caller's thread, which waits for the reply: the loop has less to do while it wants to run again.

        Only once we are known. Returns None, and has done nothing, if there is no room now. Raises as `request` does.
        """
        clock, reply = self._core.clock, AwaitedReply()
        deadline = clock.monotonic() + seconds
        correlation_id = clock.token()
        # Registered before it is sent: the reply may come before the acknowledgement.
        with self._core.requests.awaiting(self._sender, correlation_id, reply):
            try:
                sent = self._accumulator.send_alone(
                    message, stream, None, seconds, self._mark(correlation_id, seconds),
                    when_failed=lambda error: settle(reply, error), wait=False,
                )  # fmt: skip
            except BufferFull:
                if not self._waits_when_full:
                    raise
                return None
            if not self._core.thread.settled(reply, deadline):
                raise _no_reply(message, seconds, sent.result() if sent.done() else None)
            if reply.exception() is not None and clock.monotonic() >= deadline:
                raise _no_reply(message, seconds, None) from reply.exception()
            return reply.result()

    async def request(
        self, message: Message, find_stream: Callable[[], Awaitable[BatchStream]], seconds: float, reply: AwaitedReply
    ) -> None:
        """In the loop: send a request and return when `reply` has its outcome.

        Raises RequestTimeout: no reply came in time; and what sends raise: it is not stored, or unknown.
        """
        receipt: SendReceipt | None = None
        try:
            async with asyncio.timeout(seconds):
                # First: brokers push replies only to clients that they know by a heartbeat.
                await self._core.add_requester(self._sender)
                stream = await find_stream()
                correlation_id = self._core.clock.token()  # Who could guess it could reply in another's name.
                replied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                with self._core.requests.awaiting(self._sender, correlation_id, reply, replied):
                    sent = await self._when_room(
                        lambda: self._accumulator.send_alone(
                            message, stream, None, seconds, self._mark(correlation_id, seconds)
                        )
                    )
                    receipt = await sent
                    await replied
        except TimeoutError:
            raise _no_reply(message, seconds, receipt) from None

    def _mark(self, correlation_id: str, seconds: float) -> Callable[[Outgoing], Outgoing]:
        client_id, ttl_ms = self._core.client_id, max(1, round(seconds * 1000))
        return lambda outgoing: asking(outgoing, correlation_id, client_id, ttl_ms)

    async def _when_room(self, hand_in: Callable[[], SendFuture]) -> SendFuture:
        """In the loop: hand a message in once there is room; raise BufferFull at once if the producer is not to wait."""
        while True:
            try:
                return hand_in()
            except BufferFull:
                if not self._waits_when_full:
                    raise
                await self._accumulator.room()


def _no_reply(message: Message, seconds: float, receipt: SendReceipt | None) -> RequestTimeout:
    known = "it was not acknowledged, either" if receipt is None else f"it is stored as {receipt.message_id}"
    return RequestTimeout(f"no reply to the request to topic {message.topic} within {seconds:g} s; {known}")
