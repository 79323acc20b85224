"""Failed messages: CONSUMER_SEND_MSG_BACK (36), with which the broker stores a retry or a dead letter.

If the response is lost, the request is repeated: our brokers recognise it, a RocketMQ broker stores a second retry. If the broker
refuses, a new message is sent to the group's retry topic, at any broker, as Java's client does. If that fails too, the message is
delivered here again after a while. The message is finished only after one of the three has succeeded, so it is never lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from msgspec import structs

from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.window import Chunk
from metaq.client.consumer.options import GroupSeconds
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import DEAD_LETTER_LEVEL, delay_level_of
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.retry import Patience, Purpose, judge
from metaq.client.conversation.sending.sending import GiveBack, Outgoing
from metaq.client.shared.core import ClientCore
from metaq.client.shared.sending import Sender, SendRules
from metaq.errors import MetaqError
from metaq.model import SysFlag
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX, COMPRESSION_ZLIB, FIRST_RETRY_LEVEL
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire import compression

log = logging.getLogger("metaq.client")

NOTHING: Mapping[str, str] = {}


class SendBack:
    """Sends back the failed messages of one group member. Runs on the background loop."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        max_reconsume_times: int,
        handover: Handover[ReceivedMessage],
        seconds: GroupSeconds,
    ) -> None:
        self._core, self._group, self._max, self._handover = core, group, max_reconsume_times, handover
        self._seconds = seconds
        self._sender = Sender(core, group, SendRules())
        self._busy: set[asyncio.Task[None]] = set()

    def begin(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        task = self._core.spawn(self._send(chunk, message, delay_level))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    def begin_undecodable(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, error: Exception) -> None:
        """Send back a message whose body cannot be deserialized: it comes again later, and is a dead letter in the end,
        with the reason."""
        task = self._core.spawn(self._send_undecodable(chunk, message, error))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _send_undecodable(
        self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, error: Exception
    ) -> None:
        """Send a copy to the retry topic: a broker that takes a message back (36) cannot add the property with the
        reason."""
        while not chunk.window.dropped:
            # Until it succeeds, or the queue goes to another member, which gets the message again.
            level = delay_level_of(error)
            try:
                try:
                    await self._send_failed_copy(message, level, reason_for(message, error))
                except MetaqError as failure:  # Perhaps it never takes one, such as of a body above its limit.
                    log.warning(
                        "%s, of which no value can be made, is given back without saying why: %s", message, failure
                    )
                    await self._give_back(chunk, message, level)
                break
            except MetaqError as failure:
                log.warning("%s, of which no value can be made, is not in the retry topic yet: %s", message, failure)
            await asyncio.sleep(self._seconds.again)
        chunk.flags[message.queue_offset - chunk.base] = 1

    async def file_undecodable(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, error: Exception) -> None:
        """Store an undecodable message with the dead letters at once. Raises MetaqError."""
        times = message.reconsume_times
        try:
            await self._send_copy(message, DEAD_LETTER_LEVEL, times, times, reason_for(message, error))
        except MetaqError as failure:
            log.warning("%s, of which no value can be made, is filed without saying why: %s", message, failure)
            await self._give_back(chunk, message, DEAD_LETTER_LEVEL)

    async def drain(self) -> None:
        """Wait a while for requests in progress; other messages stay unfinished and are delivered again."""
        if self._busy:
            await asyncio.wait(list(self._busy), timeout=self._seconds.drain)

    async def _send(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        try:
            await self._give_back(chunk, message, delay_level)
        except MetaqError as error:  # not only FAULTS: a request that cannot be encoded must not lose the message
            log.warning("%s was not taken back (%s): sending a copy to the retry topic", message, error)
            try:
                await self._send_failed_copy(message, delay_level)
            except MetaqError as failure:
                log.warning("%s comes again here in %s s: %s", message, self._seconds.again, failure)
                self._core.spawn(self._again(chunk, message))
                return
        chunk.flags[message.queue_offset - chunk.base] = 1

    async def _give_back(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, delay_level: int) -> None:
        """Send a message back, repeatedly until there is a response, for `give_back` seconds at most."""
        broker = chunk.window.queue.broker
        call = GiveBack(
            group=self._group,
            broker=broker,
            topic=message.topic,
            message_id=message.message_id,
            log_offset=message.log_offset,
            delay_level=delay_level,
            max_reconsume_times=self._max,
        )
        loop = asyncio.get_running_loop()
        patience = Patience(Purpose.GIVE_BACK, self._seconds.give_back, loop.time())
        while True:
            try:
                await self._core.ask_broker(broker, call)
            except FAULTS as error:
                if judge(error, Purpose.GIVE_BACK).maybe_done:  # `repeated`: our brokers recognise the request
                    call = structs.replace(call, repeated=True)
                if not call.repeated:  # surely not stored: a copy to the retry topic will be the only one
                    raise
                pause = patience.pause(error, loop.time())
                log.info("whether %s was taken back is unknown (%s): asking again", message, error)
            else:
                return
            await asyncio.sleep(pause)

    async def dead_letter(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage, *, exhausted: bool) -> None:
        """Store a message with the dead letters, as RocketMQ's orderly consumer does. Raises MetaqError.

        One that is `exhausted`, which has failed as often as it may, is sent to the retry topic like any message: its
        broker sees that it may not be tried again. A rejected one is given back.
        """
        if exhausted:
            times, level = message.reconsume_times, FIRST_RETRY_LEVEL + message.reconsume_times
            # Java's client sends them as properties too, and RocketMQ's tools show them.
            counts = {props.RECONSUME_TIME: str(times), props.MAX_RECONSUME_TIMES: str(self._max)}
            await self._send_copy(message, level, times, self._max, counts)
            return
        try:
            await self._give_back(chunk, message, DEAD_LETTER_LEVEL)
        except MetaqError as error:
            log.warning("%s was not taken back (%s): sending a copy to the retry topic", message, error)
            await self._send_copy(message, DEAD_LETTER_LEVEL, message.reconsume_times, message.reconsume_times)

    async def _send_failed_copy(
        self, message: ReceivedMessage, delay_level: int, more: Mapping[str, str] = NOTHING
    ) -> None:
        # A broker makes a dead letter of a message that is sent to the retry topic with reconsumeTimes >= the limit. For 36 it
        # compares the failures before this one; here this one is included, so the limit is one more.
        limit = self._max + 1
        if delay_level == DEAD_LETTER_LEVEL:
            await self._send_copy(message, delay_level, limit, limit, more)
        else:
            level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
            await self._send_copy(message, level, message.reconsume_times + 1, limit, more)

    async def _send_copy(
        self, message: ReceivedMessage, delay_level: int, times: int, times_max: int, more: Mapping[str, str] = NOTHING
    ) -> None:
        """Send a new message to the retry topic, which its broker turns into a dead letter if `times` reach `times_max`."""
        pairs = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        pairs[props.RETRY_TOPIC] = self._core.namespace.wrapped(message.topic)
        # As the broker does for 36, so that tools find the first copy.
        pairs[props.ORIGIN_MESSAGE_ID] = message.properties.get(props.ORIGIN_MESSAGE_ID, message.message_id)
        if delay_level != DEAD_LETTER_LEVEL:
            pairs[props.DELAY] = str(delay_level)
        pairs.update(more)
        self._make_room(pairs, message)
        body, sys_flag = message.body, 0
        if len(body) > BODY_BYTES_MAX:  # it came compressed, and no broker takes it uncompressed
            body = await asyncio.to_thread(compression.compress, body, COMPRESSION_ZLIB)
            sys_flag = int(SysFlag.COMPRESSED | COMPRESSION_ZLIB)
        outgoing = Outgoing(
            RETRY_PREFIX + self._group,
            body,
            sys_flag,
            flag=message.flag,
            properties=props.join(pairs),
            reconsume_times=times,
            max_reconsume_times=times_max,
        )
        await self._sender.send(outgoing, self._seconds.copy)

    def _make_room(self, pairs: dict[str, str], message: ReceivedMessage) -> None:
        """Remove properties that a copy can do without, if there is no room for what its broker adds."""
        # The message has been through a broker that added its cluster: what it has besides always fits.
        cluster = len(message.properties.get(props.CLUSTER, " " * 64).encode()) + len(props.CLUSTER) + 2
        delayed = len(RETRY_PREFIX + self._group) + 64
        if props.DELAY in pairs and not props.make_room(
            pairs, props.ADDED, props.PROPERTIES_BYTES_MAX - cluster - delayed
        ):
            del pairs[props.DELAY]
        props.make_room(pairs, (*props.ADDED, props.RETRY_TOPIC), props.PROPERTIES_BYTES_MAX - cluster)

    async def _again(self, chunk: Chunk[ReceivedMessage], message: ReceivedMessage) -> None:
        await asyncio.sleep(self._seconds.again)
        message.reconsume_times += 1
        # Counted locally, as Java's client does, so that it becomes a dead letter in the end.
        again = chunk.again(message)
        message._chunk = again  # noqa: SLF001  a slot for us
        self._handover.put(again)


# Of the old message's way through the broker: in a copy they would delay it anew, or lead it to its old queue.
_NOT_COPIED = {
    props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.MIN_OFFSET, props.MAX_OFFSET, props.TRANSACTION_PREPARED,
    props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES,
}  # fmt: skip


_REASON_BYTES_MAX = 512
_ROOM = 1024
"""Bytes of properties that brokers add on the way through the retry topic."""


def reason_for(message: ReceivedMessage, error: Exception) -> dict[str, str]:
    """Return the property with the reason why a body could not be deserialized; empty if there is no room for it."""
    room = props.PROPERTIES_BYTES_MAX - len(message.properties_raw) - _ROOM
    text = f"{type(error).__name__}: {error}".replace(props.NAME_END, " ").replace(props.PAIR_END, " ")
    # Cut by bytes, perhaps within a character, which is left out then.
    reason = text.encode("utf-8", "replace")[: max(0, min(room, _REASON_BYTES_MAX))].decode("utf-8", "ignore").strip()
    return {props.UNDECODABLE: reason} if reason else {}
