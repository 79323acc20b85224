"""What users pass to a consumer, checked, with errors for users."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct

from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.ranks import RankedHandover, Ranking, Ranks
from metaq.client.consumer.membership.patterns import split_patterns
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.identity.names import EARLIEST, Namespace, checked, start_of
from metaq.client.identity.options import ClientOptions, check_flag, check_whole, checked_seconds, client_options
from metaq.client.observing.observing import Observing
from metaq.errors import ConfigError
from metaq.model import ConsumeFrom, MessageModel
from metaq.model.filters.predicates import Predicate
from metaq.model.filters.sql import Sql
from metaq.model.filters.subscription import ALL, Expression, checked_expression
from metaq.model.topics.topic import check_consumer_group, check_topic

Topics = (
    str
    | Sequence[str]
    | Mapping[str, str]
    | Mapping[str, Sql]
    | Mapping[str, Predicate]
    | Mapping[str, str | Collection[str] | Sql | Predicate]
)

Patterns = (
    re.Pattern[str]
    | Sequence[str | re.Pattern[str]]
    | Mapping[str | re.Pattern[str], str | Collection[str] | Sql | Predicate]
    | Mapping[re.Pattern[str], str]
    | Mapping[re.Pattern[str], Sql]
    | Mapping[re.Pattern[str], Predicate]
)
"""Topics, some of them as patterns that their names match."""

TOPICS_MAX = 1000
"""Most topics of one member. Our brokers refuse heartbeats from 1024 on; each topic costs memory on both sides."""
KEEP_SECONDS_MAX = 600.0
"""Nobody consumes queues that are kept for a member that is gone."""


class MemberArguments(Struct, frozen=True):
    """Arguments that say who a member is and what it subscribes to, checked."""

    group: str
    outside: str
    """The group's name at brokers: with the namespace."""
    client: ClientOptions
    observing: Observing
    topics: dict[str, Expression]
    patterns: dict[re.Pattern[str], Expression]

    @classmethod
    def of(cls, group: str, topics: Topics | Patterns, common: Mapping[str, Any], *, required: bool) -> Self:
        """
        Args:
            common: the keyword arguments of every client.
            required: no topic at all is an error.

        Raises ConfigError, TypeError.
        """
        given = dict(common)
        observing = Observing.taken_from(given)
        client = client_options(**given)
        checked(check_consumer_group, group)
        outside = checked(check_consumer_group, client.namespace.check_group(group))
        if not topics and not required:
            return cls(group, outside, client, observing, {}, {})
        return cls(group, outside, client, observing, *topics_and_patterns(topics, client.namespace))


def message_model(*, broadcast: bool) -> MessageModel:
    """The model of a group that broadcasts, or shares its messages out. Raises TypeError."""
    check_flag("broadcast", broadcast)
    return MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING


def topics_and_patterns(
    topics: Topics | Patterns, namespace: Namespace
) -> tuple[dict[str, Expression], dict[re.Pattern[str], Expression]]:
    """What is subscribed to by name and by pattern. Raises ConfigError, TypeError."""
    named, patterns = split_patterns(topics)
    # With patterns alone no topic need exist yet; with neither, `topics_of` raises.
    found = topics_of(named) if named or not patterns else {}
    for topic in found:
        namespace.check_topic(topic)
    return found, {one.pattern: topics_of({"any": one.wants})["any"] for one in patterns}


def topics_of(topics: Topics) -> dict[str, Expression]:
    """Topic → tag expression or SQL filter. Raises ConfigError, TypeError."""
    given: Mapping[str, str | Collection[str] | Sql | Predicate]
    if isinstance(topics, Mapping):
        given = topics
    else:
        given = dict.fromkeys([topics] if isinstance(topics, str) else topics, ALL)
    if not given:
        raise ConfigError("no topic to consume")
    if len(given) > TOPICS_MAX:
        raise ConfigError(
            f"{len(given)} topics for one consumer: at most {TOPICS_MAX}; let consumers of several groups share them"
        )
    return {checked(check_topic, topic): checked_expression(topic, tags) for topic, tags in given.items()}


def start_place(start: str | float | dt.datetime) -> tuple[ConsumeFrom, int]:
    """Where a group without progress begins, and the milliseconds if that is a moment. Raises ConfigError, TypeError."""
    place = start_of(start)
    if isinstance(place, int):
        return ConsumeFrom.TIMESTAMP, place
    return (ConsumeFrom.FIRST if place == EARLIEST else ConsumeFrom.LAST), 0


def check_limits(options: GroupOptions) -> None:
    """Raises ConfigError, TypeError."""
    least = {
        name: getattr(options, name)
        for name in ("pull_count", "pull_bytes", "queue_messages_max", "queue_bytes_max", "span_max", "skip_when_behind",
                     "topic_messages_max", "topic_bytes_max")
    }  # fmt: skip
    for name, value in (*least.items(), ("max_reconsume_times", options.max_reconsume_times)):
        if value is not None:
            check_whole(name, value)
    for name, listener in (("on_skip", options.on_skip), ("on_share", options.on_share)):
        check_listener(name, listener)
    if wrong := [f"{name}={value!r}" for name, value in least.items() if value is not None and value < 1]:
        raise ConfigError(f"{', '.join(wrong)}: the pull and queue limits must be positive")
    if options.max_reconsume_times is not None and options.max_reconsume_times < 0:
        raise ConfigError(f"max_reconsume_times={options.max_reconsume_times}: must not be negative")
    checked_seconds("pull_interval", options.pull_interval, least=0.0)
    checked_seconds("commit_interval", options.seconds.persist, least=0.1)


def check_listener(name: str, listener: object) -> None:
    """Raises TypeError: the listener cannot be called, or is asynchronous, so that a call would run nothing of it."""
    if listener is None:
        return
    if not callable(listener):
        raise TypeError(f"{name} is {listener!r}: pass a function")
    if inspect.iscoroutinefunction(listener):
        raise TypeError(f"{name} is asynchronous: make it `def`; it is called in a thread, where it may block")


def check_keeping(seconds: float, instance_name: str, *, broadcast: bool) -> None:
    """Check `keep_queues`: brokers must know the member again after a restart. Raises ConfigError, TypeError."""
    if checked_seconds("keep_queues", seconds, least=0.0) == 0:
        return
    if seconds > KEEP_SECONDS_MAX:
        raise ConfigError(
            f"keep_queues={seconds!r}: at most {KEEP_SECONDS_MAX:g} s, for nobody consumes them meanwhile"
        )
    if instance_name == "DEFAULT":
        raise ConfigError(
            "keep_queues needs an instance_name: brokers know a member again by its address and that name, which must be "
            "the same after a restart, and another for each member"
        )
    if broadcast:
        raise ConfigError("keep_queues with broadcast=True: every member has all queues anyway")


def handover_for(
    ranks: Ranks | None, low_share: float, topics: Collection[str], patterns: Collection[re.Pattern[str]] = ()
) -> Handover[ReceivedMessage]:
    """Args: topics, patterns: what is consumed. Raises ConfigError, TypeError."""
    if isinstance(low_share, bool) or not isinstance(low_share, int | float):
        raise TypeError(f"low_share={low_share!r}: need a number")
    if not 0 < low_share < 1:
        raise ConfigError(f"low_share={low_share!r}: need a share above 0 and below 1")
    if not ranks:
        return Handover()
    if not isinstance(ranks, Mapping):
        raise TypeError(f"ranks={ranks!r}: need a mapping, topic or (topic, range of queue ids) to rank")
    ranking = Ranking(ranks)
    others = ranking.topics() - set(topics)
    if unknown := sorted(name for name in others if not any(pattern.fullmatch(name) for pattern in patterns)):
        raise ConfigError(f"ranks: {', '.join(unknown)} is not among the topics")
    return RankedHandover(ranking, low_share)
