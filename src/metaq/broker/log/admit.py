"""Admission to the fast path of sends: decided once per topic and kind of sender, and kept as a gate until something changes.

A gate is what the compiled extension (`hot.append`) needs to store a plain message without calling Python. A topic without a
gate takes the slow path, message by message, which responds with the reason; so does a message with one of `SLOW_PROPERTIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final
from weakref import WeakValueDictionary

from metaq.broker.environment import Environment
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.acks import AckPolicy
from metaq.broker.log.closing import ClosedQueues
from metaq.broker.log.long_polling import HeldPulls
from metaq.broker.tables.closed_partitions import ClosedPartitions
from metaq.broker.tables.groups import Groups
from metaq.broker.tables.topics import Topics
from metaq.model import Perm, TopicConfig
from metaq.model import properties as props
from metaq.model.access import Action, Caller, CallerKind
from metaq.model.topics.system import OUR_PREFIX, SEND_FORBIDDEN
from metaq.model.topics.topic import RETRY_PREFIX
from metaq.wire.hot import DelayGate, TopicGate, TransactionGate

# A full table is emptied: topics in use get their gates again with the next send.
GATES_MAX = 100_000
GATE_OPTIONS: Final = frozenset(("max_message_size", "broker_permission"))
"""Options whose values are part of a gate."""
SLOW_PROPERTIES: Final = tuple(
    name.encode() for name in (props.DELAY, props.TRANSACTION_PREPARED, props.RETRY_TOPIC, props.MESSAGE_TYPE)
)
"""Properties of messages that are changed, stored elsewhere or refused: delayed, half, retried and reply messages."""
_SLOW_RETRIES: Final = tuple(name for name in SLOW_PROPERTIES if name != props.RETRY_TOPIC.encode())
"""The same for retry topics, whose messages all have RETRY_TOPIC."""


class GateTable:
    """Gates of senders with the same permissions, by topic as on the wire. `hot.append` reads `table`."""

    def __init__(self, make: Callable[[bytes], TopicGate | None]) -> None:
        self._make = make
        self.table: dict[bytes, TopicGate] = {}

    def open(self, topic: bytes) -> bool:
        """Make a gate for a topic. Returns False if there is one already, or none can be made (slow path)."""
        if topic in self.table:
            return False
        gate = self._make(topic)
        if gate is None:
            return False
        if len(self.table) >= GATES_MAX:
            self.table.clear()
        self.table[topic] = gate
        return True


class Gates:
    """All gates of a broker."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        held_pulls: HeldPulls,
        acks: AckPolicy,
        transactions: TransactionGate,
        closed_queues: ClosedQueues,
        gatekeeper: Gatekeeper,
        *,
        closed_partitions: ClosedPartitions,
        delays: DelayGate | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._environment, self._store, self._topics = environment, environment.store, topics
        self._held_pulls = held_pulls
        self._acks, self._gatekeeper, self._closed_queues = acks, gatekeeper, closed_queues
        self._transactions, self._delays, self._groups = transactions, delays, groups
        self.deliveries = GateTable(self._for_deliveries)
        """Gates for copies of delayed messages, which were checked when they were sent: for every existing topic.

        None for a topic that was deleted and created again, while the log holds older records: each is checked then.
        """
        self.expansions = GateTable(self._for_expansions)
        """Gates for messages of staged transactions, checked when they were staged.

        Valid also while the queue is closed to others.
        """
        # Of connections that there are: a white list may let in any number of addresses, and each is a kind.
        self._senders = WeakValueDictionary[CallerKind, GateTable]()
        gatekeeper.watch(self.close_all)
        topics.watch(self.close)
        if groups is not None:
            groups.watch(lambda name: self.close(RETRY_PREFIX + name))
        closed_queues.when_closed(self.close)
        self._closed_partitions = closed_partitions
        closed_partitions.when_changed(self.close)

    def options_changed(self, names: Collection[str]) -> None:
        """Close all gates if one of GATE_OPTIONS has changed."""
        if not GATE_OPTIONS.isdisjoint(names):
            self.close_all()

    def of(self, caller: Caller) -> GateTable:
        """Return the gates of a client's kind: of topics that it may send plain messages to. They are kept current while somebody
        has them."""
        table = self._senders.get(caller.kind)
        if table is None:
            table = self._senders[caller.kind] = GateTable(lambda topic: self._for_sender(topic, caller))
        return table

    def close(self, topic: str) -> None:
        """Close the topic's gates. The next send takes the slow path, which opens them again if it may."""
        for gates in (self.deliveries, self.expansions, *self._senders.values()):
            gates.table.pop(topic.encode(), None)

    def close_all(self) -> None:
        """Close all gates."""
        for gates in (self.deliveries, self.expansions, *self._senders.values()):
            gates.table.clear()

    def _for_sender(self, topic: bytes, caller: Caller) -> TopicGate | None:
        config = self._open_topic(topic) if self._topics.refusal is None else None
        if config is None or config.name in SEND_FORBIDDEN or config.name.startswith(OUR_PREFIX):
            return None
        # END_TRANSACTION names a producer group and no topic, so the fast path cannot check permissions: with ACL rules
        # only trusted callers get it.
        transactions = self._transactions if self._gatekeeper.trusts(caller) else None
        slow, retries_max = SLOW_PROPERTIES, None
        if config.name.startswith(RETRY_PREFIX):
            group = self._groups.get(config.name.removeprefix(RETRY_PREFIX)) if self._groups is not None else None
            if group is None:
                return None
            slow, retries_max, transactions = _SLOW_RETRIES, group.retry_max, None
        # The slow path looks at the queue of each message.
        if self._closed_partitions.of(config.name):
            return None
        # As in the slow path (`SendService._destination`), which responds with the reason.
        if config.order and not self._environment.options.broker_permission & Perm.WRITE:
            return None
        if not self._gatekeeper.allows(caller, Action.PUBLISH, config.name):
            return None
        return self._gate(
            # WAIT=false only matters where acknowledgements wait for flush or replicas; else it need not be looked for.
            topic, config, slow, wait_is_slow=self._acks.promises, transactions=transactions, delays=self._delays,
            retries_max=retries_max,
        )  # fmt: skip

    def _for_deliveries(self, topic: bytes) -> TopicGate | None:
        config = self._open_topic(topic)
        if config is None or self._store.deleted.get(config.name, 0) > self._store.log.min:
            return None
        return self._gate(topic, config)

    def _for_expansions(self, topic: bytes) -> TopicGate | None:
        config = self._topic(topic)
        return None if config is None else self._gate(topic, config)

    def _open_topic(self, topic: bytes) -> TopicConfig | None:
        """Return the topic, if it takes messages now."""
        config = self._topic(topic)
        return None if config is None or self._closed_queues.has_of(config.name) else config

    def _topic(self, topic: bytes) -> TopicConfig | None:
        """Return the topic, if it exists and is not being deleted."""
        try:
            name = topic.decode("ascii")
        except UnicodeDecodeError:
            return None
        return None if name in self._topics.closing else self._topics.get(name)

    def _gate(
        self,
        topic: bytes,
        config: TopicConfig,
        slow: tuple[bytes, ...] = (),
        *,
        wait_is_slow: bool = False,
        transactions: TransactionGate | None = None,
        delays: DelayGate | None = None,
        retries_max: int | None = None,
    ) -> TopicGate:
        # The larger count, as in the slow path's check of the queue id.
        count = max(config.read_queues, config.write_queues)
        queues = [self._store.reader.queue(config.name, queue_id).tail for queue_id in range(count)]
        # The look-up above makes queues that are not there yet, and pulls may wait for them.
        for queue_id in range(count):
            self._held_pulls.adopt((config.name, queue_id))
        body_bytes_max = self._environment.store_options.max_message_size
        return TopicGate(topic, queues, body_bytes_max, slow, wait_is_slow, transactions, delays, retries_max)
