"""Who may use the fast lane: the verdict on a topic, taken once and kept as a gate until the topic changes.

Nothing here sees a body. A topic without a gate goes the slow way, message by message, which answers with the reason.
"""

from __future__ import annotations

from metaq.broker.hold import HeldPulls
from metaq.broker.topics import Topics
from metaq.model import TopicConfig
from metaq.model.system import OUR_PREFIX, SEND_FORBIDDEN
from metaq.model.topic import RETRY_PREFIX
from metaq.store.message_store import MessageStore
from metaq.wire.hot import TopicGate

GATES_MAX = 100_000
_JUDGED_SINGLY = (RETRY_PREFIX, OUR_PREFIX)


class Gates:
    """The gates of all topics that were sent to, by their bytes on the wire. `table` is what `hot.append` reads."""

    def __init__(self, store: MessageStore, topics: Topics, hold: HeldPulls) -> None:
        self._store, self._topics, self._hold = store, topics, hold
        self.table: dict[bytes, TopicGate] = {}
        self.beside: tuple[Gates, ...] = ()
        """Other gates to the same queues: closed together with these."""
        topics.watch(self.close)

    def open(self, topic: bytes) -> bool:
        """Make a gate for a topic that clients may send plain messages to. False: the slow lane must decide."""
        if topic in self.table:
            return False
        try:
            name = topic.decode("ascii")
        except UnicodeDecodeError:
            return False
        config = self._topics.get(name)
        if config is None or not self._admits(config):
            return False
        if name in self._topics.closing:
            return False
        if len(self.table) >= GATES_MAX:
            self.table.clear()
        # The larger count, as in the slow lane's check of the queue id.
        count = max(config.read_queues, config.write_queues)
        queues = [self._store.queue(name, queue_id).tail for queue_id in range(count)]
        for queue_id in range(count):
            self._hold.adopt((name, queue_id))
        self.table[topic] = TopicGate(topic, queues, self._store.options.max_message_size)
        return True

    def close_all(self) -> None:
        """Take every topic from the fast lane until it is opened again."""
        for gates in (self, *self.beside):
            gates.table.clear()

    def close(self, topic: str) -> None:
        """Take the topic from the fast lane until it is opened again."""
        for gates in (self, *self.beside):
            gates.table.pop(topic.encode(), None)

    def _admits(self, config: TopicConfig) -> bool:
        return not config.order and config.name not in SEND_FORBIDDEN and not config.name.startswith(_JUDGED_SINGLY)


class DeliveryGates(Gates):
    """Gates for copies of delayed messages, which were judged when they were sent: for any topic that there is.

    Of a topic that was deleted and made again some may be older than that: while the log holds such, each is looked at.
    """

    def _admits(self, config: TopicConfig) -> bool:
        return self._store.deleted.get(config.name, 0) <= self._store.min_log
