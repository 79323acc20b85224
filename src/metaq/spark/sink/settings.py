"""The options of a query that writes to `format("metaq")`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from metaq.errors import ConfigError, Refused
from metaq.model.topics.topic import check_group, check_topic
from metaq.option_table import option
from metaq.spark.cluster.connecting import ConnectingOptions
from metaq.spark.source.settings import spelled

EFFECTIVELY_ONCE: Final = "effectively-once"
AT_LEAST_ONCE: Final = "at-least-once"

_OF_SPARK: Final = {"checkpointlocation", "path", "queryname"}
"""Spark's own options, which it passes to the sink too."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.%-]{1,32}\Z")
_APP: Final = re.compile(r"[A-Za-z0-9_.%-]{1,60}\Z")


@dataclass(frozen=True, kw_only=True)
class SinkOptions(ConnectingOptions):
    """Options of a write. Spelled in camelCase, in upper or lower case."""

    topic: str | None = option(None, "Topic of the rows whose column `topic` is null or missing.")
    delivery: str = option(
        EFFECTIVELY_ONCE,
        "`effectively-once`: each micro-batch or batch write is delivered completely and once, by a transaction of MetaQ "
        "brokers. `at-least-once`: faster, and also for RocketMQ brokers; a task that Spark repeats sends its rows again.",
        choices=(EFFECTIVELY_ONCE, AT_LEAST_ONCE),
    )
    sink_id: str = option(
        "0",
        "Number or name that distinguishes the sinks of one query: writes in the same `foreachBatch` need different ones.",
    )
    txn_app_id: str | None = option(
        None,
        "Of a batch write, also inside `foreachBatch`: name of the application that writes. With `txnVersion`, each write is "
        "done once, even if it is repeated.",
    )
    txn_version: int | None = option(
        None, "Number of the write of `txnAppId`, which must grow: inside `foreachBatch`, the batch id.", low=0
    )
    only_group: str | None = option(
        None,
        "Consumer group that alone gets the rows: they are written to its retry topic, and its members get them as messages of "
        "the topic that the row names.",
    )
    empty_bodies: bool = option(
        False,
        "Write rows with an empty body, too. RocketMQ's producers refuse to send such messages, but its brokers keep those "
        "that others have sent. Only with `delivery=effectively-once`.",
    )
    adopt_batch: bool = option(
        False,
        "Set it for one start of a query that continues from a checkpoint whose earlier batches were not written by this sink, "
        "so that no broker remembers them.",
    )
    coordinator: str | None = option(
        None,
        "Name of the broker that coordinates the transactions of this writer. Default: one of all brokers is chosen.",
    )
    stage_seconds: int = option(
        86400,
        "Seconds for which brokers keep what tasks have staged for a batch that is neither committed nor rolled back.",
        low=1,
    )
    retry_seconds: float = option(
        120.0, "Seconds for which a write is tried again while a broker is away or busy.", low=0
    )

    @classmethod
    def of(cls, pairs: Mapping[str, str]) -> Self:
        """Parse a write's options. Raises ConfigError: an unknown name, a wrong value, or values that contradict each other."""
        mine = {key: value for key, value in pairs.items() if key.lower() not in _OF_SPARK}
        options, _ = cls.read(spelled(cls, mine), "the query's options")
        options.check()
        return options

    def check(self) -> None:
        """Validate the values against each other. Raises ConfigError."""
        self.check_connecting()
        if self.topic is not None:
            try:
                check_topic(self.topic)
            except Refused as fault:
                raise ConfigError(f"topic: {fault}") from None
        if not _NAME.match(self.sink_id):
            raise ConfigError(f"sinkId={self.sink_id!r}: 1 to 32 of the characters A-Z a-z 0-9 _ . % -")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise ConfigError("txnAppId and txnVersion belong together: whose write it is, and which one")
        if self.only_group is not None:
            try:
                check_group(self.only_group)
            except Refused as fault:
                raise ConfigError(f"onlyGroup: {fault}") from None
            if not self.exact:
                raise ConfigError(
                    f"onlyGroup needs delivery={EFFECTIVELY_ONCE}: no batch of sends may go to a retry topic"
                )
        if self.empty_bodies and not self.exact:
            raise ConfigError(f"emptyBodies needs delivery={EFFECTIVELY_ONCE}: no batch of sends has empty bodies")
        if self.txn_app_id is not None and not _APP.match(self.txn_app_id):
            raise ConfigError(f"txnAppId={self.txn_app_id!r}: 1 to 60 of the characters A-Z a-z 0-9 _ . % -")

    def check_stream(self) -> None:
        """Refuse, by a ConfigError, options of batch writes, which a streaming write would ignore."""
        if self.txn_app_id is not None:
            raise ConfigError(
                "a streaming write is numbered by its batches: txnAppId and txnVersion are for batch writes, "
                "also inside foreachBatch"
            )

    @property
    def exact(self) -> bool:
        return self.delivery == EFFECTIVELY_ONCE

    def row_of_query(self, query_id: str) -> str:
        """Return the name of the coordinator's row for a streaming query. A new checkpoint has a new query id."""
        return f"spark:{query_id}:{self.sink_id}"

    @property
    def row_of_app(self) -> str:
        """Name of the coordinator's row for numbered batch writes; empty: they are not numbered."""
        return f"app:{self.txn_app_id}:{self.sink_id}" if self.txn_app_id is not None else ""
