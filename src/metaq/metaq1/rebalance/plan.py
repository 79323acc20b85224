"""What one try of a rebalance has to do: a pure function of what ZooKeeper says, and of what this consumer has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct

from metaq.errors import ConfigError
from metaq.metaq1.config import READ_FROM, LoadBalanceStrategy
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.rebalance.fetching import Held
from metaq.metaq1.rebalance.strategies import in_java_order
from metaq.registry.zookeeper.layout import BrokerPlace

Choice = TypeVar("Choice")
MASTER_FIRST, RANDOM, SLAVE_FIRST = READ_FROM


class Seen(Struct, frozen=True):
    """What ZooKeeper says of a group and its topics."""

    members: Mapping[str, Collection[str]]
    """Consumer → its topics. This one is among them, whether or not its node is there."""
    topics: Mapping[str, Mapping[BrokerPlace, int]]
    """Topic → master or slave that serves it → number of partitions there."""
    addresses: Mapping[BrokerPlace, str]
    """`host:port` of those that are there."""


class Share(NamedTuple):
    """A consumer's part of a topic, and the lists by which it was computed."""

    members: tuple[str, ...]
    partitions: tuple[str, ...]
    mine: frozenset[Held]


class Standing(Struct, frozen=True):
    """What a consumer has: how the tries before have ended."""

    owned: frozenset[Held] = frozenset()
    """Partitions whose owner node is this consumer's."""
    shares: Mapping[str, Share] = {}
    """Topic → the share of the last try."""
    servers: Mapping[Held, str] = {}
    """Where it fetches."""


class Plan(Struct, frozen=True):
    """What is to be done, in this order."""

    release: tuple[Held, ...]
    """Owned, and somebody else's from now on."""
    claim: tuple[Held, ...]
    """To be owned."""
    servers: Mapping[Held, str]
    """Where to fetch all that is owned then."""
    homeless: tuple[Held, ...]
    """To be owned, and no server of theirs is there."""
    shares: Mapping[str, Share]


class Rules(Struct, frozen=True):
    """What a consumer's configuration says of it.

    Args: choose: returns one of several, by chance.
    """

    me: str
    topics: tuple[str, ...]
    strategy: LoadBalanceStrategy
    read_from: str
    choose: Callable[[Sequence[str]], str]


def make_plan(rules: Rules, seen: Seen, standing: Standing) -> Plan:
    """Return what one try has to do.

    A share whose lists are as before is not computed again: so a strategy of the user's that rolls dice moves nothing by itself.
    Raises ConfigError: the user's strategy fails, or returns what is none of the topic's partitions.
    """
    shares = {topic: _share(rules, seen, topic, standing.shares.get(topic)) for topic in rules.topics}
    wanted = [held for topic in rules.topics for held in sorted(shares[topic].mine)]
    servers, homeless = {}, []
    for held in wanted:
        address = _server(rules, seen, held, standing.servers.get(held))
        if address is None:
            homeless.append(held)
        else:
            servers[held] = address
    return Plan(
        release=tuple(sorted(standing.owned - set(wanted))),
        claim=tuple(held for held in wanted if held not in standing.owned),
        servers=servers,
        homeless=tuple(homeless),
        shares=shares,
    )


def _share(rules: Rules, seen: Seen, topic: str, before: Share | None) -> Share:
    members = tuple(in_java_order(name for name, topics in seen.members.items() if topic in topics))
    counts = seen.topics.get(topic, {})
    texts = {f"{place.broker_id}-{number}" for place, count in counts.items() for number in range(count)}
    partitions = tuple(sorted(texts))  # as texts: "0-10" before "0-2"
    if before is not None and (before.members, before.partitions) == (members, partitions):
        return before
    if not members or not partitions:
        return Share(members, partitions, frozenset())
    try:
        mine = list(rules.strategy(topic, rules.me, members, partitions))
    except Exception as error:
        raise ConfigError(f"the load balance strategy fails for topic {topic}: {error!r}") from error
    strange = [text for text in mine if text not in texts]
    if strange:
        raise ConfigError(
            f"the load balance strategy returns {strange[0]!r:.100} for topic {topic}, which is none of its {len(partitions)} "
            "partitions: return some of those it is given"
        )
    return Share(members, partitions, frozenset(Held(topic, Partition.parse(text)) for text in mine))


def _server(rules: Rules, seen: Seen, held: Held, before: str | None) -> str | None:
    """Return the server to fetch from; None: there is none. One that was chosen by chance stays as long as it may."""
    broker_id, number = held.partition
    counts = seen.topics.get(held.topic, {})
    places = [place for place, count in counts.items() if place.broker_id == broker_id and number < count]
    slaves = sorted({seen.addresses[place] for place in places if place.slave is not None and place in seen.addresses})
    master = seen.addresses.get(BrokerPlace(broker_id)) if BrokerPlace(broker_id) in places else None
    masters = [] if master is None else [master]
    if rules.read_from == RANDOM:
        candidates = masters + slaves
    elif rules.read_from == SLAVE_FIRST:
        candidates = slaves or masters
    else:
        candidates = masters or slaves
    if not candidates:
        return None
    return before if before in candidates else candidates[0] if len(candidates) == 1 else rules.choose(candidates)
