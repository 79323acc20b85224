"""Request-reply (324, 325): pushes a reply to the client that waits for it (326), and stores it.

A requester sends an ordinary message with its client id in REPLY_TO_CLIENT. The consumer sends the reply, which names that
client id, to any broker the requester is connected with. No state is kept of requests; a reply is kept until the requester
confirms it, for `CONFIRM_SECONDS` at most, or until its connection ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from metaq.broker.channel import Unanswered
from metaq.broker.environment import Environment, Tables
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import sent_record
from metaq.broker.part import BrokerPart
from metaq.broker.requests import Send
from metaq.broker.send import SendService
from metaq.errors import Reason, Refused
from metaq.log import RateLimitedLog
from metaq.model import properties as props
from metaq.wire.record import offset_id

log = logging.getLogger(__name__)

# RocketMQ's time-out of PUSH_REPLY_MESSAGE_TO_CLIENT.
CONFIRM_SECONDS = 10.0
NOT_STORED_ID = "0"
"""Message id in the response for a reply that was pushed but not stored, as RocketMQ sends it."""


class PushReply(Struct, frozen=True):
    """The question PUSH_REPLY_MESSAGE_TO_CLIENT (326). The answer is None, or a text that says why the reply was not taken."""

    reply: Send
    properties: str
    """Properties of the reply, with PUSH_REPLY_TIME."""
    store_host: bytes
    store_ms: int


class Pushed(Struct, frozen=True):
    """Result of a pushed reply, with its place in the log if it was stored."""

    queue_id: int
    message_id: str = NOT_STORED_ID
    queue_offset: int = 0


Outcome: TypeAlias = Pushed | Refused
Done: TypeAlias = Callable[[Outcome], None]


class ReplyService(BrokerPart):
    """Pushes and stores replies."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        sends: SendService,
        appender: Appender,
        call_soon: Callable[[Callable[[], object]], None],
    ) -> None:
        """Args: call_soon: runs a callback after pending responses are written, then answers held pulls for what it appended."""
        self._environment, self._members = environment, tables.members
        self._sends, self._appender, self._call_soon = sends, appender, call_soon
        self._log = RateLimitedLog(log, environment.clock)

    def tick(self) -> None:
        """Run periodic work: report repeated log lines."""
        self._log.tick()

    def reply(self, send: Send, done: Done) -> None:
        """Push a reply to its requester. `done` is called once, with the confirmation or the reason why there is none.

        As with RocketMQ, the response depends on the push alone, and the reply is stored either way, unless
        `storeReplyMessageEnable` is off. A failure to store is only logged, since the requester has the reply.

        Raises Refused; Saving while its topic is being created. Then it is neither stored nor pushed, and `done` is not called.
        """
        queue_id = self._sends.queue_of(send)
        if send.batch:
            raise Refused(Reason.ILLEGAL_MESSAGE, "no batch may be a reply: send replies singly")
        pairs = props.parse(send.properties)
        pushed: Pushed | None = None

        def keep() -> Pushed:
            nonlocal pushed
            if pushed is None:
                # Once: a confirmation may come before or after the turn of the loop in which the reply is stored.
                wanted = self._environment.options.store_reply_message_enable
                pushed = self._store(send, queue_id, pairs) if wanted else Pushed(queue_id)
            return pushed

        refused = self._push(send, pairs, lambda: done(keep()), done)
        # After the push is written: the requester waits for that, nobody for the copy in the log.
        self._call_soon(keep)
        if refused is not None:
            done(refused)

    def _push(
        self, send: Send, pairs: dict[str, str], confirmed: Callable[[], None], failed: Callable[[Refused], None]
    ) -> Refused | None:
        """Push the reply, and call `confirmed` or `failed` later; or return why it was not pushed."""
        requester = pairs.get(props.REPLY_TO)
        if requester is None:
            # RocketMQ's texts: clients show them, and Java's responder sends the reply again.
            return Refused(Reason.INVALID, f"reply message properties[{props.REPLY_TO}] is null")
        channel = self._members.connection_of(requester)
        if channel is None:
            # The texts are bounded, because the id is whatever a client has sent.
            return Refused(Reason.INVALID, f"push reply message fail, channel of <{requester:.300}> not found.")
        if channel.congested:
            # The push would be queued behind what the requester does not read.
            return Refused(
                Reason.BUSY, f"the requester {requester:.300} does not read what it is sent: try again later"
            )
        now = self._environment.clock.now_ms()
        question = PushReply(send, props.join(pairs | {props.PUSH_TIME: str(now)}), self._environment.store_host, now)

        def answered(answer: object) -> None:
            if answer is None:
                # None is the requester's SUCCESS.
                confirmed()
            else:
                failed(_refused(requester, answer))

        channel.ask(question, CONFIRM_SECONDS, answered)
        return None

    def _store(self, send: Send, queue_id: int, pairs: dict[str, str]) -> Pushed:
        try:
            record = sent_record(send, send.topic, queue_id, pairs)
            put = self._appender.put([record])
        except Refused as error:
            self._log.warning(
                send.topic,
                "a reply to topic %s is not stored, its requester gets it all the same: %s",
                send.topic,
                error,
            )
            return Pushed(queue_id)
        return Pushed(queue_id, offset_id(self._environment.store_host, put.log_offset), put.queue_offset)


def _refused(requester: str, answer: object) -> Refused:
    why = answer.value if isinstance(answer, Unanswered) else str(answer)
    # A retriable code (SYSTEM_BUSY) if it may succeed later; other reasons are final.
    reason = Reason.BUSY if answer is Unanswered.TOO_MANY else Reason.INVALID
    return Refused(reason, f"push reply message to {requester:.300} fail: {why:.300}")
