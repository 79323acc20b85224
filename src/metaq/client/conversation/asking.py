"""Drives calls and conversations for those that await, over anything that can exchange commands.

It knows no event loop: whoever waits, waits in `Caller.call`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeVar

from metaq.client.conversation.call import Call
from metaq.errors import MetaqError
from metaq.wire.command import Command

T = TypeVar("T")
Step = TypeVar("Step")


class Caller(Protocol):
    """Exchanges a command for its answer: `metaq.client.shared.transport.Transport`, or a test's."""

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Raises ConnectionFailed, RequestTimeout, ClientClosed."""
        ...


async def ask(caller: Caller, address: str, call: Call[T], seconds: float | None = None) -> T:
    """The outcome of a call; `seconds` to wait for it, if not the call's own.

    Raises what `Caller.call` raises, BrokerError: refused, BadRequest: the answer cannot be read.
    """
    answer = await caller.call(address, call.request(), call.seconds if seconds is None else seconds)
    return call.outcome(answer, address)


async def converse(conversation: Generator[Step, Any, T], answer: Callable[[Step], Awaitable[object]]) -> T:
    """Let `answer` make an outcome of each step until the conversation has its result.

    A MetaqError of `answer` is the conversation's to judge; what it does not take is raised.
    """
    try:
        step = next(conversation)
        while True:
            try:
                value = await answer(step)
            except MetaqError as error:
                step = conversation.throw(error)
            else:
                step = conversation.send(value)
    except StopIteration as end:
        result: T = end.value
        return result
