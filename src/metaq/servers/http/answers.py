"""Answers of the HTTP server, and work of services that takes turns with the other connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response

from metaq.clock import SYSTEM
from metaq.in_pieces import InPieces
from metaq.servers.http.problems import CONTENT_TYPE, Problem

T = TypeVar("T")

SLICE_SECONDS: Final = 0.002
"""Time that work in pieces has the loop before the others have their turn."""


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def problem_answer(problem: Problem) -> Response:
    """Return a problem as an answer."""
    return Response(problem.body(), problem.status, problem.headers, CONTENT_TYPE)


class Turns:
    """Turns of long work: a slice of time of the loop, then one of all others."""

    def __init__(self) -> None:
        self._until = SYSTEM.monotonic() + SLICE_SECONDS

    async def next(self) -> None:
        """Between two pieces: let the others run if this turn is over."""
        if SYSTEM.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = SYSTEM.monotonic() + SLICE_SECONDS


async def in_turns(work: InPieces[T]) -> T:
    """Run work in pieces, for a slice of time between two turns of the loop. Returns its result."""
    turns = Turns()
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await turns.next()
