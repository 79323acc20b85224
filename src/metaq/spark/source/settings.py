"""The options of `format("metaq")`: their names, meanings and bounds, and the docs' table."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from metaq.errors import ConfigError, Refused
from metaq.model import SubscriptionData
from metaq.model.filters.sql import Sql
from metaq.model.filters.subscription import checked_expression, subscribe
from metaq.model.queue import MessageQueue
from metaq.model.topics.topic import check_group, check_partition_topic
from metaq.option_table import MIB, OptionTable, camel, option
from metaq.spark.cluster.connecting import ConnectingOptions
from metaq.spark.cluster.replicas import AUTO, READ_FROM
from metaq.spark.source.fetch import GROUP, PULL_BYTES, FetchSettings
from metaq.spark.source.watch import BROKER_AWAY, FAIL, WAIT

EARLIEST, LATEST = "earliest", "latest"
RAW, SKIP = "raw", "skip"


def spelled(table: type[OptionTable], pairs: Mapping[str, str]) -> dict[str, str]:
    """Return a query's options by the table's own names; those of Spark come in any case. Raises ConfigError: an unknown name."""
    names = {spelling.lower(): spelling for spelling in table.spellings()}
    unknown = [key for key in pairs if key.lower() not in names]
    if unknown:
        near = difflib.get_close_matches(unknown[0].lower(), names, 1, 0.5)
        hint = f"; did you mean {camel(names[near[0]])}?" if near else ""
        raise ConfigError(f"format('metaq') has no option {unknown[0]}{hint}")
    return {names[key.lower()]: value for key, value in pairs.items()}


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ConnectingOptions):
    """Options of a query's source. Spelled in camelCase, in upper or lower case: Spark's option names ignore it."""

    subscribe: str | None = option(
        None,
        "Topics to read, separated by `,`. Exactly one of `subscribe`, `subscribePattern` and `assign` is required.",
    )
    subscribe_pattern: str | None = option(
        None, "Topics to read, as a glob such as `orders-*`; topics that are created later are read as well."
    )
    assign: str | None = option(None, 'Queues to read, as JSON: `{"orders": {"broker-a": [0, 1]}}`.')
    tags: str | None = option(
        None,
        "Read only messages with one of these tags, `paid || refunded`; the brokers filter. Not together with `filter`.",
    )
    filter: str | None = option(
        None,
        "Read only messages whose properties match this SQL92 condition, such as `amount > 10`; the brokers filter. Not "
        "together with `tags`.",
    )
    starting_offsets: str | None = option(
        None,
        "Where reading begins: `earliest`, `latest`, or the offsets JSON. Default: `latest` for streams, `earliest` for batch "
        "reads.",
    )
    ending_offsets: str | None = option(
        None,
        "Where a batch read ends: `latest` (default) or the offsets JSON. Queues that the JSON does not name are not read.",
    )
    starting_timestamp: str | None = option(
        None,
        "Begin at the first message that was stored at this time or later, in ms since 1970; if there is none yet, at the end. "
        'As JSON, a time for each topic: `{"orders": 1790000000000}`.',
    )
    ending_timestamp: str | None = option(
        None,
        "End a batch read before the first message that was stored at this time or later, in ms since 1970. As JSON, a time "
        "for each topic.",
    )
    starting_group: str | None = option(
        None, "Begin at the committed offsets of this consumer group; in a queue without one, at the first message."
    )
    ending_group: str | None = option(
        None, "End a batch read at the committed offsets of this consumer group; queues without one are not read."
    )
    max_offsets_per_trigger: int | None = option(
        None, "Largest number of messages in one micro-batch. Default: no limit.", low=1
    )
    max_bytes_per_trigger: int | None = option(
        None,
        "Approximate largest size of one micro-batch, in bytes of stored messages; it is estimated by samples of each queue's "
        "next messages. Default: no limit.",
        low=1,
    )
    min_offsets_per_trigger: int | None = option(
        None,
        "Delay a micro-batch until so many messages are there, or `maxTriggerDelay` is over. Default: no delay.",
        low=1,
    )
    max_trigger_delay: str = option(
        "15m", "Longest time that messages wait for `minOffsetsPerTrigger`: a number with `ms`, `s`, `m` or `h`."
    )
    min_partitions: int = option(
        1,
        "Smallest number of Spark partitions: queues are cut into slices of about equal bytes until there are so many.",
        low=1,
    )
    max_offsets_per_partition: int | None = option(
        None, "Largest number of messages in one Spark partition. Default: no limit.", low=1
    )
    max_bytes_per_partition: int | None = option(
        None,
        "Approximate largest size of one Spark partition, in bytes of stored messages; it is estimated by samples. Default: no "
        "limit.",
        low=1,
    )
    fail_on_data_loss: bool = option(
        True,
        "Fail the query if messages were deleted before they were read, if a queue ends before the checkpoint, or if its topic "
        "was deleted and created again. `false`: log a warning and go on.",
    )
    corrupt: str = option(
        RAW,
        "What happens with a body that cannot be decompressed. `raw`: the row has the body as it is stored, and 2^30 in "
        "`sys_flag`; decoders put it into `_corrupt`. `skip`: there is no row. `fail`: the query fails. The log names queue "
        "and offset.",
        choices=(RAW, SKIP, FAIL),
    )
    progress_group: str | None = option(
        None,
        "Consumer group as whose progress the finished offsets are stored, so that `metaq group show` finds them. No consumer "
        "may be in the group, nor another query.",
    )
    broker_away: str = option(
        WAIT,
        "What a stream does while a broker is away. `wait`: it reads from the others, and reads this broker's queues when it "
        "is back. `fail`: it fails after `retrySeconds`. A batch read always fails.",
        choices=BROKER_AWAY,
    )
    read_from: str = option(
        AUTO,
        "Which brokers are read. `auto`: masters, and for old messages, which masters have on disk only, the slaves that the "
        "masters suggest. `slave`: slaves, if one is running and has the messages. `master`: masters only.",
        choices=READ_FROM,
    )
    columns: str | None = option(
        None, "Columns of a row, separated by `,`, or `*` for all. Default: the ten lean ones."
    )
    push_filters: bool = option(
        False,
        "Apply conditions of a batch query on topic, broker, queue_id, queue_offset, store_time and tag before messages are "
        "read. Needs Spark's `spark.sql.python.filterPushdown.enabled`.",
    )
    rows: str = option(
        "messages",
        "`messages`: one row for each message. `slices`: one row for each range of a queue, whose messages the query fetches "
        "itself.",
        choices=("messages", "slices"),
    )
    retry_seconds: float = option(30.0, "Seconds for which a read is tried again while a broker is away.", low=0)
    pull_bytes: int = option(
        PULL_BYTES,
        "Bytes of messages that one pull asks for; a RocketMQ broker returns at most 32 messages for each.",
        low=1,
        high=8 * MIB,
    )

    @classmethod
    def of(cls, pairs: Mapping[str, str]) -> Self:
        """Parse a query's options. Raises ConfigError: an unknown name, a wrong value, or values that contradict each other."""
        options, _ = cls.read(spelled(cls, pairs), "the query's options")
        options.check()
        return options

    def check(self) -> None:
        """Validate the values against each other. Raises ConfigError."""
        self.check_connecting()
        chosen = [name for name in ("subscribe", "subscribe_pattern", "assign") if getattr(self, name)]
        if len(chosen) != 1:
            given = f"not {' and '.join(map(camel, chosen))} together" if chosen else "none was given"
            raise ConfigError(f"format('metaq') needs one of the options subscribe, subscribePattern, assign; {given}")
        for name, value, rule in [
            # A retry or dead-letter topic is named after a group, which may be longer than a topic may be.
            *(("subscribe", topic, check_partition_topic) for topic in self.topics if not topic.startswith("%")),
            *(
                (camel(name), group, check_group)
                for name in ("progress_group", "starting_group", "ending_group")
                if (group := getattr(self, name)) is not None
            ),
        ]:
            try:
                rule(value)
            except Refused as fault:
                hint = (
                    "; name topics, `,`-separated: messages of all tags are read"
                    if rule is check_partition_topic
                    else ""
                )
                raise ConfigError(f"{name}: {fault}{hint}") from None
        for where in ("starting", "ending"):
            ways = [f"{where}_{what}" for what in ("offsets", "timestamp", "group")]
            both = [camel(name) for name in ways if getattr(self, name) is not None]
            if len(both) > 1:
                raise ConfigError(f"give {' or '.join(both)}: one of them")
        if self.tags is not None and self.filter is not None:
            raise ConfigError("give tags or filter, not both: a condition may ask for TAGS too")
        if self.rows == "slices" and (self.tags is not None or self.filter is not None):
            raise ConfigError("rows=slices reads no message, so there is nothing for tags or filter to choose from")
        _ = self.subscription
        if self.subscribe and not self.topics:
            raise ConfigError(f"subscribe={self.subscribe!r} names no topic")
        if self.assign and not self.assigned:
            raise ConfigError(f"assign={self.assign[:200]!r} names no queue")
        since, until = self.moments("starting_timestamp"), self.moments("ending_timestamp")
        if isinstance(since, int) and isinstance(until, int) and until <= since:
            raise ConfigError("endingTimestamp is not behind startingTimestamp: nothing can lie between them")
        if self.trigger_delay is None:
            raise ConfigError(
                f"maxTriggerDelay={self.max_trigger_delay!r}: need a number with ms, s, m or h, such as 15m"
            )
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise ConfigError(
                "minOffsetsPerTrigger is above maxOffsetsPerTrigger: no micro-batch could ever be large enough"
            )
        if self.ending_offsets == EARLIEST:
            raise ConfigError("endingOffsets=earliest would read nothing; give latest or the offsets JSON")

    def check_stream(self) -> None:
        """Refuse, by a ConfigError, options of batch reads, which a streaming read would ignore."""
        given = [
            name for name in ("ending_offsets", "ending_timestamp", "ending_group") if getattr(self, name) is not None
        ]
        if given:
            raise ConfigError(
                f"a stream has no {camel(given[0])}: it goes on until it is stopped, or with trigger(availableNow=True) to "
                "what is there now. Take the option away, or use spark.read"
            )
        if self.push_filters:
            raise ConfigError(
                "pushFilters is for batch reads: Spark pushes no condition into a stream. Take the option away, and choose "
                "by tags, filter or subscribe"
            )

    @property
    def has_default_bounds(self) -> bool:
        """Whether the read begins and ends at the first or newest message of its queues: no option names queues or times."""
        anywhere = {None, EARLIEST, LATEST}
        places = {
            self.starting_offsets, self.starting_timestamp, self.starting_group,
            self.ending_offsets, self.ending_timestamp, self.ending_group,
        }  # fmt: skip
        return places <= anywhere

    @property
    def topics(self) -> list[str]:
        return [topic for part in (self.subscribe or "").split(",") if (topic := part.strip())]

    @property
    def subscription(self) -> SubscriptionData:
        """Filter for brokers. Raises ConfigError: it can match nothing, or cannot be parsed."""
        try:
            wanted = Sql(self.filter) if self.filter is not None else checked_expression("the query", self.tags)
            return subscribe("", wanted)
        except Refused as fault:
            raise ConfigError(str(fault)) from None

    @property
    def trigger_delay(self) -> float | None:
        """`max_trigger_delay` in seconds; None: it is malformed."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", self.max_trigger_delay.strip())
        return float(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found[2]] if found else None

    def moments(self, name: str) -> dict[str, int] | int | None:
        """Return the option's time, ms since 1970, or topic → time; None: it is not given.

        Raises ConfigError: it is malformed, or its topics are not those that are read.
        """
        text = getattr(self, name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        whole = value if isinstance(value, dict) else {"": value}
        if not whole or any(isinstance(ms, bool) or not isinstance(ms, int) or ms < 0 for ms in whole.values()):
            form = '{"TOPIC": 1790000000000}'
            raise ConfigError(f"{camel(name)}={text[:200]!r}: need ms since 1970, or {form}")
        if not isinstance(value, dict):
            return int(value)
        if self.topics and set(value) != set(self.topics):
            raise ConfigError(
                f"{camel(name)} has times for {', '.join(sorted(value))}, and {', '.join(sorted(self.topics))} are read: each topic needs one"
            )
        return {str(topic): int(ms) for topic, ms in value.items()}

    @property
    def assigned(self) -> list[MessageQueue]:
        """Queues that `assign` names. Raises ConfigError: it is malformed."""
        try:
            return sorted(
                MessageQueue(topic, broker, _queue_id(queue_id))
                for topic, brokers in json.loads(self.assign or "{}").items()
                for broker, queue_ids in brokers.items()
                for queue_id in _listed(queue_ids)
            )
        except (ValueError, TypeError, AttributeError):
            form = '{"TOPIC": {"BROKER": [0, 1]}}'
            raise ConfigError(f"assign: {str(self.assign)[:200]!r} is not of the form {form}") from None

    @property
    def fetch(self) -> FetchSettings:
        return FetchSettings(
            group=self.progress_group or GROUP,
            fail_on_data_loss=self.fail_on_data_loss,
            retry_seconds=self.retry_seconds,
            pull_bytes=self.pull_bytes,
            subscription=self.subscription,
            read_from=self.read_from,
            access=self.access,
        )

    @property
    def fetch_of_stream(self) -> FetchSettings:
        """The same for a stream. With brokerAway=wait a planned slice waits for its broker: a planned batch never changes."""
        return dataclasses.replace(self.fetch, waits=self.broker_away == WAIT)


def _listed(value: Any) -> list[Any]:
    # A text and an object are walked as well, and give other queues than were meant.
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _queue_id(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError(f"the queue id {value!r} is not a whole number")
    return int(value)


def markdown_table(table: type[OptionTable] = SourceOptions) -> str:
    """Return the options as the table of docs/spark.md."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for item in dataclasses.fields(table):
        default = "" if item.default is None else str(item.default)
        default = default.lower() if isinstance(item.default, bool) else default
        meaning = item.metadata["doc"].replace("|", "\\|")  # or it ends the cell, also within backticks
        lines.append(f"| `{camel(item.name)}` | {default} | {meaning} |")
    return "\n".join(lines)
