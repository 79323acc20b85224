"""Samples taken from the brokers every `sampleSeconds`: ends of queues, progress of groups, and brokers' counters."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from metaq.client.conversation.administration import GetRuntime
from metaq.client.conversation.groups import GetConsumeStats, GetGroups, GetMetaq1Groups
from metaq.clock import Clock
from metaq.errors import MetaqError
from metaq.model.queue import MessageQueue
from metaq.pipelines.metrics.state import BrokerSample, ClusterSample, GroupSample
from metaq.spark.cluster.client import ClusterClient

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

COUNTERS: Final = {
    "put_messages": "msgPutTotalTodayNow",
    "put_bytes": "putMessageSizeTotal",
    "got_messages": "msgGetTotalTodayNow",
}
"""Column → its key in RocketMQ's answer to GET_BROKER_RUNTIME_INFO."""
_TOOLS: Final = ("TOOLS_CONSUMER", "metaq-spark")
"""Groups of tools, which have no progress and so no lag."""


class Sampler:
    """Takes samples. A broker that does not answer is left out, which is logged once until it answers. Not thread-safe."""

    def __init__(
        self, client: ClusterClient, topics: Sequence[str], trace_topic: str, groups: Sequence[str], clock: Clock
    ) -> None:
        """
        Args:
            trace_topic: empty: none.
            groups: empty: all that the brokers know.
        """
        self._client, self._clock = client, clock
        self._topics, self._trace_topic, self._groups = topics, trace_topic, groups
        self._last: dict[tuple[str, str, str], tuple[GroupSample, int]] = {}
        """Topic, group and broker → the last progress that the broker told, and when, ms since 1970."""
        self._away: set[str] = set()
        self._silent: set[str] = set()
        """Brokers that did not answer in this sample, and are not asked again in it."""
        self._of_metaq1: dict[str, dict[str, Mapping[MessageQueue, int]]] = {}
        """Broker → group of MetaQ 1.x → its progress there, in messages: of this sample."""

    def sample(self) -> ClusterSample:
        """Take a sample. Raises MetaqError: the name servers do not answer."""
        self._silent.clear()
        self._of_metaq1.clear()
        masters = self._client.masters()
        # Before the ends are asked for: messages stored later must not count as seen.
        now_ms = self._clock.now_ms()
        ends: dict[MessageQueue, int] = {}
        groups: list[GroupSample] = []
        # The trace topic too: by its ends the windows of deliveries close.
        for topic in [*self._topics, *filter(None, [self._trace_topic])]:
            queues = self._asked(f"topic {topic}", functools.partial(self._client.queues, [topic])) or []
            for broker, some in itertools.groupby(sorted(queues), lambda queue: queue.broker):
                if broker not in masters:
                    continue
                mine = list(some)
                found = self._asked(f"broker {broker}", functools.partial(self._client.ends, mine))
                if found is None:
                    continue
                ends |= found
                if topic != self._trace_topic:
                    groups += self._of_groups(topic, broker, masters[broker], found)
        groups += self._carried(groups, masters, now_ms)
        brokers = [sample for name, address in sorted(masters.items()) if (sample := self._broker(name, address))]
        return ClusterSample(now_ms, ends, groups, brokers)

    def _carried(self, found: Sequence[GroupSample], masters: Mapping[str, str], now_ms: int) -> list[GroupSample]:
        """Return the last progress of groups at brokers that are away: what waits there has not been consumed.

        Without it a lag would fall, and its alerts end, just because a broker is away.
        """
        before, self._last = self._last, {(one.topic, one.group, one.broker): (one, now_ms) for one in found}
        carried = []
        for key, (one, told_ms) in before.items():
            silent = {f"topic {one.topic}", f"broker {one.broker}"} & self._silent
            if key not in self._last and (silent or one.broker not in masters):
                self._last[key] = one, told_ms
                older = max(0, now_ms - told_ms) / 1000 if one.lag_messages else 0.0
                carried.append(one._replace(lag_seconds=one.lag_seconds + older))
        return carried

    def close(self) -> None:
        self._client.close()

    def _of_groups(
        self, topic: str, broker: str, address: str, ends: Mapping[MessageQueue, int]
    ) -> Iterable[GroupSample]:
        names = self._groups or self._asked(
            f"broker {broker}", lambda: self._client.link(address).ask([GetGroups(topic)])[0]
        )
        told = set[str]()
        for group in names or ():
            if group not in _TOOLS:
                found = self._asked(f"broker {broker}", functools.partial(self._group, topic, group, broker, ends))
                if found is not None:
                    told.add(group)
                    yield found
        for group, progress in self._metaq1(broker, address).items():
            here = {queue: progress[queue] for queue in ends if queue in progress}
            if here and group not in told:
                lag = self._asked(f"broker {broker}", functools.partial(self._lag, topic, group, broker, here, ends))
                if lag is not None:
                    yield lag

    def _metaq1(self, broker: str, address: str) -> Mapping[str, Mapping[MessageQueue, int]]:
        """Return the progress of groups of MetaQ 1.x at a broker, asked once in a sample; at a RocketMQ there are none."""
        if broker not in self._of_metaq1:
            found = self._of_metaq1[broker] = {}
            whom, link = f"broker {broker}", self._client.link
            names = self._asked(whom, lambda: link(address).ask([GetMetaq1Groups()])[0])
            for group in names or ():
                if not self._groups or group in self._groups:
                    stats = self._asked(whom, functools.partial(self._stats, group, address))
                    if stats is not None:
                        found[group] = stats
        return self._of_metaq1[broker]

    def _stats(self, group: str, address: str) -> Mapping[MessageQueue, int]:
        stats, _ = self._client.link(address).ask([GetConsumeStats(group)])[0]
        return {queue: one.consumer_offset for queue, one in stats.items()}

    def _group(self, topic: str, group: str, broker: str, ends: Mapping[MessageQueue, int]) -> GroupSample | None:
        progress = self._client.progress(group, ends)
        if all(offset is None for offset in progress.values()):
            return None  # The group has consumed nothing of this topic.
        unread = [queue for queue, offset in progress.items() if offset is None]
        starts = self._client.starts(unread) if unread else {}
        positions = {queue: starts[queue] if offset is None else offset for queue, offset in progress.items()}
        return self._lag(topic, group, broker, positions, ends)

    def _lag(
        self,
        topic: str,
        group: str,
        broker: str,
        positions: Mapping[MessageQueue, int],
        ends: Mapping[MessageQueue, int],
    ) -> GroupSample:
        behind = {queue: offset for queue, offset in positions.items() if offset < ends[queue]}
        waiting = [ms for ms in self._client.store_times(behind).values() if ms is not None] if behind else []
        seconds = max(0, self._clock.now_ms() - min(waiting)) / 1000 if waiting else 0.0
        return GroupSample(
            topic, group, broker, {queue.queue_id: offset for queue, offset in positions.items()},
            sum(ends[queue] - offset for queue, offset in behind.items()), seconds,
        )  # fmt: skip

    def _broker(self, name: str, address: str) -> BrokerSample | None:
        runtime = self._asked(f"broker {name}", lambda: self._client.link(address).ask([GetRuntime()])[0])
        if runtime is None:
            return None
        counters = {column: _whole(runtime.get(key, "")) for column, key in COUNTERS.items()}
        return BrokerSample(name, _whole(runtime.get("bootTimestamp", "")), counters)

    def _asked(self, whom: str, ask: Callable[[], T]) -> T | None:
        if whom in self._silent:
            return None
        try:
            found = ask()
        except MetaqError as fault:
            self._silent.add(whom)
            if whom not in self._away:
                self._away.add(whom)
                _LOG.warning("metrics: %s is not sampled until it answers again: %s", whom, fault)
            return None
        if whom in self._away:
            self._away.discard(whom)
            _LOG.info("metrics: %s is sampled again", whom)
        return found


def _whole(text: Any) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
