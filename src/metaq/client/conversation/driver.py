"""Drives calls and conversations, for threads that may block and for those that await. No socket, no event loop: whoever
waits, waits in the function that is passed in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar

from metaq.client.conversation.call import Call
from metaq.errors import MetaqError
from metaq.wire.command import Command

T = TypeVar("T")
Key = TypeVar("Key")
Step = TypeVar("Step")


def converse(conversation: Generator[Step, Any, T], answer: Callable[[Step], object]) -> T:
    """Run a conversation: `answer` makes an outcome of each step, until there is a result. A MetaqError of `answer` is
    thrown into the conversation; one that it does not catch is raised."""
    try:
        step = next(conversation)
        while True:
            try:
                value = answer(step)
            except MetaqError as error:
                step = conversation.throw(error)
            else:
                step = conversation.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


def converse_all(
    conversations: Mapping[Key, Generator[Step, Any, T]],
    answer: Callable[[Mapping[Key, Step]], Mapping[Key, object]],
) -> dict[Key, T]:
    """Run several conversations side by side: `answer` gets one step of each that goes on, and answers them all.

    Raises what `answer` and the conversations raise.
    """
    results: dict[Key, T] = {}
    outcomes: Mapping[Key, object] = dict.fromkeys(conversations)  # None begins a generator.
    while outcomes:
        steps: dict[Key, Step] = {}
        for key, value in outcomes.items():
            try:
                steps[key] = conversations[key].send(value)
            except StopIteration as end:
                results[key] = end.value
        outcomes = answer(steps) if steps else {}
    return results


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


async def converse_async(conversation: Generator[Step, Any, T], answer: Callable[[Step], Awaitable[object]]) -> T:
    """`converse` for those that await."""
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
