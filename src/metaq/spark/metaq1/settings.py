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
GROUP = "metaq-spark"
"""Group in the requests of a query without `progressGroup`."""


@dataclass(frozen=True, kw_only=True)
class Metaq1Options(OptionTable):
    """A query's. Spelled in camelCase, in upper or lower case."""

    zk_connect: str | None = option(
        None, "ZooKeeper servers of the cluster, `host:port`, separated by `,`. Only the driver connects to them."
    )
    zk_root: str = option("/meta", "Root of MetaQ's nodes in ZooKeeper.")
    metaq1_server: str | None = option(
        None, "Address of one MetaQ 1.x server, `host:port`, instead of `zkConnect`; needs `partitions`."
    )
    partitions: int | None = option(None, "Number of partitions of the topic at `metaq1Server`.", low=1, high=100_000)
    topic: str = option("", "Topic to read. Required.")
    starting_offsets: str | None = option(
        None,
        'Where reading begins: `earliest`, `latest`, or byte offsets of partitions, `{"0-1": 4096}`; a partition that these do '
        "not name begins at its first message. Default: `latest` for streams, `earliest` for batch reads.",
    )
    starting_group: str | None = option(
        None,
        "Begin at the offsets of this consumer group in ZooKeeper; in a partition without one, at the first message.",
    )
    ending_offsets: str | None = option(
        None,
        'Where a batch read ends: `latest` (default) or byte offsets of partitions, `{"0-1": 8192}`. Partitions that these do '
        "not name are not read.",
    )
    max_bytes_per_trigger: int | None = option(
        None,
        "Largest size of one micro-batch, in bytes of stored messages. Messages are not divided: one that is larger is read "
        "alone. Default: no limit.",
        low=1,
    )
    fail_on_data_loss: bool = option(
        True,
        "Fail the query if messages were deleted before they were read, or if a partition ends before the checkpoint. `false`: "
        "log a warning and go on.",
    )
    progress_group: str | None = option(
        None,
        "Consumer group as whose offsets the finished ones are stored in ZooKeeper, so that clients of MetaQ 1.x can continue "
        "there. No consumer may be in the group, nor another query.",
    )
    fetch_bytes: int = option(
        131_072, "Bytes that one fetch asks for; for a larger message more are asked for.", low=64, high=64 * MIB
    )
    retry_seconds: float = option(30.0, "Seconds for which a read is tried again while a server is away.", low=0)

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
        for name in ("starting_group", "progress_group"):
            group = getattr(self, name)
            if group is None:
                continue
            if not group or not group.isascii() or not group.isprintable() or set(group) & {" ", "/"}:
                raise ConfigError(f"{camel(name)}={group!r:.100}: need ASCII characters without blanks and slashes")
            if self.metaq1_server:
                raise ConfigError(f"{camel(name)} needs zkConnect: a group's offsets are in ZooKeeper")
        if self.starting_offsets is not None and self.starting_group is not None:
            raise ConfigError("give startingOffsets or startingGroup: one of them")
        if self.metaq1_server:
            split_address(self.metaq1_server)
            if self.partitions is None:
                raise ConfigError(
                    "metaq1Server needs partitions: without ZooKeeper nobody tells how many the topic has"
                )
        elif self.partitions is not None:
            raise ConfigError("partitions is for metaq1Server; ZooKeeper tells their number")
        if self.ending_offsets == EARLIEST:
            raise ConfigError("endingOffsets: give latest or offsets as JSON")
        for name, words in (("starting_offsets", {EARLIEST, LATEST}), ("ending_offsets", {LATEST})):
            if (text := getattr(self, name)) is not None and text not in words:
                self.given(name)

    def check_stream(self) -> None:
        """Refuse, by a ConfigError, options of batch reads, which a streaming read would ignore."""
        if self.ending_offsets is not None:
            raise ConfigError(
                "a stream has no endingOffsets: it goes on until it is stopped, or with trigger(availableNow=True) to what is "
                "there now. Take the option away, or use spark.read"
            )

    @property
    def group(self) -> str:
        """Named in the requests."""
        return self.progress_group or GROUP

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
