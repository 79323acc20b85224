"""A slave's question what has changed in its master's tables (30014, ours: docs/replication.md).

It waits as a pull does: a change answers it within a tenth of a second, and until then it costs its memory alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from metaq.broker.broker import Broker
from metaq.errors import Reason, Refused
from metaq.in_pieces import InPieces
from metaq.model.access import Action
from metaq.model.failover import Place
from metaq.servers.remoting.handlers import LATER, Answer, Call, CallSession, handles
from metaq.wire import following, headers
from metaq.wire.codes import RequestCode

HELD_MAX: Final = 64
HELD_OF_HOST_MAX: Final = 16
"""Questions that wait, of all slaves and of those on one host."""
SUSPEND_SECONDS_MAX: Final = 30.0


class _Held(Struct, eq=False):
    call: Call[headers.FollowTablesHeader]
    host: str
    deadline: float


class FollowingHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._feed, self._clock = broker, broker.feed, broker.clock
        self._held: dict[CallSession, _Held] = {}
        """One question of a connection at most: a slave asks the next when it has the answer."""

    @handles(RequestCode.FOLLOW_TABLES, headers.FollowTablesHeader, Action.OBSERVE)
    def _follow(self, call: Call[headers.FollowTablesHeader]) -> Answer:
        header, session = call.header, call.session
        if header.member and header.store and (acks := self._broker.table_acks) is not None:
            acks.taken(Place(header.member, header.store), header.feed, header.position)
        if (earlier := self._held.pop(session, None)) is not None:
            self._answer(earlier)
        seconds = min(header.suspend_ms / 1000, SUSPEND_SECONDS_MAX)
        if seconds <= 0 or not self._broker.leads or self._feed.has_news(header.feed, header.position):
            return self._changes(header)
        host = session.peer.address[0]
        if len(self._held) >= HELD_MAX or sum(one.host == host for one in self._held.values()) >= HELD_OF_HOST_MAX:
            raise Refused(
                Reason.BUSY,
                f"{len(self._held)} slaves wait for changes of the tables, up to {HELD_MAX} may, and {HELD_OF_HOST_MAX} of one host",
            )
        # Not put off: a slave that sends no more takes over nothing, and its connection is not kept for this.
        self._held[session] = _Held(call, host, self._clock.monotonic() + seconds)
        return LATER

    def tick(self) -> None:
        """Answer whom a change concerns, and who has waited long enough. Called ten times a second."""
        self._feed.look()
        if (acks := self._broker.table_acks) is not None:
            acks.tick()
        if not self._held:
            return
        now, leads = self._clock.monotonic(), self._broker.leads
        for session, held in list(self._held.items()):
            header = held.call.header
            if session.peer.closed:
                del self._held[session]
            elif not leads or now >= held.deadline or self._feed.has_news(header.feed, header.position):
                del self._held[session]
                self._answer(held)

    def _answer(self, held: _Held) -> None:
        call = held.call
        work: Callable[[], Answer] = lambda: self._changes(call.header)  # noqa: E731  the type says what it may return
        call.session.answer_late(call.command, work)

    def _changes(self, header: headers.FollowTablesHeader) -> InPieces[Answer]:
        if not (self._broker.leads or self._broker.roles.has_led):
            raise Refused(
                Reason.UNAVAILABLE,
                f"this broker of {self._broker.environment.name} is a slave (brokerId {self._broker.options.broker_id}): its "
                "master tells what has changed",
            )
        return self._told(header)

    def _told(self, header: headers.FollowTablesHeader) -> InPieces[Answer]:
        changes = yield from self._feed.changes(header.feed, header.position)
        return following.table_changes(changes)
