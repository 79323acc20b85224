"""Long answers piece by piece, in turns.

An answer of 8 MiB made at once holds 8 MiB until its peer has read it, and the loop for 10 ms; three hundred of them
stop the loop for 3 s. So a long answer is a `Source`: its connection takes a piece when the peer has read the one
before, connections take turns, and a turn of the loop does no more than `TURN_BYTES` of such work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

TURN_BYTES = 1024 * 1024
"""Budget of long answers per turn of the loop: half a millisecond to a millisecond."""
JOB_COST = 256 * 1024
"""Share of a turn that a job counts for, in bytes; what it writes is counted on top."""


class Source(Protocol):
    """The bytes of one answer, made as the peer takes them."""

    def take(self, ready: Callable[[], None]) -> bytes | memoryview | None:
        """Return the next piece, empty behind the last; None while it is being read: `ready` is called on the event
        loop then.

        Raises what reading raises: the connection is closed, since its peer was promised the rest.
        """
        ...


class Taker(Protocol):
    """A connection with long answers to write."""

    def take_turn(self) -> int:
        """Do one piece of work, and `want` another turn if there is more. Returns its cost in bytes."""
        ...


class Turns:
    """The connections that want a turn, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[Taker] = deque()
        self._scheduled = False

    @property
    def free(self) -> bool:
        """Nobody waits for a turn: work may be done at once."""
        return not self._scheduled

    def want(self, taker: Taker) -> None:
        """Queue `taker` for one turn."""
        self._waiting.append(taker)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        left = TURN_BYTES
        try:
            while self._waiting and left > 0:
                # The turn ends by cost and not by number: one piece of a long answer may be as much work as a hundred
                # short jobs.
                left -= self._waiting.popleft().take_turn()
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run)
            else:
                self._scheduled = False
