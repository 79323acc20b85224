"""Questions to running consumers (223, 307, 309), and what they are in the protocol."""

from __future__ import annotations

import logging
from typing import Final

from metaq.broker.broker import Broker
from metaq.broker.consumer_questions import AskPositions, AskState, AskToConsume, Positions
from metaq.errors import BrokerError
from metaq.model.access import Action
from metaq.servers.remoting.administration.later import answer_when_done
from metaq.servers.remoting.asking import Asking, Spelling
from metaq.servers.remoting.handlers import Answer, Call, Later, Reply, handles
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.record import parse_offset_id

log = logging.getLogger(__name__)


class ConsumerQuestionHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, headers.ConsumerStatusHeader, Action.OBSERVE)
    def _positions(self, call: Call[headers.ConsumerStatusHeader]) -> Later:
        header = call.header
        asked = self._broker.consumer_questions.positions(header.group, header.topic, header.client_id)
        return answer_when_done(call, asked, bodies.consumer_positions)

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO, headers.RunningInfoHeader, Action.OBSERVE)
    def _state(self, call: Call[headers.RunningInfoHeader]) -> Later:
        header = call.header
        asked = self._broker.consumer_questions.state(header.consumer_group, header.client_id, stacks=header.stacks)
        return answer_when_done(call, asked, _as_it_came)

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY, headers.ConsumeDirectlyHeader, Action.ADMINISTER)
    def _consume(self, call: Call[headers.ConsumeDirectlyHeader]) -> Later:
        header = call.header
        _, _, log_offset = parse_offset_id(header.message_id or "")
        question = AskToConsume(
            header.consumer_group,
            header.client_id or "",
            header.message_id or "",
            header.broker_name or self._broker.environment.name,
            self._broker.lookup.record(log_offset),
        )
        log.info(
            "%s has member %.200s of group %.255s consume the message %s",
            call.session.remote, question.client_id, question.group, question.message_id,
        )  # fmt: skip
        return answer_when_done(call, self._broker.consumer_questions.consume(question), _as_it_came)


def _as_it_came(answer: Command) -> Answer:
    return Reply(None, bytes(answer.body), answer.code, answer.remark)


def _positions_request(question: AskPositions) -> Command:
    header = headers.ConsumerStatusHeader(group=question.group, topic=question.topic)
    return request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)


def _positions_answer(answer: Command) -> Positions:
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "")
    return bodies.member_positions_of(answer.body) if answer.body else {}


def _state_request(question: AskState) -> Command:
    header = headers.RunningInfoHeader(
        consumer_group=question.group, client_id=question.client_id, stacks=question.stacks
    )
    return request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)


def _consume_request(question: AskToConsume) -> Command:
    header = headers.ConsumeDirectlyHeader(
        consumer_group=question.group,
        client_id=question.client_id,
        message_id=question.message_id,
        broker_name=question.broker,
    )
    return request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, question.record)


QUESTIONS: Final[Asking] = {
    AskPositions: Spelling(_positions_request, _positions_answer),
    AskState: Spelling(_state_request, lambda answer: answer),
    AskToConsume: Spelling(_consume_request, lambda answer: answer),
}
