"""Answers to what administrators ask a running consumer through the broker (221, 307, 309): each when it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from metaq.client.shared.roles import Member
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.model.notices import ConsumeAsked, PositionsAsked, StateAsked
from metaq.wire import bodies
from metaq.wire.codes import ResponseCode, request_name
from metaq.wire.command import Command, reply

log = logging.getLogger("metaq.client")

Question = PositionsAsked | StateAsked | ConsumeAsked

UNDER_WAY_MAX = 64
"""Questions of all brokers together that wait for their answers; more are refused."""


class Answering:
    """The questions of one core. `spawn` runs a coroutine in the loop, until the core closes."""

    def __init__(self, spawn: Callable[[Awaitable[None]], object], limited_log: RateLimitedLog) -> None:
        self._spawn, self._limited_log = spawn, limited_log
        self._under_way = 0

    def begin(self, command: Command, question: Question, member: Member | None) -> Command | asyncio.Future[Command]:
        """In the loop: return the answer, or begin it. `member`: of the group that is asked for, None: none is here."""
        if member is None:
            if isinstance(question, PositionsAsked):
                return _with_body(command, bodies.member_positions({}))
            # RocketMQ's words.
            remark = f"The Consumer Group <{question.group}> not exist in this consumer"
            return reply(command, ResponseCode.SYSTEM_ERROR, remark=remark)
        if isinstance(question, PositionsAsked):
            return _with_body(command, bodies.member_positions(member.positions(question.topic)))
        if self._under_way >= UNDER_WAY_MAX:
            return reply(command, ResponseCode.SYSTEM_BUSY, remark=f"{UNDER_WAY_MAX} questions wait for answers here")
        self._under_way += 1
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._spawn(self._answer(command, question, member, answer))
        return answer

    async def _answer(
        self, command: Command, question: StateAsked | ConsumeAsked, member: Member, answer: asyncio.Future[Command]
    ) -> None:
        try:
            if isinstance(question, StateAsked):
                found = bodies.member_state(await member.state(stacks=question.stacks))
            else:
                found = bodies.consumed_directly(await member.consume(question.record, question.broker))
            answer.set_result(_with_body(command, found))
        except MetaqError as error:
            answer.set_result(reply(command, ResponseCode.SYSTEM_ERROR, remark=str(error)))
        except Exception as error:  # noqa: BLE001  whatever it is, the administrator is told
            name = request_name(command.code)
            self._limited_log.warning(("unanswerable", command.code), "%s cannot be answered: %r", name, error)
            answer.set_result(reply(command, ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"))
        finally:
            self._under_way -= 1


def _with_body(command: Command, body: bytes) -> Command:
    answer = reply(command)
    answer.body = body
    return answer
