"""Replies to requests: on to whoever waits for them, and into the log.

A requester sends an ordinary message that says who he is, and waits. Whoever consumes it sends the reply, which names the
requester, to any broker that he is connected with. Nothing is kept here of a request; of a reply as long as the requester
has not confirmed it, which ends after `CONFIRM_SECONDS` at the latest, or with his connection.
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

CONFIRM_SECONDS = 10.0
NOT_STORED_ID = "0"
"""The message id of a reply that is handed on and not stored, as RocketMQ tells it."""


class PushReply(Struct, frozen=True):
    """The question to a requester: do you have this reply? Its answer is None, or a text that says why not."""

    reply: Send
    properties: str
    """Those of the reply, and when it was handed on."""
    store_host: bytes
    store_ms: int


class Pushed(Struct, frozen=True):
    """A reply that its requester has. Where it is stored, if it is."""

    queue_id: int
    message_id: str = NOT_STORED_ID
    queue_offset: int = 0


Outcome: TypeAlias = Pushed | Refused
Done: TypeAlias = Callable[[Outcome], None]


class ReplyService(BrokerPart):
    """Takes what responders send."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        sends: SendService,
        appender: Appender,
        call_soon: Callable[[Callable[[], object]], None],
    ) -> None:
        """Args: call_soon: calls a function when what was written is out, and answers the pulls that wait for what it appends."""
        self._environment, self._members = environment, tables.members
        self._sends, self._appender, self._call_soon = sends, appender, call_soon
        self._log = RateLimitedLog(log, environment.clock)

    def tick(self) -> None:
        """Let time pass."""
        self._log.tick()

    def reply(self, send: Send, done: Done) -> None:
        """Hand a reply on. `done` is called once, when the requester has confirmed it or it is known that he will not.

        As with RocketMQ it is stored either way, unless `storeReplyMessageEnable` is off; that it could not be stored is
        said in the log alone, for the requester has it.
        Raises Refused, or Saving while its topic is being made: then it is neither stored nor handed on, and `done` is not
        called.
        """
        queue_id = self._sends.queue_of(send)
        if send.batch:
            raise Refused(Reason.ILLEGAL_MESSAGE, "no batch may be a reply: send replies singly")
        pairs = props.parse(send.properties)
        pushed: Pushed | None = None

        def keep() -> Pushed:
            nonlocal pushed
            if pushed is None:
                wanted = self._environment.options.store_reply_message_enable
                pushed = self._store(send, queue_id, pairs) if wanted else Pushed(queue_id)
            return pushed

        refused = self._push(send, pairs, lambda: done(keep()), done)
        self._call_soon(keep)  # When the reply is on its way: somebody waits for it.
        if refused is not None:
            done(refused)

    def _push(
        self, send: Send, pairs: dict[str, str], confirmed: Callable[[], None], failed: Callable[[Refused], None]
    ) -> Refused | None:
        """Ask the requester whether it has the reply, and call one of the two when it is known; or return why it is not asked."""
        requester = pairs.get(props.REPLY_TO)
        if requester is None:
            return Refused(Reason.INVALID, f"reply message properties[{props.REPLY_TO}] is null")
        channel = self._members.connection_of(requester)
        if channel is None:
            return Refused(Reason.INVALID, f"push reply message fail, channel of <{requester:.300}> not found.")
        if channel.congested:
            return Refused(
                Reason.BUSY, f"the requester {requester:.300} does not read what it is sent: try again later"
            )
        now = self._environment.clock.now_ms()
        question = PushReply(send, props.join(pairs | {props.PUSH_TIME: str(now)}), self._environment.store_host, now)

        def answered(answer: object) -> None:
            if answer is None:
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
    reason = Reason.BUSY if answer is Unanswered.TOO_MANY else Reason.INVALID
    return Refused(reason, f"push reply message to {requester:.300} fail: {why:.300}")
