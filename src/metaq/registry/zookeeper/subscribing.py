"""What a consumer reads in ZooKeeper: who else is in its group, and where the partitions of its topics are. Blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from metaq.registry.zookeeper.addresses import read_addresses
from metaq.registry.zookeeper.layout import (
    SUBSCRIBE,
    BrokerPlace,
    Layout,
    parents,
    parse_role,
    parse_topic_text,
)
from metaq.registry.zookeeper.session import Session

log = logging.getLogger(__name__)


class Subscribable(Struct, frozen=True):
    """What a group's consumers share, as of one moment."""

    members: dict[str, tuple[int, tuple[str, ...]]]
    """Consumer → the session that keeps its node, and its topics."""
    topics: dict[str, dict[BrokerPlace, int]]
    """Topic → master or slave that serves it → number of partitions there."""
    addresses: dict[BrokerPlace, str]
    """`host:port` of those that are there."""


def read_subscribable(session: Session, layout: Layout, group: str, topics: Sequence[str]) -> Subscribable:
    """Return the consumers of a group, the partitions of these topics and the addresses of their servers.

    Makes missing nodes of group and topics, and has the session's `changed` called once when a consumer comes or goes, a server of
    a topic comes, goes or has other partitions, or another address. A handful of round trips, however many partitions there are.

    Raises one of `metaq.registry.zookeeper.session.Failures`.
    """
    members = layout.members(group)
    parents_of_servers = [layout.topics(SUBSCRIBE, topic) for topic in topics]
    watched = [members, *parents_of_servers]
    names, *servers = session.children(watched, watch=True)
    if not all((names, *servers)):  # perhaps a node is missing, and then it is not watched
        session.ensure(dict.fromkeys(path for node in watched for path in (*parents(node), node)))
        names, *servers = session.children(watched, watch=True)
    found = session.owners([f"{members}/{name}" for name in names])
    subscribed = {
        path.rpartition("/")[2]: (owner, tuple(topic for topic in text.split(",") if topic))
        for path, (owner, text) in found.items()
    }
    counts = _counts(session, topics, parents_of_servers, servers, watch=True)
    places = {place for of_topic in counts.values() for place in of_topic}
    return Subscribable(subscribed, counts, read_addresses(session, layout, places, watch=True))


def read_servers(session: Session, layout: Layout, topic: str) -> tuple[dict[BrokerPlace, int], dict[BrokerPlace, str]]:
    """Return who serves a topic with how many partitions, and the addresses of those that are there. Makes and watches nothing.

    Raises one of `metaq.registry.zookeeper.session.Failures`.
    """
    node = layout.topics(SUBSCRIBE, topic)
    counts = _counts(session, [topic], [node], session.children([node]), watch=False)[topic]
    return counts, read_addresses(session, layout, counts, watch=False)


def _counts(
    session: Session, topics: Sequence[str], nodes: Sequence[str], names: Sequence[Sequence[str]], *, watch: bool
) -> dict[str, dict[BrokerPlace, int]]:
    roles = {
        f"{node}/{name}": (topic, place)
        for topic, node, names_below in zip(topics, nodes, names, strict=True)
        for name in names_below
        if (place := parse_role(name)) is not None
    }
    found: dict[str, dict[BrokerPlace, int]] = {topic: {} for topic in topics}
    for path, (_, text) in session.owners(roles, watch=watch).items():
        topic, place = roles[path]
        try:
            found[topic][place] = parse_topic_text(text)
        except ValueError:
            log.warning("%s in ZooKeeper says %.100r, which is no number of partitions", path, text)
    return found
