"""Holding what a broker serves, and what its files hold, against the ledger."""

from __future__ import annotations

from metaq.errors import RemoteProtocolError
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.store.reads.pull import ReadStatus
from metaq.wire.record import decode_record
from tests.crash.simulation.bare import BareRecord, read_log, read_units
from tests.crash.simulation.ledger import Broken, Key, short
from tests.crash.simulation.life import Life


class Checks:
    """Looks at the store through its pulls, and at its files with a reader of their own."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def everything(self) -> None:
        """Hold everything against the ledger, right after a start."""
        ledger, store = self._life.ledger, self._life.store
        ledger.in_flight += [*ledger.delayed, *ledger.of_transactions()]
        found = read_log(self._life.disk.root, store.log.min, store.log.end)
        self._life.report.lost += ledger.hold_against(found, store.log.min, power_was_cut=self._life.power_was_cut)
        ledger.log_end, ledger.log_min = store.log.end, max(ledger.log_min, store.log.min)
        ledger.durable_end = store.state.flushed
        self._life.power_was_cut = False
        wanted = ledger.wanted()
        self._settle(wanted)
        wanted = ledger.wanted()
        self.queues(wanted)
        for (topic, queue_id), records in wanted.items():
            units = read_units(self._life.disk.root, topic, queue_id)
            for record in records:
                if units.get(record.queue_offset) != (record.log_offset, record.size):
                    raise Broken(f"the unit of {short(record)} is {units.get(record.queue_offset)}")
                key = ledger.keys.get(record.body)
                if key and topic != SCHEDULE_TOPIC:
                    found_bodies = [decode_record(data).body for data in store.reader.query(topic, key, 32, 0, 1 << 60)]
                    if record.body not in found_bodies:
                        raise Broken(f"{short(record)} is not found under its key {key}")
        self._look_at_tables()

    def _settle(self, wanted: dict[Key, list[BareRecord]]) -> None:
        """A deletion that was interrupted has happened, or not: the topic tells, also by what nobody expects any more."""
        keys = sorted({*wanted, *self._life.store.reader.queues()})
        for topic, place in sorted(self._life.ledger.limbo.items()):
            # With nothing to serve only the mark tells: what retention has taken is not deleted, and a slave may have it still.
            marked = self._life.broker.deletions.generation(topic) == place or any(
                wanted.get(key) for key in keys if key[0] == topic
            )
            if marked and not any(self._served(key) for key in keys if key[0] == topic):
                self._life.ledger.deleted_at[topic] = place
                for key in [key for key in self._life.ledger.positions if key[1] == topic]:
                    self._life.ledger.positions[key].add(None)
        self._life.ledger.limbo.clear()

    def queues(self, wanted: dict[Key, list[BareRecord]]) -> None:
        keys = set(wanted) | {key for key, queue in self._life.store.reader.queues().items() if queue.max_offset}
        for key in sorted(keys):
            if key[0] in self._life.ledger.limbo:
                continue
            expected = [(record.queue_offset, record.body) for record in wanted.get(key, [])]
            given_up = self._life.ledger.given_up(key).difference(expected)  # a queue may have begun anew since
            served = [found for found in self._served(key) if found not in given_up]
            if served != expected:
                raise Broken(f"{key[0]}:{key[1]} serves {_shown(served)} in place of {_shown(expected)}")

    def _served(self, key: Key) -> list[tuple[int, bytes]]:
        """(queue offset, body) of all that pulls give from a queue."""
        store, found = self._life.store, list[tuple[int, bytes]]()
        queue = store.reader.existing_queue(*key)
        offset = queue.min_offset if queue else 0
        while True:
            pulled = store.reader.pull(*key, offset, 32)
            if pulled.status is ReadStatus.COLD and pulled.job:
                pulled = pulled.job()
            place = 0
            while place < len(pulled.body):
                try:
                    message = decode_record(pulled.body, place)
                except RemoteProtocolError as error:
                    raise Broken(f"{key[0]}:{key[1]} serves from {offset} on what is no record: {error}") from error
                place += int.from_bytes(pulled.body[place : place + 4], "big")
                if (message.topic, message.queue_id) != key:
                    raise Broken(f"{key[0]}:{key[1]} serves a message of {message.topic}:{message.queue_id}")
                found.append((message.queue_offset, message.body))
            if pulled.next_offset <= offset:
                return found
            offset = pulled.next_offset

    def _look_at_tables(self) -> None:
        broker, ledger = self._life.broker, self._life.ledger
        for name, wanted in ledger.topics.items():
            there = broker.topics.get(name) is not None
            if wanted is not None and there is not wanted:
                raise Broken(
                    f"the topic {name} is {'there' if there else 'gone'}, though that was acknowledged otherwise"
                )
            ledger.topics[name] = there
        for name, wanted in ledger.groups.items():
            there = broker.groups.get(name) is not None
            if wanted is not None and there is not wanted:
                raise Broken(
                    f"the group {name} is {'there' if there else 'gone'}, though that was acknowledged otherwise"
                )
            ledger.groups[name] = there
        for place, allowed in ledger.positions.items():
            position = broker.offsets.get(*place)
            if position not in allowed:
                raise Broken(f"the position of {place} is {position}, of {allowed}")
            ledger.positions[place] = {position}

    def deliver_all(self) -> None:
        """What is owed comes: every delayed message that was stored, at least once."""
        self._life.tell("deliver all that waits")
        for _ in range(3):
            self._life.clock.advance(20)
            waiting = [*self._life.ledger.delayed, *self._life.ledger.of_transactions()]
            self._life.broker.tick()
            self._life.absorb(waiting)
        stored = {
            record.body
            for record in self._life.ledger.log
            if record.topic == SCHEDULE_TOPIC and record.log_offset >= self._life.ledger.log_min
        }
        for body, (topic, queue_id) in self._life.ledger.delayed.items():
            copies = [record for record in self._life.ledger.log if record.body == body and record.topic == topic]
            if body not in stored or topic in self._life.ledger.deleted_at:
                continue
            if not copies:
                raise Broken(f"the delayed message {body[:12]!r} never came to {topic}:{queue_id}")
            if len(copies) > 1 + self._life.report.cuts:
                raise Broken(f"the delayed message {body[:12]!r} came {len(copies)} times to {topic}:{queue_id}")
        self.queues(self._life.ledger.wanted())


def _shown(served: list[tuple[int, bytes]]) -> str:
    return str([(offset, body[:8]) for offset, body in served])
