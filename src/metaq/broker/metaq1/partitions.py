"""MetaQ 1.x's partitions on RocketMQ's queues: put, get and offset commands.

A put becomes an ordinary record, and a record becomes a 1.x frame when it is read, so all clients share all messages.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from msgspec import structs

from metaq.broker.channel import Channel
from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.acks import AckPolicy
from metaq.broker.log.appender import Appender
from metaq.broker.log.records import put_record
from metaq.broker.metaq1.acks import PartitionAcks
from metaq.broker.metaq1.filters import MakeFilterHelper, PartitionFilters
from metaq.broker.metaq1.ids import MessageIds
from metaq.broker.metaq1.leading import Leading
from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.metaq1.records import without_attribute
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.part import BrokerPart
from metaq.errors import ConfigError, Reason, Refused, StoreError
from metaq.model import Perm, TopicConfig
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.metaq1.pair import STATUS_TOPIC, PartitionSync
from metaq.model.metaq1.partition import (
    ANY_PARTITION,
    CHECKSUM_UNKNOWN,
    FRAME_HEADER_BYTES,
    HAS_ATTRIBUTE,
    POSITION_MAX,
    Frames,
    Got,
    Judged,
    Later,
    Moved,
    PartitionEntry,
    PartitionFigures,
    PartitionGet,
    PartitionPut,
    PartitionStored,
    Published,
)
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_partition_topic
from metaq.saved import Saving
from metaq.store.metaq1.frames import FrameReader, FrameRun, FramesRead
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.store.queues.consume_queue import ConsumeQueue
from metaq.wire.hot import crc31

log = logging.getLogger(__name__)

_GUESS: Final = 16
"""First guess of the number of messages in a get."""
_INTERNAL = (RETRY_PREFIX, DEAD_LETTER_PREFIX, STATUS_TOPIC)


class Partitions(BrokerPart):
    """The partitions of one broker. A slave hands out what its master has stored, and takes nothing."""

    leads = False

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        appender: Appender,
        acks: AckPolicy,
        bases: Bases,
        settings: Metaq1Settings,
        gatekeeper: Gatekeeper,
        make_filter_helper: MakeFilterHelper | None = None,
    ) -> None:
        self._environment, self._store, self._appender = environment, environment.store, appender
        self._topics, self._settings, self.gatekeeper = tables.topics, settings, gatekeeper
        self.filters = PartitionFilters(environment.options, environment.clock, settings, make_filter_helper)
        """Server-side filters of groups."""
        self.ids = MessageIds(environment.clock, settings.options.broker_id, environment.store.log.tail)
        self._bases, self._closed = bases, tables.closed_partitions
        self.leading = Leading(environment.store.state, settings)
        self._reader = FrameReader(environment.store.reader, settings.options.broker_id)
        self.acks = PartitionAcks(environment, acks, settings)
        self._watchers: list[Callable[[], None]] = []
        self._topics.watch(self._topic_changed)

    def open(self) -> None:
        """Create the topics that have sections in server.ini; a slave has its master's. Raises ConfigError: an illegal name."""
        self._settings.watch(self._rules_changed)
        if self._store.state.follows is None:
            self.lead()

    def lead(self) -> None:
        """Number messages from here on, and create topics. Raises as `open`."""
        self.ids.open()
        self._topics.saved.start_with(self._wanted(self._settings.rules.topics))

    # -- topics
    def _wanted(self, names: Iterable[str]) -> dict[str, TopicConfig]:
        """Return new settings of topics with sections that are missing or have too few queues.

        Raises ConfigError: illegal name.
        """
        wanted = dict[str, TopicConfig]()
        for name in names:
            count, config = self._settings.rules.settings(name).num_partitions, self._topics.saved.coming(name)
            if config is None:
                try:
                    wanted[check_partition_topic(name)] = TopicConfig(name, count, count)
                except Refused as error:
                    raise ConfigError(f"[topic={name}]: {error}") from None
            elif min(config.read_queues, config.write_queues) < count and self._is_users(name):
                # Only upwards: consumers own partitions by number, and messages in higher ones must stay readable.
                wanted[name] = structs.replace(
                    config, read_queues=max(count, config.read_queues), write_queues=max(count, config.write_queues)
                )
        return wanted

    def _rules_changed(self, names: Collection[str]) -> None:
        if self._store.state.follows is None:
            for name, config in self._wanted(self._settings.rules.topics.keys() & set(names)).items():
                self._topics.saved.change(name, config)
        self._tell()

    def _topic_changed(self, name: str) -> None:
        if self._is_published(name):
            self._tell()

    # -- putting
    def put(self, put: PartitionPut, caller: Caller) -> PartitionStored:
        """Store a message (put).

        Raises Refused: NO_PERMISSION (closed partition, or acceptPublish is off), NO_TOPIC, INVALID (no such partition),
        ILLEGAL_MESSAGE (wrong checksum, or longer than maxTransferSize), or as `Appender.put`; Saving while its topic is being
        created, or positions are computed. Nothing is stored then.
        """
        entry = self.entry(put, caller)
        try:
            return self.store(entry, len(put.body), put.born_host)
        except Saving as saving:
            if put.partition != ANY_PARTITION:
                raise
            # Repeated for the same partition: with another random one, it might have to wait again each time.
            chosen = structs.replace(put, partition=entry.queue_id)
            raise Saving(*saving.pending, then=lambda: self._put_chosen(chosen, caller)) from None

    def _put_chosen(self, put: PartitionPut, caller: Caller) -> PartitionStored:
        """Repeat a put for a chosen partition, as often as it has to wait."""
        try:
            return self.put(put, caller)
        except Saving as saving:
            raise Saving(*saving.pending, then=lambda: self._put_chosen(put, caller)) from None

    def store(
        self, entry: PartitionEntry, body_bytes: int, born_host: bytes, *, synced: bool = False
    ) -> PartitionStored:
        """Store a checked message. Args: body_bytes: of its frame. synced: see `Appender.put`. Raises as `put`."""
        positions = self._bases.touch(entry.topic, entry.queue_id)
        position = positions.max
        self._appender.closed_queues.pass_by(entry.topic, entry.queue_id)
        record = put_record(
            entry.topic,
            entry.queue_id,
            entry.body,
            entry.properties,
            flag=entry.flag,
            sys_flag=0,
            born_ms=self._environment.clock.now_ms(),
            born_host=born_host,
        )
        stored = self._appender.put([record], synced=synced)
        self.acks.stored(entry.topic, entry.queue_id, stored.log_end)
        # The message is stored, so an error here must not fail the put: the next get computes its position again.
        with contextlib.suppress(StoreError, OSError, MemoryError, Saving, Refused):
            positions.append(stored.queue_offset, FRAME_HEADER_BYTES + body_bytes)
        return PartitionStored(entry.message_id, entry.queue_id, position, stored.log_end)

    def entry(self, put: PartitionPut | PartitionSync, caller: Caller) -> PartitionEntry:
        """Check a put, and return what to store, with its id. Raises as `put`, except for the log's own reasons."""
        if isinstance(put, PartitionSync):
            return self.entry_of_master(put, caller)
        self.leading.check()  # first: no topic is made for a message that is not taken
        if put.partition in self._closed.of(put.topic):
            raise self._closed_refusal("partition", put.partition)
        config = self._taking(put.topic, caller)
        queue_id = self._queue(put, config)
        _check_checksum(put.body, put.checksum)
        # The original stores such a message, which can then never be delivered.
        if FRAME_HEADER_BYTES + len(put.body) > self._settings.options.max_transfer_size:
            raise self.too_long(put.topic, len(put.body))
        return self._entry(put.topic, queue_id, self.ids.take(), put.flag, put.body)

    def entry_of_master(self, sync: PartitionSync, caller: Caller) -> PartitionEntry:
        """Check a message from this broker's master, and return what to store. Raises as `entry`."""
        if sync.partition in self._closed.of(sync.topic):
            raise self._closed_refusal("Partition", sync.partition)
        if sync.topic == STATUS_TOPIC:
            config = self._topics.ensure(STATUS_TOPIC, 1)
        else:
            config = self._taking(sync.topic, caller)
        if not 0 <= sync.partition < config.write_queues:
            raise Refused(Reason.INVALID, f"wrong partition {sync.partition}")
        _check_checksum(sync.body, sync.checksum)
        return self._entry(sync.topic, sync.partition, sync.message_id, sync.flag, sync.body)

    def _entry(self, topic: str, partition: int, message_id: int, flag: int, frame_body: bytes) -> PartitionEntry:
        pairs, body = without_attribute(flag, frame_body)
        pairs[props.METAQ_ID] = str(message_id)
        pairs[props.CLUSTER] = self._environment.options.broker_cluster_name
        return PartitionEntry(topic, partition, message_id, flag & ~HAS_ATTRIBUTE, body, pairs)

    def admits(self, topic: str, caller: Caller) -> int | None:
        """Return the number of partitions that take the caller's puts without further checks; None: every put is checked.

        Valid until the rules, the topic or its closed partitions change.
        """
        rules, config = self._settings.rules, self._topics.get(topic)
        if (
            config is None
            or self.leading.refusal is not None
            or topic in self._topics.closing
            or not (config.writable and self._is_users(topic) and rules.accepts(topic))
            or not rules.settings(topic).accept_publish
            or self._closed.of(topic)
            or self._appender.closed_queues.has_of(topic)
        ):
            return None
        if not self.gatekeeper.allows(caller, Action.PUBLISH, topic):
            return None
        return config.write_queues

    def too_long(self, topic: str, body_bytes: int) -> Refused:
        """Return the refusal of a body that exceeds maxTransferSize."""
        size, limit = FRAME_HEADER_BYTES + body_bytes, self._settings.options.max_transfer_size
        return Refused(
            Reason.ILLEGAL_MESSAGE,
            f"a message of {size} bytes for topic {topic}, of which {FRAME_HEADER_BYTES} are its header: no get could hand "
            f"it out, the limit is {limit} (maxTransferSize)",
        )

    def _taking(self, name: str, caller: Caller) -> TopicConfig:
        rules = self._settings.rules
        if not rules.accepts(name) or not self._is_users(name):
            raise Refused(Reason.NO_TOPIC, f"The server do not accept topic {name}")
        settings = rules.settings(name)
        if not settings.accept_publish:
            raise Refused(Reason.NO_PERMISSION, f"the topic {name} takes no messages here: its acceptPublish is false")
        self.gatekeeper.check(caller, Action.PUBLISH, name)
        config = self._topics.taking(name)
        if config is None:
            check_partition_topic(name)
            # Admitted by a wildcard section, or by its own, or, without any sections, by autoCreateTopicEnable.
            if rules.sections and name not in rules.topics:
                config = self._topics.admit(name, settings.num_partitions, caller.client)
            elif rules.sections:
                config = self._topics.ensure(name, settings.num_partitions)
            else:
                config = self._topics.auto_create(
                    name, AUTO_CREATE_TOPIC, settings.num_partitions, client=caller.client
                )
        if not config.writable:
            raise Refused(Reason.NO_PERMISSION, f"the topic {name} is not writable: its perm is {config.perm}")
        return config

    def _is_users(self, name: str) -> bool:
        return not (self._topics.is_system(name) or name.startswith(_INTERNAL))

    def is_visible(self, name: str) -> bool:
        """Return whether clients of MetaQ 1.x may see a topic: it is none of the broker's own."""
        return self._is_users(name)

    def _queue(self, put: PartitionPut, config: TopicConfig) -> int:
        if put.partition != ANY_PARTITION:
            if not 0 <= put.partition < config.write_queues:
                raise Refused(Reason.INVALID, f"wrong partition {put.partition}")
            return put.partition
        return self._closed.any_open(put.topic, config.write_queues, self._environment.clock)

    def _closed_refusal(self, word: str, partition: int) -> Refused:
        """Return the original's refusal, whose `word` is a capital in a get and not in a put."""
        return Refused(Reason.NO_PERMISSION, f"{word}[{self._settings.options.broker_id}-{partition}] has been closed")

    # -- getting
    def get(self, get: PartitionGet, channel: Channel) -> Judged:
        """Return frames from a position on (get), or the position to continue at (301).

        Raises Refused: NO_PERMISSION (closed partition, acceptSubscribe, perm), NOT_FOUND (nothing there yet), INVALID (maxSize);
        Saving while positions are being computed.
        """
        if get.partition in self._closed.of(get.topic):
            raise self._closed_refusal("Partition", get.partition)
        self.gatekeeper.check_consumer(channel.caller, get.group, (get.topic,))
        if not self._settings.rules.settings(get.topic).accept_subscribe:
            raise Refused(
                Reason.NO_PERMISSION, f"the topic {get.topic} hands out no messages here: its acceptSubscribe is false"
            )
        config = self._topics.get(get.topic)
        if not self._environment.options.broker_permission & Perm.READ or (config is not None and not config.readable):
            raise Refused(
                Reason.NO_PERMISSION, f"reading the topic {get.topic} is forbidden: its perm, or the broker's"
            )
        # Decided in the order of the original, whose clients react to the code: 403, 404, 400, 301.
        positions = self._existing(get.topic, get.partition)
        if get.size_max <= 0:
            raise Refused(Reason.INVALID, f"Bad request,invalid max size:{get.size_max}")
        # Most groups have no filter: frames go out as they are.
        name = self.filters.name_of(get.topic, get.group)
        if not name:
            return self._found(get, positions)
        found = self._found(get, positions)
        whole = isinstance(found, Moved) or positions.at(get.position)[1] == get.position

        def read_on(position: int) -> Got | Later:
            return self._found(structs.replace(get, position=position), self._existing(get.topic, get.partition))

        return self.filters.sift(self.filters.begin(get, name, channel, read_on), found, whole=whole)

    def _found(self, get: PartitionGet, positions: QueuePositions) -> Got | Later:
        high, position = self._end(positions), get.position
        if positions.is_before(position):
            # The checks of the original's get, in its order.
            return Moved(positions.min)
        if position >= high:
            # Long.MAX_VALUE asks for the end; with updateConsumerOffsets, any position beyond the end is moved there. What is there
            # and may not be read yet lies before the end. A slave may only be late: who has read on at the master is not sent back.
            if position > positions.max and (
                position == POSITION_MAX
                or (self.leading.refusal is None and self._settings.options.update_consumer_offsets)
            ):
                return Moved(high)
            raise _nothing_at(position)
        return self._read(get, positions, high)

    def _end(self, positions: QueuePositions) -> int:
        """Return the position where a partition ends for clients (`LogTail.read_end`). Raises Saving, Refused."""
        queue = self._store.reader.existing_queue(positions.topic, positions.queue_id)
        read_end = self._store.log.tail.read_end
        if queue is None or queue.tail.log_end <= read_end:
            return positions.max
        try:
            return positions.position(queue.readable_end(read_end))
        except ValueError:  # the positions begin behind it
            return positions.min

    def _read(self, get: PartitionGet, positions: QueuePositions, high: int) -> Got | Later:
        """Read frames from a position on, up to the end, a misfit, or the size asked for."""
        position = get.position
        first, start = positions.at(position)
        if first in positions.misfits:
            # A message that has no 1.x frame (too large): clients are moved behind it.
            return Moved(positions.position(first + 1))
        if following := [misfit for misfit in positions.misfits if misfit > first]:
            high = positions.position(min(following))
        size = min(get.size_max, self._settings.options.max_transfer_size)
        if positions.position(first + 1) - position > size:
            # A frame above maxTransferSize, of a RocketMQ client's message: who asks for enough gets all of it at once. A 1.x
            # client that cannot parse a frame doubles its maxSize.
            size = min(get.size_max, positions.position(first + 1) - position)
        size = min(size, high - position)
        count = _messages(positions, first, start, position + size)
        run = FrameRun(get.topic, get.partition, first, count, position - start, size)
        found = self._reader.read(run)
        if isinstance(found, FramesRead):
            return self._got(get, positions, first, found)
        return Later(found, lambda read: self._got_later(get, positions, first, read))

    def _got_later(self, get: PartitionGet, positions: QueuePositions, first: int, found: FramesRead) -> Got:
        try:
            return self._got(get, positions, first, found)
        except Saving:  # the positions were dropped during the cold read: after 404 the client asks again
            raise _nothing_at(get.position) from None

    def _got(self, get: PartitionGet, positions: QueuePositions, first: int, found: FramesRead) -> Got:
        # Positions are computed from sizes alone; a mismatch with the frames read would shift all later positions.
        if found.count and not positions.confirm(first, found.count, found.frame_bytes):
            log.error(
                "the messages of partition %d of topic %s from position %d on have other frames than were counted",
                get.partition, get.topic, get.position,
            )  # fmt: skip
            raise Refused(
                Reason.UNAVAILABLE, f"the positions of topic {get.topic} in partition {get.partition} are looked into"
            )
        if found.queue_offset > first:
            return Moved(positions.position(found.queue_offset))
        if not found.body:
            raise _nothing_at(get.position)
        return Frames(found.body)

    def offset(self, topic: str, partition: int, position: int, caller: Caller) -> int:
        """Return the start of the frame that holds a position (offset); the partition's start or end, if it lies outside.

        The original returns the start of the segment file. Raises Refused NOT_FOUND: the partition never held a message; Saving,
        as `get`.
        """
        self.gatekeeper.check(caller, Action.SUBSCRIBE, topic)
        positions = self._existing(topic, partition)
        end = self._end(positions)
        if position >= end:
            return end
        return positions.at(position).position

    def _existing(self, topic: str, partition: int) -> QueuePositions:
        queue = self._store.reader.existing_queue(topic, partition) if self._topics.get(topic) else None
        if queue is not None and self._is_users(topic):
            if queue.max_offset > 0:
                return self._bases.touch(topic, partition)
            known = self._bases.find(topic, partition)
            if known is not None and known.max > 0:  # retention has deleted all its messages
                return known
        raise Refused(Reason.NOT_FOUND, f"The topic `{topic}` in partition `{partition}` is not exists")

    # -- administration
    def close_partitions(self, topic: str, start: int, end: int) -> None:
        """Close partitions `start` to `end`, inclusive, until `open_partitions` or a restart. Missing ones are ignored.

        Raises Refused: there is no such topic, or none of these partitions.
        """
        count = _queues(self._topics.require(topic))
        numbers = range(max(start, 0), min(end, count - 1) + 1)
        if not numbers or not self._is_users(topic):
            raise Refused(Reason.INVALID, f"the topic {topic} has partitions 0 to {count - 1}, not {start} to {end}")
        self._closed.close(topic, numbers)

    def open_partitions(self, topic: str) -> None:
        """Open all partitions of a topic. Raises Refused NO_TOPIC."""
        self._topics.require(topic)
        self._closed.open(topic)

    def published(self) -> dict[str, Published]:
        """Return the topics that 1.x clients may use, for ZooKeeper and statistics."""
        return {
            name: self._published(config) for name, config in self._topics.table.items() if self._is_published(name)
        }

    def names(self) -> list[str]:
        """Return the names of all topics of the broker, of which `published_topic` knows some."""
        return list(self._topics.table)

    def published_topic(self, name: str) -> Published | None:
        """Return one of `published`; None: there is none of this name."""
        config = self._topics.get(name)
        return self._published(config) if config is not None and self._is_published(name) else None

    def _is_published(self, name: str) -> bool:
        # A slave has whatever topics its master has.
        return self._is_users(name) and (self._settings.follows is not None or self._settings.rules.accepts(name))

    def _published(self, config: TopicConfig) -> Published:
        settings = self._settings.rules.settings(config.name)
        draining = self._environment.options.draining
        publish = settings.accept_publish and config.writable and not draining
        subscribe = settings.accept_subscribe and config.readable
        return Published(_queues(config), publish, subscribe)

    def watch(self, changed: Callable[[], None]) -> None:
        """Register a callback for changes of `published`. It must not raise."""
        self._watchers.append(changed)

    def _tell(self) -> None:
        for changed in self._watchers:
            changed()

    def messages(self, topic: str) -> int:
        """Return the number of messages in a topic."""
        config = self._topics.get(topic)
        queues = (
            self._store.reader.existing_queue(topic, number) for number in range(_queues(config) if config else 0)
        )
        return sum(queue.max_offset - queue.min_offset for queue in queues if queue is not None)

    def figures(self, topic: str) -> Iterator[PartitionFigures]:
        """Return figures of each partition of a topic that holds or held messages. Starts no computation of positions."""
        config = self._topics.get(topic)
        for partition in range(_queues(config)) if config else ():
            queue = self._store.reader.existing_queue(topic, partition)
            if queue is not None and queue.max_offset:
                yield PartitionFigures(topic, partition, queue.max_offset - queue.min_offset, *self._bounds(queue))

    def _bounds(self, queue: ConsumeQueue) -> tuple[int, int] | tuple[None, None]:
        known = self._bases.find(queue.topic, queue.queue_id)
        if known is None or not known.touched:
            return None, None
        try:
            return known.min, known.max
        except (Saving, Refused):
            return None, None


def _check_checksum(body: bytes, checksum: int) -> None:
    # Clients before 1.4.4 send none.
    if checksum != CHECKSUM_UNKNOWN and checksum != crc31(body):
        raise Refused(
            Reason.ILLEGAL_MESSAGE, "Checksum failure,message may be corrupted when transfering on networking."
        )


def _messages(positions: QueuePositions, first: int, start: int, stop: int) -> int:
    """Return how many messages from `first` on, whose frame begins at `start`, reach to the position `stop`, or a few more.

    Interpolation takes a handful of look-ups, a binary search a dozen.
    """
    count, last = _GUESS, positions.tail.next_offset
    while first + count < last and (end := positions.position(first + count)) < stop:
        count = count * 9 // 8 * (stop - start) // (end - start) + _GUESS
    return min(count, last - first)


def _nothing_at(position: int) -> Refused:
    return Refused(Reason.NOT_FOUND, f"Could not find message at position {position}")


def _queues(config: TopicConfig) -> int:
    return max(config.read_queues, config.write_queues)
