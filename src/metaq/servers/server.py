"""Protocol servers as their process sees them, and the usual kind: a listener with a session for each connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field, structs

from metaq.errors import ConfigError
from metaq.model.access import Caller
from metaq.net.address import is_address, is_loopback, join_address
from metaq.net.budget import Budget, ListenLimits
from metaq.net.listener import Listener, SecondPort
from metaq.net.peer import Peer, Session
from metaq.servers.log_lines import LastLines
from metaq.servers.tally import Tally

if TYPE_CHECKING:
    from metaq.broker.acl import AccessControl
    from metaq.broker.audit import Audit
    from metaq.broker.broker import Broker  # a name server has none, and should not load one
    from metaq.broker.quota.service import Quotas
    from metaq.net.tls.client import ClientTls  # loaded only where it is on
    from metaq.net.tls.server import ServerTls
    from metaq.servers.metaq1_stats import StatsBodies

Services = TypeVar("Services")
Services_contra = TypeVar("Services_contra", contravariant=True)

CallSoon: TypeAlias = Callable[[Callable[[], None]], None]
"""Brings a call from another thread to the event loop: `loop.call_soon_threadsafe`."""
WhenAnnounced: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls its argument when the name servers know the topics as they are."""


class Watched(Protocol):
    """What the process of a broker watches beside its services."""

    def reasons(self) -> Iterable[str]:
        """Return what keeps clients from being served."""
        ...

    def notes(self) -> Iterable[str]:
        """Return what somebody should look after, and does not keep clients from it."""
        ...


class BrokerServices(Struct, frozen=True):
    """What a broker's protocol servers work with."""

    broker: Broker
    call_soon: CallSoon
    when_announced: WhenAnnounced
    host: str
    """Host under which clients reach this process, as it tells them."""
    access: AccessControl | None = None
    """Accounts, and who is proven to be one; None: everybody may everything."""
    audit: Audit | None = None
    """Notes administrative and refused requests; None: nobody does."""
    tally: Tally = field(default_factory=Tally)
    log: LastLines = field(default_factory=LastLines)
    """The last lines of the process's log; who runs the process opens and closes it."""
    watched: Watched | None = None
    """None: nothing is."""
    metaq1_stats: StatsBodies | None = None
    """What `stats` of MetaQ 1.x says; None: it is not served."""
    tls: ClientTls | None = None
    """How servers connect to other brokers; None: without TLS."""


class Server(Protocol[Services_contra]):
    """Server of one protocol. `Services_contra`: the services that it turns requests into calls of.

    It may bring its own sockets and its own accept loop. The process calls, all on its event loop: `bind`, `start`,
    then `tick` and `limit` as time passes and options change, and `close` at the end, however far it has come.
    """

    @property
    def name(self) -> str:
        """Name of the protocol, for logs; unique within the process."""
        ...

    @property
    def address(self) -> str:
        """`host:port` where it listens. Known once `bind` has returned."""
        ...

    async def bind(self) -> None:
        """Take the address without serving yet: services are made once all addresses are taken.

        Raises ConfigError: the address cannot be had; the text says which, why and what to do.
        """
        ...

    async def start(self, services: Services_contra) -> None:
        """Serve clients. Raises ConfigError: another process took the address in the meantime."""
        ...

    def tick(self) -> None:
        """End what has waited too long. A broker calls it ten times a second from its start on."""
        ...

    def limit(self, limits: ListenLimits) -> None:
        """Set what peers may take of the process. Connections above a lower limit stay."""
        ...

    async def close(self) -> None:
        """Stop accepting, let written answers go out, end the connections and release everything."""
        ...


class SessionServer(Protocol):
    """Makes the sessions of a `PeerServer`, and holds what they share."""

    def session(self, peer: Peer) -> Session:
        """Make the session of a new connection."""
        ...

    def tick(self) -> None:
        """End what has waited too long."""
        ...

    def close(self) -> None:
        """Release everything. All connections are closed by then."""
        ...


class PeerServer(Generic[Services]):
    """A `Server` whose clients are peers of a listener.

    Args:
        name: of the protocol.
        place: host and port to listen at; port 0 takes a free one.
        limits: of what peers may take.
        open_sessions: makes the `SessionServer`, once the address is taken and the services are open.
        second: a further port for the same sessions.
        what: server and option of its port, for the error that the port is taken.
        idle_seconds_min: silence that this protocol's clients may keep, whatever the limits say.
        budget: of all servers of the process; None: this one has its own.
        tls: of the process; None: this one takes plain text only.
    """

    def __init__(
        self,
        name: str,
        place: tuple[str, int],
        limits: ListenLimits,
        open_sessions: Callable[[Services, PeerServer[Services]], SessionServer],
        *,
        second: SecondPort | None = None,
        what: str = "",
        idle_seconds_min: float = 0.0,
        budget: Budget | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.name, self._place, self._second, self._what = name, place, second, what
        self._open_sessions, self._idle_seconds_min = open_sessions, idle_seconds_min
        # Made before any address is taken: `limit` may be called at any time, also before `bind`.
        self._listener = Listener(self._own(limits), budget=budget, tls=tls)
        self._sessions: SessionServer | None = None

    def _own(self, limits: ListenLimits) -> ListenLimits:
        idle_seconds = limits.idle_seconds and max(limits.idle_seconds, self._idle_seconds_min)  # 0 is no limit
        return structs.replace(limits, idle_seconds=idle_seconds)

    @property
    def host(self) -> str:
        return self._listener.host

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return self._listener.connections

    @property
    def refused(self) -> int:
        """Connections that were refused since the start: a limit or a quota is reached."""
        return self._listener.refused

    async def bind(self) -> None:
        try:
            await self._listener.bind(*self._place, self._second)
        except ConfigError as error:
            if not self._what:
                raise
            raise ConfigError(f"{self._what}: {error}") from None

    async def start(self, services: Services) -> None:
        self._sessions = self._open_sessions(services, self)
        await self._listener.start(self._sessions.session)

    def tick(self) -> None:
        if self._sessions is not None:
            self._sessions.tick()

    def limit(self, limits: ListenLimits) -> None:
        self._listener.limit(self._own(limits))

    def admit_by(self, quotas: Quotas) -> None:
        """Ask the quotas about each new connection."""
        self._listener.admit_by(quotas.may_arrive, quotas.may_connect)

    async def close(self) -> None:
        await self._listener.close()
        if self._sessions is not None:
            self._sessions.close()


def caller_of(peer: Peer) -> Caller:
    """Return the caller of a connection's unsigned requests."""
    address, here = peer.address[0], peer.local[0]
    # From one of this machine's addresses to the same one: nobody else gets an answer from there.
    is_here = is_loopback(address) or (address == here and is_address(here))
    return Caller(address, is_here, encrypted=not peer.plain)
