"""Requests of a server to its clients, and their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from metaq.broker.channel import OnAnswer, Unanswered
from metaq.clock import Clock
from metaq.errors import MetaqError
from metaq.wire.command import Command

log = logging.getLogger(__name__)

QUESTIONS_MAX = 16 * 1024
"""Most open requests of one server."""
PEER_QUESTIONS_MAX = 1024
"""Most open requests on one connection: a requester gets the replies to as many requests at once."""


class Spelling(NamedTuple):
    """The form of a question in the remoting protocol."""

    request: Callable[[Any], Command]
    """Makes the request of a question; the session numbers it."""
    answer: Callable[[Command], Any]
    """Makes the answer of a response. Raises MetaqError: it cannot be read."""


Asking: TypeAlias = Mapping[type, Spelling]
"""Type of question → its form."""


class Asker(Protocol):
    """A connection that questions go out on."""

    def push(self, command: Command) -> None:
        """Number and send a request."""
        ...


class _Question(Struct, eq=False):
    spelling: Spelling
    done: OnAnswer
    deadline: float


class Questions:
    """The open questions of one server. Each ends once: by its answer, its time-out, or the end of its connection.

    Args:
        clock: of the time-outs.
        asking: types of questions that can be asked.
        all_max: most open questions.
        peer_max: most open questions on one connection.
    """

    def __init__(
        self, clock: Clock, asking: Asking, all_max: int = QUESTIONS_MAX, peer_max: int = PEER_QUESTIONS_MAX
    ) -> None:
        self._clock, self._asking, self._all_max, self._peer_max = clock, asking, all_max, peer_max
        self._waiting: dict[Asker, dict[int, _Question]] = {}
        """Connection → opaque → question."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ask(self, asker: Asker, question: object, seconds: float, done: OnAnswer) -> None:
        """Ask. `done` is called once, perhaps before this returns."""
        spelling = self._asking.get(type(question))
        mine = self._waiting.get(asker, {})
        if spelling is None:
            done(Unanswered.UNKNOWN)
        elif self._count >= self._all_max or len(mine) >= self._peer_max:
            done(Unanswered.TOO_MANY)
        else:
            command = spelling.request(question)
            # `push` numbers the request. The answer cannot come before the question is filed below: both run on the
            # loop.
            asker.push(command)
            self._waiting.setdefault(asker, {})[command.opaque] = _Question(
                spelling, done, self._clock.monotonic() + seconds
            )
            self._count += 1

    def answered(self, asker: Asker, command: Command) -> None:
        """Take a response. One that nobody waits for any more is ignored."""
        question = self._take(asker, command.opaque)
        if question is None:
            return
        try:
            answer = question.spelling.answer(command)
        except MetaqError:
            answer = Unanswered.UNREADABLE
        except Exception:
            log.exception("an answer to a question cannot be read")
            answer = Unanswered.UNREADABLE
        _end_with(question, answer)

    def gone(self, asker: Asker) -> None:
        """End the questions of a closed connection."""
        # A copy: each `_end` takes one out.
        for number in list(self._waiting.get(asker, ())):
            self._end(asker, number, Unanswered.GONE)

    def expire(self) -> None:
        """End the questions whose time is up."""
        now = self._clock.monotonic()
        # The questions are listed first: `done` may ask again, which changes the tables.
        late = [
            (asker, number)
            for asker, mine in self._waiting.items()
            for number, question in mine.items()
            if question.deadline <= now
        ]
        for asker, number in late:
            self._end(asker, number, Unanswered.TIMED_OUT)

    def _end(self, asker: Asker, number: int, why: Unanswered) -> None:
        question = self._take(asker, number)
        if question is not None:
            _end_with(question, why)

    def _take(self, asker: Asker, number: int) -> _Question | None:
        mine = self._waiting.get(asker)
        question = mine.pop(number, None) if mine else None
        if question is None:
            return None
        self._count -= 1
        if not mine:
            del self._waiting[asker]
        return question


def _end_with(question: _Question, answer: Any) -> None:
    """Call `done`. What it raises is logged: neither the connection nor the other questions are to suffer from it."""
    try:
        question.done(answer)
    except Exception:
        log.exception("what was to be done with the answer to a question failed")
