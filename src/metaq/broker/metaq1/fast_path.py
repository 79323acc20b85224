"""Fast path of MetaQ 1.x puts: admission of topics by gates, and runs of puts stored by the compiled extension.

A *gate* is the result of the checks of `Partitions.put` for a topic and a kind of sender. While it is open, plain puts
(`hot.put_lines`) are not checked again; whatever changes a result closes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from metaq.broker.environment import Environment
from metaq.broker.log.admit import GATE_OPTIONS, GATES_MAX
from metaq.broker.log.appender import Appender
from metaq.broker.log.long_polling import HeldPulls
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.model.access import Caller, CallerKind
from metaq.model.metaq1.partition import FRAME_HEADER_BYTES
from metaq.wire.hot import AppendOutcome, PartitionGate, QueueTail, Replies

RUN_MAX: Final = 256
"""Puts per call. As many of a millisecond's 4096 ids are reserved, and unused ones are returned."""

_Table = dict[bytes, PartitionGate]


class PartitionFastPath:
    """The fast path of one broker."""

    def __init__(
        self,
        environment: Environment,
        settings: Metaq1Settings,
        appender: Appender,
        held_pulls: HeldPulls,
        bases: Bases,
        partitions: Partitions,
    ) -> None:
        self._environment, self._reader, self._settings = environment, environment.store.reader, settings
        self._appender, self._held_pulls, self._bases, self._partitions = appender, held_pulls, bases, partitions
        self._ids, self._acks, self._log = partitions.ids, partitions.acks, environment.store.log.tail
        self._tables: dict[CallerKind, _Table] = {}
        self._counted: dict[str, tuple[int, int]] = {}
        """Counters of closed gates: topic → (puts, bytes) that `counts` has not returned yet."""
        settings.watch(lambda _names: self.close_all())
        appender.closed_queues.when_closed(self.close)
        partitions.gatekeeper.watch(self.close_all)

    def of(self, caller: Caller) -> _Table:
        """Return the gates of a client's kind."""
        return self._tables.setdefault(caller.kind, {})

    def open(self, gates: _Table, topic: str, partition: int, caller: Caller) -> None:
        """Open the gate of a topic, if possible, after a put to one of its partitions has passed all checks."""
        key = topic.encode("utf-8", "replace")
        gate = gates.get(key)
        # The gate may be there without positions of this partition, which no 1.x client had used before.
        if gate is not None and gate.positions[partition] is not None:
            return
        count = self._partitions.admits(topic, caller)
        if count is None:
            return
        if len(gates) >= GATES_MAX:
            self.close_all()
        if gate is not None:
            self._count(topic, gate)
        queues = [self._tail(topic, number) for number in range(count)]
        found = [self._bases.find(topic, number) for number in range(count)]
        positions = [each.tail if each is not None and each.touched else None for each in found]
        options, store_options = self._settings.options, self._environment.store_options
        most = min(options.max_transfer_size - FRAME_HEADER_BYTES, store_options.max_message_size)
        gates[key] = PartitionGate(key, queues, positions, most, self._environment.clock.random_below(1 << 62))

    def _tail(self, topic: str, number: int) -> QueueTail:
        self._held_pulls.adopt((topic, number))
        return self._reader.queue(topic, number).tail

    # -- runs
    def run(
        self, data: memoryview, start: int, gates: _Table, born_host: bytes, replies: Replies, outcome: AppendOutcome
    ) -> int:
        """Store the plain puts at the start of `data[start:]`; responses go into `replies`. Returns the start of the first put
        that is not plain, or could not be stored."""
        while start < len(data):
            first = self._ids.take(RUN_MAX)
            try:
                ids = range(first, first + RUN_MAX)
                used = self._appender.puts(data, start, gates, ids, born_host, replies, outcome)
            finally:
                self._ids.give_back(RUN_MAX - outcome.messages)
            for gate in used:
                self._acks.stored_run(gate.topic.decode(), gate.take_grown(), self._log.end)
            start = outcome.row
            if outcome.messages < RUN_MAX:
                # Not a full run: what follows is not plain, or could not be stored.
                break
        return start

    # -- what closes gates
    def options_changed(self, names: Collection[str]) -> None:
        """Close all gates if one of GATE_OPTIONS has changed."""
        if not GATE_OPTIONS.isdisjoint(names):
            self.close_all()

    def close(self, topic: str) -> None:
        """Close the topic's gates."""
        for table in self._tables.values():
            gate = table.pop(topic.encode("utf-8", "replace"), None)
            if gate is not None:
                self._count(topic, gate)

    def close_all(self) -> None:
        """Close all gates."""
        for table in self._tables.values():
            for key, gate in table.items():
                self._count(key.decode(), gate)
            table.clear()

    # -- figures
    def _count(self, topic: str, gate: PartitionGate) -> None:
        if gate.puts:
            puts, size = self._counted.get(topic, (0, 0))
            self._counted[topic] = puts + gate.puts, size + gate.put_bytes
            gate.puts = gate.put_bytes = 0

    def counts(self) -> Iterator[tuple[str, int, int]]:
        """Return topic, puts and bytes of all fast-path puts since the last call."""
        for table in self._tables.values():
            for key, gate in table.items():
                self._count(key.decode(), gate)
        counted, self._counted = self._counted, {}
        for topic, (puts, size) in counted.items():
            yield topic, puts, size
