"""Who may pull what: the checks of a pull that depend on group, topic and filter only, and their cached results.

They are those of RocketMQ 4.9, in its order. A result holds until a topic, a group, a member, a filter or the access control
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.pulls.filters import TAGS, Filters
from metaq.broker.pulls.predicates import Predicates, no_classes
from metaq.broker.tables.topics import check_client_topic
from metaq.errors import Reason, Refused
from metaq.model import GroupConfig, MessageModel, Perm
from metaq.model.access import Caller, CallerKind
from metaq.model.filters.predicates import PREDICATE
from metaq.model.filters.subscription import SubscriptionData, subscribe
from metaq.model.topics.system import TRANSACTION_GROUP
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire.hot import Filter

ADMISSIONS_SHARE = 16
"""Part of `peerBytesMax` that all cached admissions may take (estimate): by default those of 45 000 plain pulls."""
ADMISSION_BYTES = 700
"""Memory of a cached admission beside its filter (estimate)."""
FILTER_FACTOR = 4
"""Memory of a filter in a request and its parsed form, as a multiple of its length (estimate)."""
SUBSCRIPTION_BYTES_MAX = 64 * 1024
"""Longest filter in a request, bytes: held pulls keep its parsed form."""
CACHED_SUBSCRIPTION_BYTES_MAX = 1024

Changes = tuple[int, int, int, int, int]
"""Change counters of everything that the checks of pulls depend on."""
NEVER: Changes = (-1, -1, -1, -1, -1)
"""Value before the first check."""


class Admission(NamedTuple):
    """Result of the checks for one group, topic and filter."""

    group: GroupConfig
    topic: str
    # readQueueNums: checked against each pull's queue id.
    queues: int
    wanted: Filter | None
    """None: all messages."""
    expression: str
    version: int
    """Version of the heartbeat's subscription; 0 for a request that brings its own filter."""
    predicate: str = ""
    """Name of the predicate that filters; "": `wanted` alone does."""


class Admissions:
    """Checks pulls, and caches the results."""

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        gatekeeper: Gatekeeper,
        filters: Filters,
        predicates: Predicates,
    ) -> None:
        self._environment, self._gatekeeper = environment, gatekeeper
        self._topics, self._groups, self._members = tables.topics, tables.groups, tables.members
        self._filters, self._predicates = filters, predicates
        self._known: dict[tuple[str | bytes | bool | CallerKind | None, ...], Admission] = {}
        self.seen_changes = NEVER
        """Change counters for which the cached results hold."""
        self._bytes = 0
        self._bytes_max = environment.options.peer_bytes_max // ADMISSIONS_SHARE
        filters.when_full(self._forget)

    def admit(
        self,
        caller: Caller,
        group: bytes,
        topic: bytes,
        subscription: bytes | None,
        expression_type: bytes | None,
        *,
        brought: bool,
    ) -> Admission:
        """Return the result of the checks, cached if nothing has changed. `brought`: the filter is in the request.

        Raises Refused: the first check that fails.
        """
        changes = self.changes()
        if changes != self.seen_changes or self._bytes > self._bytes_max:
            self._forget()
            self.seen_changes = changes
        key = (group, topic, subscription, expression_type, brought, caller.kind)
        known = self._known.get(key)
        if known is None:
            if subscription is not None and len(subscription) > SUBSCRIPTION_BYTES_MAX:
                raise Refused(
                    Reason.BAD_FILTER,
                    f"a subscription of {len(subscription)} bytes, the limit is {SUBSCRIPTION_BYTES_MAX}",
                )
            self._gatekeeper.check_consumer(caller, _text(group), (_text(topic),))
            known = self._judge(
                _text(group), _text(topic), _text(subscription or b""), _text(expression_type or b"TAG"), caller.client,
                brought=brought,
            )  # fmt: skip
            # The checks may themselves have changed something: they create a missing group, for example.
            if self.changes() == self.seen_changes and len(subscription or b"") <= CACHED_SUBSCRIPTION_BYTES_MAX:
                self._known[key] = known
                self._bytes += ADMISSION_BYTES + FILTER_FACTOR * len(subscription or b"")
        return known

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0

    def changes(self) -> Changes:
        """Return the change counters of everything that an admission depends on."""
        return (
            self._topics.changes, self._groups.changes, self._members.changes, self._filters.changes,
            self._gatekeeper.changes,
        )  # fmt: skip

    def _judge(
        self, group_name: str, topic_name: str, text: str, expression_type: str, peer: str, *, brought: bool
    ) -> Admission:
        if not self._environment.options.broker_permission & Perm.READ:
            raise Refused(Reason.NO_PERMISSION, "the broker pulling message is forbidden")
        check_client_topic(topic_name)
        if group_name == TRANSACTION_GROUP:  # a pull with COMMIT would overwrite the broker's own offsets
            raise Refused(Reason.NO_PERMISSION, f"the group {group_name} is the broker's own: pull with another one")
        group = self._groups.require(group_name, peer)
        if not group.consume_enable:
            raise Refused(Reason.NO_PERMISSION, f"subscription group no permission, {group_name}")
        topic = self._topics.require(topic_name)
        if not topic.readable:
            raise Refused(Reason.NO_PERMISSION, f"the topic[{topic_name}] pulling message is forbidden")
        if brought:
            if expression_type == PREDICATE:
                self._predicates.check(text)
                return Admission(group, topic_name, topic.read_queues, None, text, 0, text)
            if expression_type in TAGS:
                wanted = _filter(subscribe(topic_name, text))
            else:
                wanted = self._filters.of_text(text, expression_type, peer)
            return Admission(group, topic_name, topic.read_queues, wanted, text, 0)
        # Without a filter of its own, a pull relies on the heartbeat: only members may send such.
        online = self._members.consumers.get(group_name)
        if online is None:
            raise Refused(Reason.NOT_SUBSCRIBED, f"the consumer's group info not exist: {group_name}")
        if not group.consume_broadcast_enable and online.model is MessageModel.BROADCASTING:
            raise Refused(Reason.NO_PERMISSION, f"the consumer group[{group_name}] can not consume by broadcast way")
        stored = online.subscriptions.get(topic_name)
        if stored is None:
            raise Refused(
                Reason.NOT_SUBSCRIBED,
                f"the consumer's subscription not exist: group {group_name}, topic {topic_name}",
            )
        predicate = self._predicate_of(stored)
        wanted = None if predicate else self._wanted(group_name, stored, online.subscriptions, peer)
        return Admission(group, topic_name, topic.read_queues, wanted, stored.expression, stored.version, predicate)

    def _predicate_of(self, stored: SubscriptionData) -> str:
        """Return the predicate of a subscription; "": none. Raises Refused: it cannot be used, or is a Java class filter."""
        if stored.class_filter:
            raise Refused(Reason.INVALID, no_classes(self._predicates))
        if stored.expression_type != PREDICATE:
            return ""
        self._predicates.check(stored.expression)
        return stored.expression

    def _wanted(
        self, group: str, stored: SubscriptionData, all_of_them: Mapping[str, SubscriptionData], peer: str
    ) -> Filter | None:
        if stored.expression_type not in TAGS:
            return self._filters.of_group(group, stored, peer)
        # Retried messages keep the properties of their topics, so each has the filter of its own topic.
        if stored.topic == RETRY_PREFIX + group:
            return self._filters.of_retried(group, all_of_them.values(), peer)
        return _filter(stored)


def _filter(subscription: SubscriptionData) -> Filter | None:
    return Filter(subscription.tag_hashes) if subscription.tag_hashes else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
