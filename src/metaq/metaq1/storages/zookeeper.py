"""Offsets in ZooKeeper, where Java's clients keep them: `/consumers/G/offsets/T/P`, with the text `messageId-offset`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from metaq.errors import ConfigError
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.shared.core import FactoryCore
from metaq.metaq1.storages.storage import StoredOffset
from metaq.registry.zookeeper.layout import Layout, OffsetNode, parse_offset
from metaq.registry.zookeeper.session import Session

Result = TypeVar("Result")


class ZookeeperOffsetStorage:
    """An `OffsetStorage` in the ZooKeeper of a session factory. Its methods raise ConnectionFailed; ClientClosed after the factory's
    end; ClientError in the background loop, which must not wait.

    Args: core: of the factory.
    """

    def __init__(self, core: FactoryCore) -> None:
        """Raises ConfigError: the factory has a fixed server."""
        if core.config.zk_config is None or core.config.address is not None:
            raise ConfigError(
                "offsets cannot be kept in ZooKeeper, since the session factory has a fixed server and no ZooKeeper: give "
                "offset_storage"
            )
        self._core = core
        self._layout = Layout(core.config.zk_config.zk_root)
        self._written: dict[str, str] = {}
        """Path → text that is there: what has not changed is not written."""

    def commit_offset(self, group: str, offsets: Collection[StoredOffset]) -> None:
        """As `OffsetStorage.commit_offset`. All in a few round trips."""
        nodes = {}
        for one in offsets:
            if one.offset < 0:
                raise ValueError(f"offset {one.offset} of {one.topic} {one.partition}: need 0 or more")
            path = self._layout.offset(group, one.topic, str(one.partition))
            text = OffsetNode(one.message_id, one.offset).text
            if self._written.get(path) != text:
                nodes[path] = text
        if nodes:
            self._ask(lambda session: session.write_all(nodes))
            self._written |= nodes

    def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None:
        """As `OffsetStorage.load`. Raises ConfigError: the node says something else."""
        return self.load_many(group, [(topic, partition)]).get((topic, partition))

    def load_many(
        self, group: str, partitions: Collection[tuple[str, Partition]]
    ) -> dict[tuple[str, Partition], StoredOffset]:
        """As `BulkLoading.load_many`. Raises ConfigError: a node says something else."""
        paths = {
            self._layout.offset(group, topic, str(partition)): (topic, partition) for topic, partition in partitions
        }
        found = {}
        texts = self._ask(lambda session: session.texts(paths))
        for path, (topic, partition) in paths.items():
            self._written.pop(path, None)  # while it was somebody else's it may have become another
            text = texts.get(path)
            if text is None:
                continue
            try:
                node = parse_offset(text)
                if node.position < 0:
                    raise ValueError(text)  # noqa: TRY301  one sentence for all
            except ValueError:
                raise ConfigError(
                    f"{path} in ZooKeeper says {text!r:.100}, which is no offset: write messageId-offset, or delete the node"
                ) from None
            found[topic, partition] = StoredOffset(topic, partition, node.position, node.message_id)
        return found

    def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None:
        """Write nothing, as Java's client: the first commit makes the node."""

    def close(self) -> None:
        """Nothing: the connection is the factory's."""

    def _ask(self, work: Callable[[Session], Result]) -> Result:
        self._core.check_may_wait()

        async def asked() -> Result:
            registry = self._core.routes.registry()
            assert registry is not None, "the factory has a ZooKeeper"
            return await registry.client.ask(work)

        # Not by `core.run`: a consumer commits while its factory is being closed, too.
        return self._core.thread.run(asked())
