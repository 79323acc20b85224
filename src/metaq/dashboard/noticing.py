"""Events: what looks at the cluster have noticed, when it began and when it was over. A bounded number, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from metaq.admin.brokers import BrokerStatus
from metaq.dashboard.pages.attention import Attention, called

EVENTS_MAX: Final = 500
"""Events that are kept, the newest."""
LASTING_MAX: Final = 2000
"""Of what lasts, so many are told apart."""
STARTED_MS: Final = 2000
"""A broker that has started so much later than before is another process: its clock may be set."""
_MOMENTS: Final = frozenset({"dead-letters"})
"""Kinds that do not last: each look tells of new ones."""


class Noticed(Struct):
    """An event. `level`: "bad", "warn" or "info". `pages`, `name`: the page about it, as of `Attention`.

    `ended_ms`: None: it lasts. Of what happened in a moment, the same as `at_ms`.
    """

    number: int
    at_ms: int
    level: str
    subject: str
    kind: str
    text: str
    pages: str
    name: str
    ended_ms: int | None


class EventLog:
    """The newest events of a cluster."""

    def __init__(self) -> None:
        self.events: deque[Noticed] = deque(maxlen=EVENTS_MAX)
        self._lasting: dict[tuple[str, str], Noticed] = {}
        self._brokers: dict[tuple[str, int], BrokerStatus] | None = None
        self._count = 0

    def note(self, found: Iterable[Attention], brokers: Sequence[BrokerStatus], now_ms: int) -> None:
        """Take what needs attention, and the brokers, in a look at that time."""
        present = set[tuple[str, str]]()
        for one in found:
            key = one.kind, one.subject
            present.add(key)
            known = self._lasting.get(key)
            if known is not None and one.kind not in _MOMENTS:
                known.text, known.level = one.text, one.level
                continue
            if known is None or known.text != one.text:
                self._add(one, now_ms, lasts=one.kind not in _MOMENTS)
        for key in [key for key in self._lasting if key not in present]:
            ended = self._lasting.pop(key)
            if ended.ended_ms is None:
                ended.ended_ms = now_ms
        self._note_brokers(brokers, now_ms)

    def _note_brokers(self, brokers: Sequence[BrokerStatus], now_ms: int) -> None:
        if not brokers:
            return
        before, self._brokers = self._brokers, {(one.broker, one.broker_id): one for one in brokers}
        if before is None:
            return
        for key, one in self._brokers.items():
            known = before.get(key)
            if known is None:
                self._moment(one, "is registered", "registered", now_ms)
            elif not one.started_ms:
                self._brokers[key] = known  # it is away; whether it is another process is seen when it is back
            elif known.started_ms and one.started_ms > known.started_ms + STARTED_MS:
                self._moment(one, "has started again", "started", now_ms)
        for key, one in before.items():
            if key not in self._brokers:
                self._moment(one, "is not registered any more", "gone", now_ms, level="warn")

    def _moment(self, one: BrokerStatus, text: str, kind: str, now_ms: int, level: str = "info") -> None:
        subject = f"Broker {called(one.broker, one.broker_id)}"
        self._add(Attention(level, subject, text, "brokers", one.address, kind), now_ms, lasts=False)

    def _add(self, one: Attention, now_ms: int, *, lasts: bool) -> None:
        self._count += 1
        event = Noticed(
            self._count,
            now_ms,
            one.level,
            one.subject,
            one.kind,
            one.text,
            one.pages,
            one.name,
            None if lasts else now_ms,
        )
        self.events.append(event)
        if lasts or one.kind in _MOMENTS:
            if len(self._lasting) >= LASTING_MAX:
                del self._lasting[next(iter(self._lasting))]
            self._lasting[one.kind, one.subject] = event
