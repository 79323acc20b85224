"""Protocol servers, as the process that runs them sees them, and the usual kind: sessions over the peers of a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct, structs

from metaq.errors import ConfigError
from metaq.model.access import Caller
from metaq.net.address import is_loopback, join_address
from metaq.net.group import ListenLimits
from metaq.net.listener import Listener, SecondPort
from metaq.net.peer import Peer, Session

if TYPE_CHECKING:
    from metaq.broker.broker import Broker  # a name server has none, and should not load one

Services = TypeVar("Services")
Services_contra = TypeVar("Services_contra", contravariant=True)

CallSoon: TypeAlias = Callable[[Callable[[], None]], None]
"""Brings a call from another thread to the event loop: `loop.call_soon_threadsafe`."""
WhenAnnounced: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls its argument when the name servers know the topics as they are."""


class BrokerServices(Struct, frozen=True):
    """What a broker's protocol servers serve."""

    broker: Broker
    call_soon: CallSoon
    when_announced: WhenAnnounced
    host: str
    """Where clients reach this process, as it tells them."""


class Server(Protocol[Services_contra]):
    """One protocol's server in a process. `Services_contra`: what it turns requests into calls of.

    It may bring its own sockets and its own accept loop. The process calls, all on its event loop: `bind`, `start`, then
    `tick` and `limit` as time passes and options change, and `close` at the end, however far it has come.
    """

    @property
    def name(self) -> str:
        """Of the protocol, for logs; no two servers of a process have the same."""
        ...

    @property
    def address(self) -> str:
        """`host:port` that it listens at. Known when `bind` has returned."""
        ...

    async def bind(self) -> None:
        """Take the address, and serve nobody yet: there are no services before all addresses are taken.

        Raises ConfigError: it cannot be had; the text says which, why and what to do.
        """
        ...

    async def start(self, services: Services_contra) -> None:
        """Serve clients from now on. Raises ConfigError: another process took the address in the meantime."""
        ...

    def tick(self) -> None:
        """Let time pass: end what has waited too long. Called ten times a second by a broker, from its start on."""
        ...

    def limit(self, limits: ListenLimits) -> None:
        """What peers may take of the process from now on. Connections above a lower limit stay."""
        ...

    async def close(self) -> None:
        """Accept nobody any more, let answers that are written go out, end the connections and let go of all it holds."""
        ...


class SessionServer(Protocol):
    """What a `PeerServer` serves peers with: a session for each, and what the sessions share."""

    def session(self, peer: Peer) -> Session:
        """A new connection."""
        ...

    def tick(self) -> None:
        """Let time pass: end what has waited too long."""
        ...

    def close(self) -> None:
        """Let go of what it holds. All its connections are closed by then."""
        ...


class PeerServer(Generic[Services]):
    """A `Server` whose clients are peers of a listener.

    Args: place: host and port to listen at; port 0 takes a free one. open_sessions: makes what serves them, once the
          address is taken and the services are open. second: a further port for the same sessions. what: the server and
          the option of its port, for the message that it is taken. idle_seconds_min: clients of this protocol may be
          silent for so long, whatever the limits say.
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
    ) -> None:
        self.name, self._place, self._second, self._what = name, place, second, what
        self._open_sessions, self._idle_seconds_min = open_sessions, idle_seconds_min
        self._listener = Listener(self._own(limits))
        self._sessions: SessionServer | None = None

    def _own(self, limits: ListenLimits) -> ListenLimits:
        idle_seconds = limits.idle_seconds and max(limits.idle_seconds, self._idle_seconds_min)  # 0: for ever
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

    async def close(self) -> None:
        await self._listener.close()
        if self._sessions is not None:
            self._sessions.close()


def caller_of(peer: Peer) -> Caller:
    """The caller of what comes over a connection and names nobody."""
    address = peer.address[0]
    return Caller(address, is_loopback(address), encrypted=not peer.plain)
