"""What clients ask of a broker that led a moment ago, and leads no more, is relayed to the one that leads.

Clients learn of a new leader from the name servers, a Java client within 30 s. Until then they ask the one they know, whose log the
new leader has. Requests go over one connection, in the order in which they came, and their answers come back under the client's own
numbers.

A broker that comes to lead itself carries out what waits for a leader, in the same order and before anything that comes then.

Who leads next is known before it leads. So it is asked first, until it does; one of a release that does not tell gets the first request
alone, again until it is carried out. Only then the others follow: none overtakes another. A request that was refused was not carried
out, and one whose answer is lost may have been: that is never sent again, and its client is told so.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from metaq.broker.broker import Broker
from metaq.errors import ConfigError, ConnectionFailed, LocalProtocolError, Reason, Refused
from metaq.log import RateLimitedLog, when_dead
from metaq.model.access import WHITE, Caller
from metaq.servers.remoting.handlers import LATER, Answer, Call, Later, Reply
from metaq.servers.remoting.relay_link import RelayLink, link_to
from metaq.servers.remoting.session import BrokerSession, session_of
from metaq.wire.codes import RequestCode, ResponseCode, request_name
from metaq.wire.command import ONEWAY_FLAG, Command
from metaq.wire.extensions import IN_DOUBT_MARK, LEADING, NOT_LEADING, RELAYED_FIELD

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

log = logging.getLogger(__name__)

HOLD_SECONDS: Final = 2.0
"""So long a request waits for a leader that does not lead yet, or cannot be reached."""
ANSWER_SECONDS: Final = 10.0
"""And so long for the answer."""
RETRY_SECONDS: Final = 0.02
"""Pause before a leader that does not lead yet is asked again, or dialled again."""
BYTES_MAX: Final = 64 * 1024 * 1024
COUNT_MAX: Final = 50_000
"""Requests that are relayed at a time, and their bytes."""
PEER_BYTES_MAX: Final = BYTES_MAX // 4
PEER_COUNT_MAX: Final = COUNT_MAX // 4
"""The same of one connection."""
REQUEST_BYTES: Final = 512
"""Memory of a request beside its body and ext fields (estimate)."""

HOST_CHARS_MAX: Final = 64
"""An IPv6 address with a zone."""

Run: TypeAlias = Callable[[Call[Any]], Answer]


class _Relayed(Struct, eq=False):
    """A request that is relayed."""

    number: int
    """In the order in which they came."""
    call: Call[Any]
    session: BrokerSession
    size: int
    until: float
    """Until when it may be sent (again), monotonic seconds."""
    otherwise: Run | None
    """Answers it where no leader takes it; None: it is refused."""
    sent_at: float = 0.0


class _Failing(Struct):
    """No leader can be reached."""

    address: str
    since: float
    at: float
    """Of the first try that failed, and of the last one, monotonic seconds."""
    why: str


class Relay:
    """The relay of one broker. In its event loop.

    Args: tls: how it connects to the leader; None: without TLS.
    """

    def __init__(self, broker: Broker, tls: ClientTls | None = None) -> None:
        self._broker, self._roles, self._clock, self._tls = broker, broker.roles, broker.clock, tls
        self._waiting: list[tuple[int, _Relayed]] = []
        """A heap, by number: what was refused by one that does not lead comes before what has not been sent yet."""
        self._sent: dict[int, _Relayed] = {}
        """Requests under way, by their numbers on the connection, in the order in which they were sent."""
        self._of_peers: dict[BrokerSession, tuple[int, int]] = {}
        """Connection → its requests and their bytes."""
        self._bytes = self._count = self._number = 0
        self._link: RelayLink | None = None
        self._leads = False
        """Whether the broker at the other end leads, as far as is known."""
        self._tells = True
        """Whether it tells that when it is asked, as far as is known."""
        self._asked = 0
        """Number of the question; 0: it is answered."""
        self._not_before = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failing: _Failing | None = None
        self._closed = False
        self._faults = RateLimitedLog(log, broker.clock)
        self._roles.when_begun.append(self._lead)

    def __len__(self) -> int:
        """Requests that are relayed now."""
        return self._count

    # ------------------------------------------------------------------ requests

    def take(self, call: Call[Any], why: str, otherwise: Run | None = None) -> Later:
        """Relay a request, whose caller may make it. Its answer comes later.

        Args: why: the reason for which it is refused here. otherwise: answers it if no leader takes it.
        Raises Refused: it cannot be relayed.
        """
        roles, caller, now = self._roles, call.caller, self._clock.monotonic()
        roles.asked_to_lead_at = now
        if self._closed:
            raise Refused(Reason.NOT_LEADING, why)
        if caller.identity.startswith(WHITE) and not self._broker.gatekeeper.unguarded:
            # Known by its address, which the leader would not see.
            raise Refused(
                Reason.NOT_LEADING, f"{why}; it relays only what is signed, and a white list has let this client in"
            )
        failing = self._failing
        if failing is not None and (failing.address != roles.leader_address or now - failing.at >= HOLD_SECONDS):
            failing = self._failing = None
        if failing is not None and now - failing.since >= HOLD_SECONDS:
            self._connect()  # one more try, for those that come later
            raise Refused(Reason.NOT_LEADING, f"{why}, and {failing.why}")
        session, command = session_of(call), call.command
        size = REQUEST_BYTES + len(command.body) + sum(map(len, command.ext.values()))
        count, kept = self._of_peers.get(session, (0, 0))
        if (
            self._count >= COUNT_MAX
            or self._bytes + size > BYTES_MAX
            or count >= PEER_COUNT_MAX
            or kept + size > PEER_BYTES_MAX
            or not session.may_keep(size)
        ):
            raise Refused(
                Reason.NOT_LEADING,
                f"{why}; {count} requests of this connection with {kept} bytes are being relayed to the leader, {self._count} with "
                f"{self._bytes} of all, and no more are taken: try again",
            )
        self._number += 1
        item = _Relayed(self._number, call, session, size, now + HOLD_SECONDS, otherwise)
        self._of_peers[session] = count + 1, kept + size
        self._count += 1
        self._bytes += size
        session.keep(size)
        session.put_off(command)
        heapq.heappush(self._waiting, (item.number, item))
        self._pump()
        return LATER

    def _lead(self) -> None:
        """Carry out here what no leader has got: this broker leads now."""
        waiting, self._waiting = self._waiting, []
        while waiting:
            item = heapq.heappop(waiting)[1]
            self._let_go(item)
            item.session.handle_late(item.call.command)

    def _finish(self, item: _Relayed, answer: Callable[[], Answer]) -> None:
        self._let_go(item)
        item.session.answer_late(item.call.command, answer)

    def _let_go(self, item: _Relayed) -> None:
        session, size = item.session, item.size
        count, kept = self._of_peers.pop(session)
        if count > 1:
            self._of_peers[session] = count - 1, kept - size
        self._count -= 1
        self._bytes -= size
        if not session.gone:
            session.keep(-size)

    def _refuse(self, item: _Relayed, why: str) -> None:
        """Answer a request that no leader has carried out."""

        def answer() -> Answer:
            if item.otherwise is not None:
                return item.otherwise(item.call)
            raise Refused(
                Reason.NOT_LEADING, f"{self._broker.store.state.follows or 'this broker has stepped down'}, and {why}"
            )

        self._finish(item, answer)

    def _lose(self, item: _Relayed, why: str) -> None:
        """Answer a request that the leader may have carried out."""
        name = request_name(item.call.command.code)
        text = f"{name} was relayed to the leader, and whether it was carried out is not known: {why}"
        self._faults.warning("lost", "%s", text)
        self._finish(item, lambda: Reply(code=ResponseCode.SYSTEM_ERROR, remark=f"{IN_DOUBT_MARK}{text}"))

    # ------------------------------------------------------------------ the connection

    def _pump(self) -> None:
        """Send what waits, as far as it may be sent now."""
        if self._closed or not self._waiting:
            return
        link, leader = self._link, self._roles.leader_address
        if link is not None and link.address != leader:
            if not self._sent:  # else when their answers are there
                self._link = None
                link.close("another broker leads")
                self._connect()
            return
        if link is None:
            self._connect()
            return
        while self._waiting and link.ready and (self._leads or not (self._sent or self._asked)):
            if not self._leads:
                if (pause := self._not_before - self._clock.monotonic()) > 0:
                    self._pump_in(pause)
                    return
                if self._tells:
                    self._asked = link.send(
                        Command(RequestCode.IDENTIFY, ext={RELAYED_FIELD: self._broker.environment.name})
                    )
                    return
            self._send(link, heapq.heappop(self._waiting)[1])

    def _send(self, link: RelayLink, item: _Relayed) -> None:
        command = item.call.command
        relayed = Command(
            command.code,
            flag=command.flag & ~ONEWAY_FLAG,  # the order of requests needs each one's answer
            language=command.language,
            version=command.version,
            remark=command.remark,
            ext={**command.ext, RELAYED_FIELD: item.call.session.remote},
            body=command.body,
            serialize=command.serialize,
        )
        try:
            number = link.send(relayed)
        except LocalProtocolError as error:
            self._refuse(item, f"the request cannot be relayed: {error}")
            return
        item.sent_at = self._clock.monotonic()
        self._sent[number] = item

    def _pump_in(self, seconds: float) -> None:
        if self._retry is None:

            def again() -> None:
                self._retry = None
                self._pump()

            self._retry = asyncio.get_running_loop().call_later(seconds, again)

    def _told(self, said: str | None) -> None:
        """The answer to the question whether it leads has come. None: it does not tell."""
        self._asked = 0
        self._leads, self._tells = said == LEADING, said is not None
        if said == NOT_LEADING:
            self._not_before = self._clock.monotonic() + RETRY_SECONDS
        self._pump()

    def _answered(self, answer: Command) -> None:
        if answer.opaque == self._asked:
            self._told(answer.ext.get(RELAYED_FIELD))
            return
        item = self._sent.pop(answer.opaque, None)
        if item is None:  # its time was up
            return
        refused = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        elsewhere = refused and answer.ext.get(RELAYED_FIELD) == NOT_LEADING
        if elsewhere:
            self._leads = False
        elif not refused:
            self._leads = True
        # A release that does not tell refuses as it refuses anybody.
        if (elsewhere or (refused and not self._leads)) and self._clock.monotonic() < item.until:
            self._not_before = self._clock.monotonic() + RETRY_SECONDS
            heapq.heappush(self._waiting, (item.number, item))
        else:
            ext = {name: value for name, value in answer.ext.items() if name != RELAYED_FIELD}
            self._finish(item, lambda: Reply(ext, bytes(answer.body), answer.code, answer.remark))
        self._pump()

    def _ended(self, link: RelayLink, why: str) -> None:
        if link is not self._link:
            return
        self._link = None
        sent, self._sent = self._sent, {}
        for item in sent.values():
            self._lose(item, f"the connection to the broker at {link.address} ended, {why}")
        self._pump()

    def _connect(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = asyncio.get_running_loop().create_task(
                self._keep_dialling(), name="connect to the leader"
            )
            self._connecting.add_done_callback(when_dead(log, "requests are not relayed to the leader any more"))

    async def _keep_dialling(self) -> None:
        try:
            while True:
                if await self._dial():
                    break
                await asyncio.sleep(RETRY_SECONDS)
                if not self._waiting:
                    break
        finally:
            self._connecting = None
        self._pump()

    async def _dial(self) -> bool:
        """Connect once. Returns whether there is a connection."""
        leader = self._roles.leader_address
        try:
            if not leader:
                raise ConnectionFailed("no broker is known that leads")  # noqa: TRY301  noted as any other
            link = await link_to(leader, self._answered, self._ended, self._pump, self._tls)
            if link.closed:
                raise ConnectionFailed(f"{leader} has closed the connection at once")  # noqa: TRY301
        except (ConnectionFailed, ConfigError) as error:
            now, before = self._clock.monotonic(), self._failing
            since = before.since if before is not None and before.address == leader else now
            self._failing = _Failing(leader, since, now, f"the leader cannot be reached: {error}")
            self._faults.warning("dial", "%d requests of clients wait for a leader: %s", self._count, error)
            return False
        self._link, self._failing, self._not_before = link, None, 0.0
        self._leads, self._tells, self._asked = False, True, 0
        return True

    # ------------------------------------------------------------------ time, and the end

    def tick(self) -> None:
        """End what has waited too long. Called ten times a second."""
        self._faults.tick()
        if not self._count:
            return
        now = self._clock.monotonic()
        while self._waiting and now >= self._waiting[0][1].until:
            item = heapq.heappop(self._waiting)[1]
            why = self._failing.why if self._failing is not None else "the next one does not lead yet"
            self._refuse(item, f"{why} ({HOLD_SECONDS:g} s)")
        while self._sent:
            number, item = next(iter(self._sent.items()))
            if now - item.sent_at < ANSWER_SECONDS:
                break
            del self._sent[number]
            self._lose(item, f"it was not answered within {ANSWER_SECONDS:g} s")
        self._pump()

    def close(self) -> None:
        """Relay nothing any more. All connections of clients are closed by then."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            link, self._link = self._link, None
            link.close("this broker stops")


def caller_behind(broker: Broker, call: Call[Any]) -> Caller:
    """Return the caller of a request that was relayed to this broker, which leads: the client, if the relaying broker is believed.

    A signed request proves its caller by itself. Of others the address counts, for locks above all: a client that comes to this
    broker next renews those that it has taken by way of the other one.
    """
    caller, told = call.caller, call.command.ext.get(RELAYED_FIELD, "")
    if caller.identity or not broker.gatekeeper.unguarded or not broker.roles.speaks_for_clients(caller):
        return caller
    host = told.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return Caller(host, loopback=False, encrypted=caller.encrypted) if 0 < len(host) <= HOST_CHARS_MAX else caller
