"""Answers to requests whose work takes longer than a parked request may wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metaq.saved import PendingOutcome
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later

T = TypeVar("T")


def answer_when_done(call: Call[Any], pending: PendingOutcome[T], encode: Callable[[T], Answer]) -> Later:
    """Answer when `pending` has ended, however long that takes: parked requests (`After`) wait a few seconds only."""

    def work() -> Answer:
        return encode(pending.outcome())

    call.session.put_off(call.command)
    pending.when_done(lambda _error: call.session.answer_late(call.command, work))
    return LATER
