"""Partitions as clients of MetaQ 1.x name them: `brokerId-number`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from metaq.wire.metaq1.commands import ANY_PARTITION

_TEXT: Final = re.compile(r"(-1|[0-9]{1,9})-(-1|[0-9]{1,9})")


class Partition(NamedTuple):
    """One partition of a topic. Sorts by broker, then number, as producers do; consumers sort the texts."""

    broker_id: int
    """-1: the broker of a fixed server, whose id is not known."""
    partition: int
    """Number at the broker, from 0 on; -1: the server chooses."""

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Return the partition of a text such as `0-3`. Raises ValueError."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r:.100} names no partition: need brokerId-number, such as 0-3")
        return cls(int(found[1]), int(found[2]))


RANDOM_PARTITION: Final = Partition(ANY_PARTITION, ANY_PARTITION)
"""What is sent there goes to a partition that the server chooses."""
