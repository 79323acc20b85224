"""Commands under way on one connection, and the answers that belong to them.

A server answers in any order; the opaque alone says to which command an answer belongs. Java's client counts it from the least
number of 32 bits on, and so does this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from metaq.errors import RemoteProtocolError
from metaq.wire.metaq1.commands import (
    Answer,
    Command,
    Reader,
    ResultLine,
    TooLong,
    ValueLine,
    encode,
    whole_result,
)

FIRST_OPAQUE: Final = -(2**31)
_OPAQUES: Final = 2**32
ANSWER_BYTES_MAX: Final = 16 << 20
"""Longest body of an answer: several times what a consumer asks for at once."""

Waiter = TypeVar("Waiter")
Make = Callable[[int], Command | bytes]
"""Makes a command with the opaque that it is given, or its bytes."""


class Pipeline(Generic[Waiter]):
    """Numbers commands, and finds for each answer who waits for it.

    Args: answer_bytes_max: longest body of an answer; that of a longer one is passed over.
    """

    def __init__(self, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._reader = Reader(answer_bytes_max)
        self._numbers = itertools.count()  # a thread may send beside the loop
        self._waiting: dict[int, Waiter] = {}
        self.broken: RemoteProtocolError | None = None
        """Why nothing more can be read: what came is no answer. The connection must end."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def needed(self) -> int:
        """Bytes of the unfinished answer, counted from its start; 0 while unknown."""
        return self._reader.needed

    def send(self, make: Make, waiter: Waiter) -> tuple[int, bytes]:
        """Any thread: return the opaque of a command and its bytes; its answer belongs to `waiter`.

        Raises LocalProtocolError: a word of it cannot be written; nobody waits then.
        """
        opaque = self._opaque()
        while opaque in self._waiting:  # after 2**32 commands, beside one that still waits
            opaque = self._opaque()
        made = make(opaque)
        data = made if isinstance(made, bytes) else encode(made)
        self._waiting[opaque] = waiter
        return opaque, data

    def receive(self, data: bytes, start: int = 0) -> tuple[list[tuple[Waiter, Answer | TooLong]], int]:
        """Return the answers in `data[start:]` with those who wait for them, and the end of the last one.

        Answers that nobody waits for are left out: those to commands whose time was up. Raises nothing: see `broken`.
        """
        found: list[tuple[Waiter, Answer | TooLong]] = []
        reader, waiting = self._reader, self._waiting
        while start < len(data):
            if not reader.passing and (whole := whole_result(data, start, reader.body_bytes_max)) is not None:
                result, start = whole
                reader.forget()
                waiter = waiting.pop(result.opaque, None)
                if waiter is not None:
                    found.append((waiter, result))
                continue
            try:
                line, end = reader.next(data, start)
            except RemoteProtocolError as error:
                self.broken = error
                break
            if line is None:
                return found, end
            start = end
            answer = line.line if isinstance(line, TooLong) else line
            # A server sends nothing unasked: a command from there is passed over, as by the original's client.
            if isinstance(answer, ResultLine | ValueLine):
                waiter = waiting.pop(answer.opaque, None)
                if waiter is not None:
                    found.append((waiter, line if isinstance(line, TooLong) else answer))
        return found, start

    def forget(self, opaque: int) -> None:
        """Any thread: nobody waits for this answer any more."""
        self._waiting.pop(opaque, None)

    def end(self) -> list[Waiter]:
        """Return those who wait, in the order of their commands; no answer will come."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def _opaque(self) -> int:
        return FIRST_OPAQUE + next(self._numbers) % _OPAQUES
