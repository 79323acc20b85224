"""The part of `Admin` for offsets of groups of MetaQ 1.x."""

from __future__ import annotations

from collections.abc import Collection

from metaq.admin.offsets import copying
from metaq.admin.offsets.places import OffsetsInDatabase, Place, kept_at, made
from metaq.admin.parts import AdminPart
from metaq.registry.offset_table import PartitionOffset
from metaq.registry.zookeeper.offsets import Key


class OffsetCalls(AdminPart):
    """Methods of `Admin`. They raise ConnectionFailed, MetaqError: ZooKeeper or the database is away, or refuses; ConfigError."""

    def metaq1_offsets(
        self, place: Place, groups: Collection[str] = (), topic: str | None = None
    ) -> tuple[list[PartitionOffset], dict[Key, str]]:
        """Return the offsets at a place, of all groups and topics or of some; and what stands there that is no offset.

        Returns: rows with `group`, `topic`, `partition`, `offset` (bytes), `message_id`; and key → text that is none.

        Args:
            place: a ZooKeeper, `OffsetsInZookeeper("host:port")`, or a table, `OffsetsInDatabase(url)`.
            groups: only those; empty: all.
            topic: only that one; None: all.
        """

        async def found() -> tuple[list[PartitionOffset], dict[Key, str]]:
            async with kept_at(place) as kept:
                return await copying.read(kept, groups, topic)

        return self._run(found())

    def copy_metaq1_offsets(
        self, source: Place, target: Place, selection: copying.OffsetSelection, *, dry_run: bool = False
    ) -> list[copying.CopiedOffset]:
        """Copy offsets of MetaQ 1.x groups from one place to another, or to other partitions. Returns what was copied.

        Args:
            source, target: places, as of `metaq1_offsets`.
            selection: which topic, groups and partitions, and to which partitions; empty: all, and to the same.
            dry_run: only return what would be copied.

        Raises ConfigError: the selection does not say what goes where; ConnectionFailed, MetaqError: a place cannot be read or
        written: what is copied then stays, and a repetition copies the rest.
        """
        return self._run(copying.copy(source, target, selection, dry_run=dry_run))

    def create_metaq1_offset_table(self, place: OffsetsInDatabase) -> dict[str, int]:
        """Make the table unless it is there. Returns column → the highest number that it takes, where that is too small."""
        return self._run(made(place))
