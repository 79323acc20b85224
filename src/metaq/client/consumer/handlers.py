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
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from metaq.client.consumer.outcome import Later, Reject
from metaq.client.consumer.received import ReceivedMessage

log = logging.getLogger("metaq.client")

Handler = Callable[[ReceivedMessage], object]
AsyncHandler = Callable[[ReceivedMessage], Awaitable[object]]


def check_handler(handler: object, *, awaited: bool) -> None:
    """Raises TypeError: `run` cannot call it with one message, or cannot use what it returns."""
    if not callable(handler):
        raise TypeError(f"the handler is {handler!r}: pass a function that takes one message")
    function = _function(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"the handler {_name(handler)} has a `yield`: calling it would run nothing of it")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and not awaited:
        raise _not_awaited(handler)
    if awaited and not is_async and _surely_plain(function):
        raise _not_awaitable(handler)
    try:
        signature = inspect.signature(handler)
    except ValueError:  # Native code, which may not tell.
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise TypeError(f"the handler {_name(handler)}{signature} cannot be called with one message: {error}") from None


def handle(message: ReceivedMessage, handler: Handler) -> None:
    """Call `handler` and settle the message by its result. Raises TypeError: it returned an awaitable."""
    try:
        result = handler(message)
    except BaseException as error:
        if not message.settle(error):
            raise
        return
    if result is not None and inspect.isawaitable(result):
        _discard(result)
        raise _not_awaited(handler)
    settle_by_result(message, result)


async def handle_async(message: ReceivedMessage, handler: AsyncHandler) -> None:
    """Await `handler` and settle the message by its result. Raises TypeError: it returned something else."""
    try:
        outcome = handler(message)
        if isinstance(outcome, types.CoroutineType) or inspect.isawaitable(outcome):
            result, plain = await outcome, False
        else:
            result, plain = None, True
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled us: what the handler awaited was cancelled. That must not end this worker in silence.
        log.warning("handling %s was cancelled from within, it will be delivered again", message)
        message.retry()
        return
    except BaseException as error:
        if not message.settle(error):
            raise
        return
    if plain:
        raise _not_awaitable(handler)
    settle_by_result(message, result)


def settle_by_result(message: ReceivedMessage, result: object) -> None:
    """Settle a message by what its handler returned."""
    if result is None:
        message.ack()
    elif isinstance(result, Later | Reject):
        message.settle(result)
    elif result is Reject:
        message.reject()
    else:
        log.error(
            "the handler returned %r for %s: need None, Later or Reject; it will be delivered again", result, message
        )
        message.retry()


def _function(handler: Any) -> Any:
    """What runs when `handler` is called, as far as it can be seen."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.isroutine(handler) or inspect.isclass(handler) or inspect.iscoroutinefunction(handler):
        return handler
    return type(handler).__call__


def _surely_plain(function: Any) -> bool:
    """Whether it is written with `def` and nothing says that it might return an awaitable all the same."""
    return (
        (inspect.isfunction(function) or inspect.ismethod(function))
        and not hasattr(function, "__wrapped__")
        and function.__name__ != "<lambda>"
        and function.__annotations__.get("return") in {None, "None"}
    )


def _not_awaited(handler: object) -> TypeError:
    return TypeError(
        f"the handler {_name(handler)} is asynchronous, and nobody awaits it here: use metaq.aio.Consumer, or a handler "
        "made with `def`"
    )


def _not_awaitable(handler: object) -> TypeError:
    return TypeError(
        f"the handler {_name(handler)} is not asynchronous: make it `async def`, and call what blocks with "
        "asyncio.to_thread; or use metaq.Consumer, whose run() has threads"
    )


def _name(handler: object) -> str:
    return getattr(handler, "__qualname__", None) or repr(handler)


def _discard(result: object) -> None:
    """A coroutine that is never awaited would warn of that, beside our error."""
    if isinstance(result, Coroutine):
        result.close()
