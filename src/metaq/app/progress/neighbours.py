"""What ZooKeeper knows of other brokers of MetaQ 1.x and of groups' partitions, for the pages of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from metaq.broker.metaq1.neighbours import GroupShare, Neighbour
from metaq.errors import Reason, Refused

if TYPE_CHECKING:
    from metaq.registry.zookeeper.layout import Layout
    from metaq.registry.zookeeper.registrar import ZookeeperRegistrar
    from metaq.registry.zookeeper.session import Session

T = TypeVar("T")


class ZookeeperNeighbours:
    """A `Neighbours`. Args: registrar: has the session. broker_id: of this broker."""

    def __init__(self, registrar: ZookeeperRegistrar, broker_id: int) -> None:
        self._registrar, self._broker_id = registrar, broker_id

    async def _ask(self, work: Callable[[Session, Layout], T]) -> T:
        from metaq.registry.zookeeper.session import Failures  # kazoo is an extra

        try:
            return await self._registrar.ask(work)
        except Failures as error:
            raise Refused(Reason.UNAVAILABLE, f"ZooKeeper does not answer: {error or type(error).__name__}") from None

    async def brokers(self) -> list[Neighbour]:
        from metaq.registry.zookeeper.neighbours import read_brokers

        found = await self._ask(read_brokers)
        brokers = [Neighbour(place.broker_id, place.slave, text) for place, text in found.items()]
        return sorted(brokers, key=lambda one: (one.broker_id, -1 if one.slave is None else one.slave))

    async def shares(self, group: str, topic: str, partitions: Sequence[int]) -> list[GroupShare] | None:
        from metaq.registry.zookeeper.neighbours import read_shares

        names = {f"{self._broker_id}-{number}": number for number in partitions}
        found = await self._ask(lambda session, layout: read_shares(session, layout, group, topic, list(names)))
        return None if found is None else [GroupShare(names[name], *share) for name, share in found.items()]

    async def skip(self, group: str, topic: str, partition: int, position: int) -> None:
        from metaq.registry.zookeeper.neighbours import skip

        name = f"{self._broker_id}-{partition}"
        owner = await self._ask(lambda session, layout: skip(session, layout, group, topic, name, position))
        if owner:
            raise Refused(
                Reason.STALE,
                f"partition {name} of topic {topic} is not skipped: consumer {owner} of group {group} has it and would store its own "
                "offset; stop the group's consumers first",
            )
