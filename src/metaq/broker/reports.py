"""What administrators ask a broker: its figures, its settings, and who consumes what how far (26, 28, 202-204, 208, 300).

Bodies keep fastjson's shapes, objects as map keys included: Java tools read no others (reference section 2.8).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from metaq.broker.delay import DelayLadder
from metaq.broker.hold import HeldPulls
from metaq.broker.lookup import Lookup
from metaq.broker.members import Member, Members
from metaq.broker.offsets import Offsets
from metaq.broker.rocketmq_settings import DEFAULTS
from metaq.broker.stats import Stats
from metaq.broker.topics import Topics
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import ClientConnection, ConsumerView, ConsumeStats, MessageQueue, QueueStats
from metaq.model.message import host_of
from metaq.options import GIB, KIB, MIB, BrokerOptions, StoreOptions
from metaq.store.message_store import MessageStore
from metaq.wire.command import VERSION
from metaq.wire.extensions import OUR_MARK

NO_POOL = "0"
"""We have no thread pools; tools parse their figures all the same."""
POOLS = ("send", "pull", "query")


class Reports:
    """Read-only views for tools."""

    def __init__(
        self,
        options: BrokerOptions,
        store_options: StoreOptions,
        clock: Clock,
        store: MessageStore,
        topics: Topics,
        members: Members,
        offsets: Offsets,
        hold: HeldPulls,
        lookup: Lookup,
        ladder: DelayLadder,
        stats: Stats,
        broker_name: str,
        store_host: bytes,
    ) -> None:
        self._options, self._store_options, self._clock, self._store = options, store_options, clock, store
        self._topics, self._members, self._offsets, self._hold = topics, members, offsets, hold
        self._lookup, self._ladder, self._stats = lookup, ladder, stats
        self._broker_name, self._store_host = broker_name, store_host
        self.unsaved: Callable[[], str] = str
        """Which configuration files could not be saved last, and why; "" if all could."""

    def runtime(self) -> dict[str, str]:
        """Request 28: name → text. `brokerVersionDesc` says which RocketMQ we answer as; METAQ says who we are."""
        stats, store, now = self._stats, self._store, self._clock.now_ms()
        age = (now - stats.started_ms) // 1000
        table = {
            "brokerVersionDesc": "V4_9_8",
            "brokerVersion": str(VERSION),
            "bootTimestamp": str(stats.started_ms),
            "startAcceptSendRequestTimeStamp": "0",
            "runtime": f"[ {age // 86400} days, {age // 3600 % 24} hours, {age // 60 % 60} minutes, {age % 60} seconds ]",
            "putTps": _three(stats.rates("puts")),
            "getTransferedTps": _three(stats.rates("got")),
            "getFoundTps": _three(stats.rates("get_hits")),
            "getMissTps": _three(stats.rates("get_misses")),
            "getTotalTps": _three(
                tuple(map(sum, zip(stats.rates("get_hits"), stats.rates("get_misses"), strict=True)))
            ),
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(stats.put_messages),
            "msgGetTotalYesterdayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": str(stats.got_messages),
            "putMessageTimesTotal": str(stats.put_messages),
            "putMessageFailedTimes": str(stats.put_failures),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": f"{stats.put_bytes / max(1, stats.put_messages):.1f}",
            "putMessageEntireTimeMax": "0",
            "getMessageEntireTimeMax": "0",
            "putMessageDistributeTime": "",
            "pageCacheLockTimeMills": "0",
            "dispatchBehindBytes": "0",
            "dispatchMaxBuffer": "0",
            "commitLogMinOffset": str(store.min_log),
            "commitLogMaxOffset": str(store.log_end),
            "earliestMessageTimeStamp": str(store.earliest_ms),
            "remainHowManyDataToFlush": _size(store.log_end - store.flushed),
            "remainTransientStoreBufferNumbs": str(2**31 - 1),
            "EndTransactionQueueSize": NO_POOL,
            "EndTransactionThreadPoolQueueCapacity": NO_POOL,
            "commitLogDiskRatio": f"{store.disk_ratio:.4f}",
            "consumeQueueDiskRatio": f"{store.disk_ratio:.4f}",
            "heldPulls": str(len(self._hold)),
            "unsavedFiles": self.unsaved(),
            "metaqTrouble": store.trouble,
            **OUR_MARK,
        }
        for pool in POOLS:
            table |= {
                f"{pool}ThreadPoolQueueSize": NO_POOL,
                f"{pool}ThreadPoolQueueCapacity": NO_POOL,
                f"{pool}ThreadPoolQueueHeadWaitTimeMills": NO_POOL,
            }
        for level, (delivered, end) in self._ladder.progress().items():
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
        return table

    def configuration(self) -> str:
        """Request 26: `key=value` lines: all our options, and all that a RocketMQ tells, under its names."""
        host, port = host_of(self._store_host)
        facts = {
            "brokerName": self._broker_name,
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "checkCRCOnRecover": str(self._store_options.check_crc_on_recover).lower(),
            "clientCallbackExecutorThreads": str(os.cpu_count() or 1),  # tools take it for the number of cores
            "storePathRootDir": str(self._store.folder.root),
        }
        table = DEFAULTS | self._options.properties() | self._store_options.properties() | facts
        return "".join(f"{key}={value}\n" for key, value in sorted(table.items()))

    def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """Request 202. Raises Refused NO_TOPIC."""
        config = self._topics.require(topic)
        table = {}
        for queue_id in range(max(config.read_queues, config.write_queues)):
            low, high = self._lookup.min_offset(topic, queue_id), self._lookup.max_offset(topic, queue_id)
            last = self._store.store_time(topic, queue_id, high - 1) if high > low else 0
            table[self._queue(topic, queue_id)] = QueueStats(low, high, max(0, last))
        return table

    def consume_stats(self, group: str, topic: str | None) -> dict[MessageQueue, ConsumeStats]:
        """Request 208: all topics that the group has positions in, or one."""
        table = {}
        for name in [topic] if topic else self._offsets.topics_of(group):
            config = self._topics.get(name)
            for queue_id in range(max(config.read_queues, config.write_queues) if config else 0):
                end = self._lookup.max_offset(name, queue_id)
                at = max(0, self._offsets.get(group, name, queue_id) or 0)
                last = self._store.store_time(name, queue_id, at - 1) if 0 < at <= end else 0
                table[self._queue(name, queue_id)] = ConsumeStats(end, at, max(0, last))
        return table

    def consumer(self, group: str) -> tuple[ConsumerView, list[ClientConnection]]:
        """Request 203. Raises Refused OFFLINE."""
        online = self._members.consumers.get(group)
        if online is None:
            raise Refused(Reason.OFFLINE, f"the consumer group[{group}] not online")
        differs = online.differs()
        return online.view(), [_connection(member, differs=differs) for member in online.members.values()]

    def producers(self, group: str) -> list[ClientConnection]:
        """Request 204. Raises Refused if no producer of the group is connected."""
        members = self._members.producers.get(group)
        if not members:
            raise Refused(Reason.INVALID, f"the producer group[{group}] not exist")
        return [_connection(member) for member in members.values()]

    def groups_of(self, topic: str) -> list[str]:
        """Request 300: groups that subscribe to the topic now, or have positions in it."""
        return sorted({*self._members.subscribers(topic), *self._offsets.groups_of(topic)})

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)


def _connection(member: Member, *, differs: bool = False) -> ClientConnection:
    """`differs`: tell what it wants, for the members of its group want different things."""
    wants = member.wants if differs else None
    return ClientConnection(member.client_id, member.channel.remote, member.language, member.version, wants)


def _three(rates: tuple[float, ...]) -> str:
    return " ".join(f"{rate:.6f}" for rate in rates)


def _size(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
