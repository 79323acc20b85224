"""Options of `format("metaq")` that reads a cluster of MetaQ 1.x."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from metaq.address import split_address
from metaq.errors import ConfigError
from metaq.option_table import MIB, OptionTable, camel, option
from metaq.spark.source.settings import spelled

EARLIEST, LATEST = "earliest", "latest"
STORED = "group"
"""Value of `startingOffsets`: where the group's stored offsets are."""


@dataclass(frozen=True, kw_only=True)
class Metaq1Options(OptionTable):
    """A query's. Spelled in camelCase, in upper or lower case."""

    zk_connect: str | None = option(
        None, "ZooKeeper of the cluster, `host:port`, `,`-separated. Asked by the driver only."
    )
    zk_root: str = option("/meta", "Root of MetaQ's nodes in ZooKeeper.")
    metaq1_server: str | None = option(
        None, "Instead of `zkConnect`: one server of MetaQ 1.x, `host:port`; needs `partitions`."
    )
    partitions: int | None = option(None, "Number of the topic's partitions at `metaq1Server`.", low=1, high=100_000)
    topic: str = option("", "The topic. Required.")
    group: str = option("metaq-spark", "Group in the requests, and whose stored offsets `startingOffsets=group` means.")
    starting_offsets: str | None = option(
        None,
        '`earliest`, `latest`, `group`, or `{"0-1": 4096}`, partition and byte offset; a partition that is not named '
        "begins at its first message. Streams begin at `latest`, batch reads at `earliest`.",
    )
    ending_offsets: str | None = option(
        None,
        'Of a batch read: `latest` (default) or `{"0-1": 8192}`; nothing is read of a partition that is not named.',
    )
    fail_on_data_loss: bool = option(True, "Whether a query fails if messages that it has not read are gone.")
    fetch_bytes: int = option(
        131_072, "Bytes that one fetch asks for; grows for a larger message.", low=64, high=64 * MIB
    )
    retry_seconds: float = option(30.0, "How long a read goes on trying while a server is away.", low=0)

    @classmethod
    def of(cls, pairs: Mapping[str, str]) -> Self:
        """Parse a query's options. Raises ConfigError: an unknown name, a wrong value, or values that contradict each other."""
        options, _ = cls.read(spelled(cls, pairs), "the query's options")
        options.check()
        return options

    def check(self) -> None:
        """Validate the values against each other. Raises ConfigError."""
        if bool(self.zk_connect) == bool(self.metaq1_server):
            raise ConfigError("format('metaq') reads MetaQ 1.x by zkConnect or by metaq1Server: give one of them")
        if not self.topic or not self.topic.isascii() or not self.topic.isprintable() or " " in self.topic:
            raise ConfigError(f"topic={self.topic!r:.100}: name one topic, in ASCII characters without blanks")
        if not self.group or not self.group.isascii() or not self.group.isprintable() or " " in self.group:
            raise ConfigError(f"group={self.group!r:.100}: need ASCII characters without blanks")
        if self.metaq1_server:
            split_address(self.metaq1_server)
            if self.partitions is None:
                raise ConfigError(
                    "metaq1Server needs partitions: without ZooKeeper nobody tells how many the topic has"
                )
            if self.starting_offsets == STORED:
                raise ConfigError("startingOffsets=group needs zkConnect: a group's offsets are in ZooKeeper")
        elif self.partitions is not None:
            raise ConfigError("partitions is for metaq1Server; ZooKeeper tells their number")
        if self.ending_offsets in (EARLIEST, STORED):
            raise ConfigError("endingOffsets: give latest or offsets as JSON")
        for name, words in (("starting_offsets", {EARLIEST, LATEST, STORED}), ("ending_offsets", {LATEST})):
            if (text := getattr(self, name)) is not None and text not in words:
                self.given(name)

    def given(self, name: str) -> dict[str, int]:
        """Return the offsets that an option names, partition `B-n` → byte offset. Raises ConfigError: it is malformed."""
        text = getattr(self, name)
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        wrong = not isinstance(value, dict) or not all(
            re.fullmatch(r"[0-9]{1,9}-[0-9]{1,9}", partition) and type(offset) is int and offset >= 0
            for partition, offset in value.items()
        )
        if wrong or not value:
            raise ConfigError(f'{camel(name)}={text[:200]!r}: need offsets such as {{"0-1": 4096}}') from None
        return dict(value)

    @property
    def identity(self) -> str:
        """What a checkpoint's offsets are of."""
        place = self.metaq1_server or f"{self.zk_connect}/{self.zk_root.strip('/')}"
        return f"{place} {self.topic}"
