"""Handlers: the functions that `run` calls for each message, looked at before the first one, and what they return.

A handler of the wrong kind fails every message: an `async def` that nobody awaits, a plain function in asyncio, a
function with `yield`, one that takes no message. All of them would end with the dead letters, so `run` refuses what it
can see. What it cannot see (a lambda or a wrapper may return an awaitable or not) shows with the first result: then
`run` ends with a TypeError and the message stays unfinished.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause, Reject
from metaq.client.shared.values import Received_co
from metaq.model import Message

log = logging.getLogger("metaq.client")

Handler = Callable[[ReceivedMessage], object]
AsyncHandler = Callable[[ReceivedMessage], Awaitable[object]]
BatchHandler = Callable[[list[ReceivedMessage]], object]
AsyncBatchHandler = Callable[[list[ReceivedMessage]], Awaitable[object]]
Handles: TypeAlias = (
    Callable[[ReceivedMessage[Received_co]], object]
    | Callable[[Message], object]
    | Callable[[list[ReceivedMessage[Received_co]]], object]
    | Callable[[list[Message]], object]
)
"""What `run` takes. A `Message` is what a received one has in common with one to send: such a handler settles by its result."""
HandlesAsync: TypeAlias = (
    Callable[[ReceivedMessage[Received_co]], Awaitable[object]]
    | Callable[[Message], Awaitable[object]]
    | Callable[[list[ReceivedMessage[Received_co]]], Awaitable[object]]
    | Callable[[list[Message]], Awaitable[object]]
)
"""What `run` takes in asyncio, without `processes`."""
Hand = ReceivedMessage | list[ReceivedMessage]
"""What a handler is called with."""


def check_handler(handler: object, *, awaited: bool, taking: str = "one message") -> None:
    """Raises TypeError: `run` cannot call it with one message, or a list of them, or cannot use what it returns."""
    if not callable(handler):
        raise TypeError(f"the handler is {handler!r}: pass a function that takes {taking}")
    function = _function(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"the handler {name_of(handler)} has a `yield`: calling it would run nothing of it")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and not awaited:
        raise _not_awaited(handler)
    if awaited and not is_async and _surely_plain(function):
        raise _not_awaitable(handler)
    try:
        signature = inspect.signature(handler)
    except ValueError:  # Native code, whose signature may be unknown.
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise TypeError(f"the handler {name_of(handler)}{signature} cannot be called with {taking}: {error}") from None


def handle(message: ReceivedMessage, handler: Handler) -> None:
    """Call `handler` and settle the message by its result. Raises TypeError: it returned an awaitable."""
    try:
        result = handler(message)
    except BaseException as error:
        if not message.settle(error):
            raise
        return
    # First, for nearly all handlers return it: the other questions cost more than this one.
    if result is None:
        message.ack()
        return
    if inspect.isawaitable(result):
        _discard(result)
        raise _not_awaited(handler)
    settle_by_result(message, result)


def handle_batch(messages: list[ReceivedMessage], handler: BatchHandler) -> None:
    """Call `handler` and settle by its result those messages that it has not settled itself. Raises as `handle`."""
    try:
        result = handler(list(messages))  # It may do with its list what it likes.
    except BaseException as error:
        if not settle_all(messages, error):
            raise
        return
    if result is not None and inspect.isawaitable(result):
        _discard(result)
        raise _not_awaited(handler)
    _settle_batch(messages, result)


def _settle_batch(messages: Sequence[ReceivedMessage], result: object) -> None:
    if result is None:
        for message in messages:
            message.ack()  # Which changes nothing where the handler has settled it.
        return
    for message in messages:
        # What the handler has said of a message itself stands.
        if not message.settled:
            settle_by_result(message, result)


async def handle_async(message: ReceivedMessage, handler: AsyncHandler) -> None:
    """Await `handler` and settle the message by its result. Raises TypeError: it returned something else."""
    try:
        result = await _result(message, handler)
    except _Plain:
        raise _not_awaitable(handler) from None
    except asyncio.CancelledError as error:
        if _cancelled_from_outside():
            message.settle(error)
            raise
        log.warning("handling %s was cancelled from within, it will be delivered again", message)
        message.retry()
    except BaseException as error:
        if not message.settle(error):
            raise
    else:
        settle_by_result(message, result)


async def handle_batch_async(messages: list[ReceivedMessage], handler: AsyncBatchHandler) -> None:
    """As `handle_batch`, awaited."""
    try:
        result = await _result(list(messages), handler)
    except _Plain:
        raise _not_awaitable(handler) from None
    except asyncio.CancelledError as error:
        if _cancelled_from_outside():
            settle_all(messages, error)
            raise
        log.warning("handling %s was cancelled from within, they will be delivered again", _batch_name(messages))
        settle_all(messages, Later())
    except BaseException as error:
        if not settle_all(messages, error):
            raise
    else:
        _settle_batch(messages, result)


class _Plain(Exception):
    """Raised when a handler returned something that cannot be awaited."""


async def _result(hand: Any, handler: Callable[[Any], Awaitable[object]]) -> object:
    """Await what the handler returned. Raises _Plain, and what the handler raises."""
    outcome = handler(hand)
    # The first test is quick and nearly always true.
    if isinstance(outcome, types.CoroutineType) or inspect.isawaitable(outcome):
        return await outcome
    raise _Plain


def _cancelled_from_outside() -> bool:
    """Whether this task itself was cancelled. If not, what the handler awaited was, which must not end the worker in
    silence."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def settle_all(messages: Sequence[ReceivedMessage], error: BaseException) -> bool:
    """Settle those that are not settled for what their handling raised. Returns whether the error ends here."""
    ends = isinstance(error, Exception)
    if ends and not isinstance(error, Later | Reject | Pause):
        log.warning("handling %s failed, they will be delivered again", _batch_name(messages), exc_info=error)
        # One line for all of them; `settle` would log each.
        error = Later()
    for message in messages:
        if not message.settled:
            message.settle(error)
    return ends


def _batch_name(messages: Sequence[ReceivedMessage]) -> str:
    return f"{len(messages)} messages of {messages[0].queue} from offset {messages[0].queue_offset} on"


def settle_by_result(message: ReceivedMessage, result: object) -> None:
    """Settle a message by what its handler returned."""
    if result is None:
        message.ack()
    elif isinstance(result, Later | Reject | Pause):
        message.settle(result)
    elif result is Reject:
        message.reject()
    else:
        log.error(
            "the handler returned %r for %s: need None, Later, Pause or Reject; it will be delivered again",
            result, message,
        )  # fmt: skip
        message.retry()


def _function(handler: Any) -> Any:
    """What runs when `handler` is called, as far as it can be seen."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.isroutine(handler) or inspect.isclass(handler) or inspect.iscoroutinefunction(handler):
        return handler
    return type(handler).__call__


def _surely_plain(function: Any) -> bool:
    """Whether it is a plain `def` whose annotations do not say that it might return an awaitable."""
    return (
        (inspect.isfunction(function) or inspect.ismethod(function))
        and not hasattr(function, "__wrapped__")
        and function.__name__ != "<lambda>"
        and function.__annotations__.get("return") in {None, "None"}
    )


def _not_awaited(handler: object) -> TypeError:
    return TypeError(
        f"the handler {name_of(handler)} is asynchronous, and nobody awaits it here: use metaq.aio.Consumer, or a handler "
        "made with `def`"
    )


def _not_awaitable(handler: object) -> TypeError:
    return TypeError(
        f"the handler {name_of(handler)} is not asynchronous: make it `async def`, and call what blocks with "
        "asyncio.to_thread; or use metaq.Consumer, whose run() has threads"
    )


def name_of(handler: object) -> str:
    return getattr(handler, "__qualname__", None) or repr(handler)


def _discard(result: object) -> None:
    """Close a coroutine that is never awaited: it would warn of that, beside our error."""
    if isinstance(result, Coroutine):
        result.close()
