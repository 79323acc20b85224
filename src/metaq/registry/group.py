"""A group's nodes in ZooKeeper, for brokers that may have been installed without kazoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.registry.zookeeper.group import GroupNodes


def group_nodes(
    connect: str, cluster: str, broker: str, session_timeout: float, changed: Callable[[], None], auth: str = ""
) -> GroupNodes:
    """Return the nodes of a broker's group, not opened yet: nothing is asked of ZooKeeper. Arguments are those of `GroupNodes`.

    Raises ConfigError: kazoo is missing, or an argument cannot be right. Call it before anything is opened or changed.
    """
    try:
        from metaq.registry.zookeeper.group import GroupNodes
    except ImportError as error:
        raise ConfigError(
            f"failover=zookeeper: it needs kazoo ({error}); install pymetaq[zookeeper], or set failover to none"
        ) from None
    return GroupNodes(connect, cluster, broker, session_timeout, changed, auth)
