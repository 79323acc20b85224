"""Questions to clients that wait for their answers."""

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
"""Of one server, that wait for their answers."""
PEER_QUESTIONS_MAX = 1024
"""Of one connection: a requester gets the replies to that many requests at once."""


class Spelling(NamedTuple):
    """How a question is asked in the remoting protocol."""

    request: Callable[[Any], Command]
    """The question → a request, whose number the session gives."""
    answer: Callable[[Command], Any]
    """The response → the answer. Raises MetaqError: it cannot be understood."""


Asking: TypeAlias = Mapping[type, Spelling]
"""Type of question → its spelling."""


class Asker(Protocol):
    """A connection that questions go out on."""

    def push(self, command: Command) -> None:
        """Send a request of our own and give it a number."""
        ...


class _Question(Struct, eq=False):
    spelling: Spelling
    done: OnAnswer
    deadline: float


class Questions:
    """All questions of one server. Each ends once: by its answer, its time, or the end of its connection."""

    def __init__(
        self, clock: Clock, asking: Asking, all_max: int = QUESTIONS_MAX, peer_max: int = PEER_QUESTIONS_MAX
    ) -> None:
        self._clock, self._asking, self._all_max, self._peer_max = clock, asking, all_max, peer_max
        self._waiting: dict[Asker, dict[int, _Question]] = {}
        """By connection and number of the request."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ask(self, asker: Asker, question: object, seconds: float, done: OnAnswer) -> None:
        """Ask; `done` is called once, perhaps before this returns."""
        spelling = self._asking.get(type(question))
        mine = self._waiting.get(asker, {})
        if spelling is None:
            done(Unanswered.UNKNOWN)
        elif self._count >= self._all_max or len(mine) >= self._peer_max:
            done(Unanswered.TOO_MANY)
        else:
            command = spelling.request(question)
            asker.push(command)
            self._waiting.setdefault(asker, {})[command.opaque] = _Question(
                spelling, done, self._clock.monotonic() + seconds
            )
            self._count += 1

    def answered(self, asker: Asker, command: Command) -> None:
        """A response came. One that nobody waits for, or not any more, is passed over."""
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
        """The connection has ended."""
        for number in list(self._waiting.get(asker, ())):
            self._end(asker, number, Unanswered.GONE)

    def expire(self) -> None:
        """End those whose time is up."""
        now = self._clock.monotonic()
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
    """Whoever asked may fail over the answer; the connection, its end and the other questions are not to pay for it."""
    try:
        question.done(answer)
    except Exception:
        log.exception("what was to be done with the answer to a question failed")
