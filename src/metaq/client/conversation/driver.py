"""Drivers of calls and conversations, blocking and async. No socket, no event loop: waiting happens in the function passed in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from metaq.client.conversation.call import Call
from metaq.errors import AccessDenied, MetaqError
from metaq.wire.command import Command

if TYPE_CHECKING:
    from metaq.model.acl.secret import Credentials

T = TypeVar("T")
Key = TypeVar("Key")
Step = TypeVar("Step")


def converse(conversation: Generator[Step, Any, T], answer: Callable[[Step], object]) -> T:
    """Run a conversation to its result; `answer` returns the outcome of each step.

    A MetaqError of `answer` is thrown into the conversation; if it is not caught there, it is raised.
    """
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
    """Run several conversations in lockstep: `answer` gets one step of each unfinished one, and returns all outcomes.

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
    """Sends a command and returns its response: `metaq.client.shared.transport.Transport`, or a test's."""

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Raises ConnectionFailed, RequestTimeout, ClientClosed."""
        ...


async def ask(
    caller: Caller, address: str, call: Call[T], seconds: float | None = None, signer: Credentials | None = None
) -> T:
    """Return the outcome of a call. `seconds`: time-out instead of the call's own. `signer`: what the caller signs
    with, for errors.

    Raises what `Caller.call` raises, BrokerError: refused, BadRequest: the answer cannot be read.
    """
    answer = await caller.call(address, call.request(), call.seconds if seconds is None else seconds)
    return outcome_of(call, answer, address, signer)


def outcome_of(call: Call[T], answer: Command, address: str, signer: Credentials | None) -> T:
    """Return `call.outcome`, with the account in the error of a request that access control has refused."""
    try:
        return call.outcome(answer, address)
    except AccessDenied as error:
        error.account = signer.access_key if signer is not None else ""
        raise


async def converse_async(conversation: Generator[Step, Any, T], answer: Callable[[Step], Awaitable[object]]) -> T:
    """Run a conversation, as `converse`, with an async `answer`."""
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
