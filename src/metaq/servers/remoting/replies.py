"""Replies to requests of clients (324, 325), and their push to the requester (326)."""

from __future__ import annotations

from typing import Final

from metaq.broker.broker import Broker
from metaq.broker.replies import Outcome, PushReply
from metaq.errors import Refused
from metaq.model.access import Action
from metaq.model.message import host_of
from metaq.net.address import join_address
from metaq.servers.remoting.asking import Asking, Spelling
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later, Reply, handles
from metaq.servers.remoting.messages import send_of
from metaq.servers.remoting.session import session_of
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request

REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)


class ReplyHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @handles(REPLIES, headers.SendHeader, Action.PUBLISH)
    def _reply(self, call: Call[headers.SendHeader]) -> Later:
        send = send_of(call.header, call.body, session_of(call).born_host, call.version)
        call.session.put_off(call.command)
        # Answered once the requester has taken the reply or failed to: RocketMQ's code tells of the push alone, not of
        # the stored copy.
        self._broker.replies.reply(
            send, lambda outcome: call.session.answer_late(call.command, lambda: self._answer(outcome))
        )
        return LATER

    def _answer(self, outcome: Outcome) -> Answer:
        """Return the answer to a reply. Raises Refused."""
        if isinstance(outcome, Refused):
            raise outcome
        options = self._broker.options
        answer = headers.SendReplyHeader(
            message_id=outcome.message_id, queue_id=outcome.queue_id, queue_offset=outcome.queue_offset
        )
        trace = "true" if options.trace_on else "false"
        # As in the answer to a send.
        return Reply({**answer.to_ext(), "MSG_REGION": options.region_id, "TRACE_ON": trace})


def push_of(question: PushReply) -> Command:
    """Return PUSH_REPLY_MESSAGE_TO_CLIENT (326) with a reply."""
    reply = question.reply
    header = headers.PushReplyHeader(
        producer_group=reply.producer_group,
        topic=reply.topic,
        default_topic=reply.template,
        default_topic_queues=reply.template_queues,
        queue_id=reply.queue_id,
        sys_flag=reply.sys_flag,
        born_ms=reply.born_ms,
        flag=reply.flag,
        properties=question.properties,
        reconsume_times=reply.reconsume_times,
        unit_mode=reply.unit,
        born_host=join_address(*host_of(reply.born_host)),
        store_host=join_address(*host_of(question.store_host)),
        store_ms=question.store_ms,
    )
    return request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, reply.body)


def confirmed(answer: Command) -> str | None:
    """Return why the requester did not take a reply; None if it did."""
    if answer.code == ResponseCode.SUCCESS:
        return None
    return f"it answered code {answer.code}, {answer.remark or 'without a reason'}"


ASKING: Final[Asking] = {PushReply: Spelling(push_of, confirmed)}
