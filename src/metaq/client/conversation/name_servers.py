"""Choice among several name servers, and the errors when none can help.

Name servers do not talk to each other, but every broker registers with all of them, so any will do. One is used until it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from metaq.address import is_v6, join_address, split_address
from metaq.client.conversation.call import FAULTS, Call, Consultation, asked_at
from metaq.client.conversation.retry import Purpose, judge
from metaq.client.conversation.routes import (
    GetCluster,
    GetRoute,
    GetValue,
    ListBrokersOwnTopics,
    ListSystemTopics,
    ListTopics,
)
from metaq.errors import BrokerError, ConfigError, ConnectionFailed, MetaqError, NoRoute, RequestTimeout
from metaq.model import ClusterInfo, Route
from metaq.model.topics.route import ORDER_NAMESPACE
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, users_topics
from metaq.wire.codes import ResponseCode

T = TypeVar("T")

DEFAULT_PORT: Final = 9876


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse `host:port;host:port` (or commas); the default port is 9876. Raises ConfigError, TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"the name servers are {text!r}: pass one text, 'host:port', several joined by ';'")
    addresses = []
    for part in text.replace(",", ";").split(";"):
        if address := part.strip():
            if "/" in address:
                raise ConfigError(
                    f"the name server address {address!r} is a URL or a path: write host:port, without http://"
                )
            addresses.append(_with_port(address))
    if not addresses:
        raise ConfigError(
            "no name server: pass its address, such as 'localhost:9876' (-n on a command line), or set NAMESRV_ADDR, or have an HTTP "
            "address server tell it (address_server, METAQ_ADDRESS_SERVER)"
        )
    # Without duplicates, each of which would be tried once more when it fails.
    return tuple(dict.fromkeys(addresses))


def _is_host(text: str) -> bool:
    """Return whether a text may name a host: no page of HTML, for one."""
    return all(character.isalnum() or character in ".-_:%" for character in text)


def _with_port(address: str) -> str:
    """Return `host:port`, with brackets around an IPv6 host, and 9876 for a port that is missing. Raises ConfigError."""
    # A bare IPv6 address has no port: `::1:9876` would be another one.
    bare = ":" not in address or is_v6(address) or (address.startswith("[") and address.endswith("]"))
    try:
        host, port = (address.removeprefix("[").removesuffix("]"), DEFAULT_PORT) if bare else split_address(address)
    except ConfigError:
        host, port = "", 0
    if not host or not port or not _is_host(host) or (":" in host and not is_v6(host)):
        raise ConfigError(f"the name server address {address!r} is not host:port, with a port from 1 to 65535")
    return join_address(host, port)


class NameServers:
    """The name servers of a cluster, and the one in use. Every method is a conversation."""

    def __init__(self, addresses: Sequence[str], chosen: int = 0) -> None:
        """Args: chosen: index of the name server to begin with."""
        self.addresses, self._chosen = tuple(addresses), chosen
        self._judged: frozenset[str] = frozenset()
        """Topics for which all brokers were asked whether they are their own."""
        self._brokers_own: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return ";".join(self.addresses)

    def exchange(self, addresses: Sequence[str]) -> bool:
        """Use other name servers from the next question on. Returns whether they are others."""
        if set(addresses) == set(self.addresses):
            return False
        used = self.addresses[self._chosen % len(self.addresses)]
        self.addresses = tuple(addresses)
        # The one in use has shown that it works.
        self._chosen = self.addresses.index(used) if used in self.addresses else 0
        return True

    def ask(self, call: Call[T]) -> Consultation[T]:
        """Ask a name server; the next one if it is unreachable, or not a name server.

        Raises ConnectionFailed or RequestTimeout when none can be reached, BrokerError when those that can are no name
        servers or refuse, BadRequest: an answer cannot be read.
        """
        failure: MetaqError | None = None
        # A copy: concurrent conversations may change the choice, and each server is to be tried once all the same.
        first, addresses = self._chosen, self.addresses
        for step in range(len(addresses)):
            index = (first + step) % len(addresses)
            address = addresses[index]
            try:
                outcome = yield from asked_at(address, call)
            except FAULTS as error:
                if not judge(error, Purpose.LOOK_UP).elsewhere:
                    if isinstance(error, BrokerError):  # a refusal shows that this name server works
                        self._choose(address)
                    raise
                # Probably the address of a broker.
                if isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    failure = _no_name_server(address, error)
                else:
                    failure = failure or error
            else:
                self._choose(address)
                return outcome
        assert failure is not None
        raise self._unreachable(failure) if isinstance(failure, ConnectionFailed | RequestTimeout) else failure

    def _choose(self, address: str) -> None:
        # It may have been taken off the list meanwhile.
        if address in self.addresses:
            self._chosen = self.addresses.index(address)

    def _unreachable(self, failure: ConnectionFailed | RequestTimeout) -> ConnectionFailed | RequestTimeout:
        raised = type(failure)(f"no name server of {self} can be reached, is one running there? {failure}")
        raised.sent = False  # nothing was sent to a broker: a send may be repeated without a duplicate
        return raised

    def route(self, topic: str) -> Consultation[Route]:
        """Ask for a topic's route. Raises NoRoute, and as `ask`."""
        found = yield from self.ask(GetRoute(topic))
        if found is None:
            raise self._unknown(topic)
        return found

    def cluster(self) -> Consultation[ClusterInfo]:
        """Ask for all brokers of all clusters. Raises as `ask`."""
        return (yield from self.ask(GetCluster()))

    def topics(self, *, system: bool = False) -> Consultation[list[str]]:
        """Ask for topic names, sorted. `system`: include brokers' own, retry and dead-letter topics."""
        found = yield from self.ask(ListTopics())
        if system:
            return sorted(set(found))
        own = yield from self.ask(ListSystemTopics())
        listed = users_topics(found, own)
        if not self._judged.issuperset(listed):
            yield from self._ask_brokers(listed)
        return [topic for topic in listed if topic not in self._brokers_own]

    def _ask_brokers(self, listed: Sequence[str]) -> Consultation[None]:
        """Ask brokers for topics that are their own by configuration, such as `msgTraceTopicName`.

        If one does not answer, all are asked again the next time.
        """
        own: set[str] = set()
        silent = False
        for data in (yield from self.cluster()).brokers.values():
            if data.master is None:
                # Slaves have their master's topics.
                continue
            try:
                own.update((yield from asked_at(data.master, ListBrokersOwnTopics())))
            except FAULTS:
                silent = True
        if silent:
            # What is known of the silent one stays: its topics are still its own.
            self._brokers_own |= own
        else:
            self._brokers_own, self._judged = frozenset(own), frozenset(listed)

    def order(self, topic: str) -> Consultation[str | None]:
        """Ask for the stored layout of an ordered topic (ORDER_TOPIC_CONFIG); None: it has none. Raises as `ask`."""
        return (yield from self.ask(GetValue(ORDER_NAMESPACE, topic)))

    def no_route(self, topic: str) -> Consultation[NoRoute]:
        """Find out why a topic has no route: it does not exist, or no broker is registered."""
        try:
            nobody = not (yield from self.cluster()).brokers
        except FAULTS:
            nobody = False  # unknown: report the missing route alone
        if nobody:
            return NoRoute(
                f"no broker is registered at name servers {self}, so topic {topic} has no route: is the broker running, "
                "and was it started with this name server's address?"
            )
        return self._unknown(topic)

    def _unknown(self, topic: str) -> NoRoute:
        return NoRoute(f"no route for topic {topic} at name servers {self}: {_remedy(topic)}")


def _remedy(topic: str) -> str:
    """Return what is to be done about a topic that does not exist."""
    for prefix, what in ((DEAD_LETTER_PREFIX, "dead letter"), (RETRY_PREFIX, "retry")):
        if topic.startswith(prefix):
            return f"the first {what} of group {topic.removeprefix(prefix)} creates it, and there is none yet"
    return f"create it with `metaq topic create {topic}`"


def _no_name_server(address: str, error: BrokerError) -> BrokerError:
    return BrokerError(
        error.code,
        f"{address} is no name server, a broker perhaps: pass the name server's address; its port is 9876 by default",
        address,
        "find the brokers",
    )
