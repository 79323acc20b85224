"""Pulls: who may read what, what they get, and who waits.

The checks of RocketMQ 4.9, in its order, depend on nothing but group, topic and filter, so their outcome is kept as a
`Verdict` until a topic, a group or a subscription changes: a pull costs one look-up and the read itself.

Two answers differ from RocketMQ's on purpose. A subscription version newer than the heartbeat's is not refused (25) when
the filter text is the same, or unknown: then the answer is unfiltered and the client, which tests tags anyway, loses
nothing (5.x clients race their own heartbeats and would be refused for 30 s). And a held pull whose filter fits none of
the new messages goes on waiting from where it looked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from metaq.broker.groups import Groups
from metaq.broker.hold import HeldPull, HeldPulls
from metaq.broker.members import Channel, Members
from metaq.broker.offsets import Offsets
from metaq.broker.stats import Stats
from metaq.broker.topics import Topics, check_client_topic
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model import GroupConfig, MessageModel, Perm
from metaq.model.subscription import subscribe
from metaq.options import MIB, BrokerOptions, StoreOptions
from metaq.store.message_store import MessageStore
from metaq.store.pull import Pulled, PullStatus
from metaq.wire.codes import ResponseCode
from metaq.wire.headers import PullHeader

LIFTED_BYTES_MAX = 8 * MIB
"""The most that one pull returns, whatever its `maxMsgBytes` (docs/formats/extensions.md)."""
LIFTED_COUNT_MAX = 65_535
REPAIR_SECONDS = 1.0
"""A pull of messages that the store is about to find again waits no longer: no message announces them."""
HOLD_SECONDS_MAX = 600.0
"""Who asks to be held for longer is answered after this."""
LOOKS_PER_WAKE = 8
"""More that the filter refuses than these looks pass over is answered with how far they came; the client asks on."""
VERDICTS_MAX = 100_000
SUBSCRIPTION_BYTES_MAX = 64 * 1024
"""Of a filter that a request brings: held pulls keep what it parses to."""
CACHED_SUBSCRIPTION_BYTES_MAX = 1024

CODE_OF = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.COLD: ResponseCode.SUCCESS,
}
"""Look-up status → response code; an empty queue depends on the offset asked for."""


class Verdict(NamedTuple):
    """What the checks found for one group, topic and filter."""

    group: GroupConfig
    topic: str
    queues: int
    tag_hashes: frozenset[int] | None
    """None takes all."""
    expression: str
    version: int
    """Of the heartbeat's subscription; a request that brings its own filter has none to compare."""


@dataclass(slots=True)
class Pull:
    """One pull under way."""

    channel: Channel
    verdict: Verdict
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    tag_hashes: frozenset[int] | None
    hold_ms: int
    """0: answer at once."""
    reply_to: Any
    """The door's own: how to answer."""


class PullAnswer(NamedTuple):
    """What to tell the client: the four offsets are in every answer."""

    code: int
    status: PullStatus
    pulled: Pulled
    next_offset: int
    suggest_broker_id: int


class PullService:
    """Answers pulls (11, 361) and keeps those that wait."""

    def __init__(
        self,
        options: BrokerOptions,
        store_options: StoreOptions,
        clock: Clock,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        members: Members,
        offsets: Offsets,
        hold: HeldPulls,
        stats: Stats,
    ) -> None:
        self._options, self._store_options, self._clock = options, store_options, clock
        self._store, self._topics, self._groups, self._members = store, topics, groups, members
        self._offsets, self._hold, self._stats = offsets, hold, stats
        self._verdicts: dict[tuple[str | bytes | None, ...], Verdict] = {}
        self._seen_changes = (-1, -1, -1)

    # -- who may
    def verdict(
        self, group: bytes, topic: bytes, subscription: bytes | None, expression_type: bytes | None, *, brought: bool
    ) -> Verdict:
        """The checks' outcome, from memory if nothing changed. `brought`: the request's own filter counts.

        Raises Refused with the code of the first check that fails.
        """
        changes = (self._topics.changes, self._groups.changes, self._members.changes)
        if changes != self._seen_changes or len(self._verdicts) > VERDICTS_MAX:
            self._verdicts.clear()
            self._seen_changes = changes
        key = (group, topic, subscription, expression_type, b"4" if brought else b"")
        known = self._verdicts.get(key)
        if known is None:
            if subscription is not None and len(subscription) > SUBSCRIPTION_BYTES_MAX:
                raise Refused(
                    Reason.BAD_FILTER,
                    f"a subscription of {len(subscription)} bytes, the limit is {SUBSCRIPTION_BYTES_MAX}",
                )
            known = self._judge(
                _text(group), _text(topic), _text(subscription or b""), _text(expression_type or b"TAG"), brought
            )
            unchanged = (self._topics.changes, self._groups.changes, self._members.changes) == self._seen_changes
            if unchanged and len(subscription or b"") <= CACHED_SUBSCRIPTION_BYTES_MAX:
                self._verdicts[key] = known
        return known

    def _judge(self, group_name: str, topic_name: str, text: str, expression_type: str, brought: bool) -> Verdict:
        if not self._options.broker_permission & Perm.READ:
            raise Refused(Reason.NO_PERMISSION, "the broker pulling message is forbidden")
        check_client_topic(topic_name)
        group = self._groups.require(group_name)
        if not group.consume_enable:
            raise Refused(Reason.NO_PERMISSION, f"subscription group no permission, {group_name}")
        topic = self._topics.require(topic_name)
        if not topic.readable:
            raise Refused(Reason.NO_PERMISSION, f"the topic[{topic_name}] pulling message is forbidden")
        if brought:
            if expression_type not in ("TAG", ""):
                raise Refused(
                    Reason.INVALID, f"The broker does not support consumer to filter message by {expression_type}"
                )
            wanted = subscribe(topic_name, text)
            return Verdict(group, topic_name, topic.read_queues, wanted.tag_hashes or None, text, 0)
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
        if not stored.takes_all and stored.expression_type not in ("TAG", ""):
            raise Refused(
                Reason.INVALID, f"The broker does not support consumer to filter message by {stored.expression_type}"
            )
        return Verdict(
            group, topic_name, topic.read_queues, stored.tag_hashes or None, stored.expression, stored.version
        )

    # -- making a pull
    def from_header(self, channel: Channel, header: PullHeader, reply_to: Any) -> Pull:
        """The pull of a decoded request. Raises Refused."""
        text, kind = header.subscription, header.expression_type
        return self.make(
            channel,
            header.group.encode("utf-8", "replace"),
            header.topic.encode("utf-8", "replace"),
            header.queue_id,
            header.queue_offset,
            header.max_messages,
            header.sys_flag,
            header.commit_offset,
            header.suspend_ms,
            None if text is None else text.encode("utf-8", "replace"),
            header.sub_version,
            None if kind is None else kind.encode("utf-8", "replace"),
            header.max_msg_bytes or 0,
            reply_to,
        )

    def make(
        self,
        channel: Channel,
        group: bytes,
        topic: bytes,
        queue_id: int,
        offset: int,
        count_max: int,
        flags: int,
        commit_offset: int,
        suspend_ms: int,
        subscription: bytes | None,
        version: int,
        expression_type: bytes | None,
        lifted_bytes: int,
        reply_to: Any,
    ) -> Pull:
        """Check a request and take its piggybacked offset. Raises Refused. `lifted_bytes` 0: the usual limits."""
        brought = flags & PullHeader.SUBSCRIPTION != 0
        verdict = self.verdict(group, topic, subscription if brought else None, expression_type, brought=brought)
        if not 0 <= queue_id < verdict.queues:
            raise Refused(
                Reason.INVALID,
                f"queueId[{queue_id}] is illegal, topic:[{verdict.topic}] topicConfig.readQueueNums:[{verdict.queues}]",
            )
        tag_hashes = verdict.tag_hashes
        if version > verdict.version and not brought:
            if subscription is not None and _text(subscription) != verdict.expression:
                raise Refused(
                    Reason.SUBSCRIPTION_OLD,
                    f"the consumer's subscription not latest: {verdict.topic} asks version {version}, the heartbeat's "
                    f"is {verdict.version}",
                )
            if subscription is None:
                tag_hashes = None
        if flags & PullHeader.COMMIT_OFFSET and commit_offset >= 0:
            self._offsets.put(verdict.group.name, verdict.topic, queue_id, commit_offset)
        if lifted_bytes > 0:
            bytes_max, count_limit = min(lifted_bytes, LIFTED_BYTES_MAX), LIFTED_COUNT_MAX
        else:
            bytes_max = self._store_options.max_transfer_bytes_on_message_in_memory
            count_limit = self._store_options.max_transfer_count_on_message_in_memory
        if not flags & PullHeader.SUSPEND or suspend_ms < 0:
            suspend_ms = 0
        elif not self._options.long_polling_enable:
            suspend_ms = self._options.short_polling_time_mills
        return Pull(
            channel, verdict, queue_id, offset, max(1, min(count_max, count_limit)), bytes_max, tag_hashes, suspend_ms,
            reply_to,
        )  # fmt: skip

    # -- reading
    def read(self, pull: Pull, offset: int) -> Pulled:
        """Look for messages from `offset` on."""
        return self._store.pull(
            pull.verdict.topic, pull.queue_id, offset, pull.count_max, pull.bytes_max, pull.tag_hashes, in_pieces=True
        )

    def first(self, pull: Pull, pulled: Pulled) -> PullAnswer | None:
        """The answer to a pull that was just read; None when it is held instead.

        An answer of status COLD is none yet: the door runs `Pulled.job` off the loop, then asks `after_cold`.
        """
        answer = self._answer(pull, pulled, pull.offset)
        if answer.code == ResponseCode.PULL_NOT_FOUND and pull.hold_ms:
            held_max = HOLD_SECONDS_MAX if pulled.status is not PullStatus.OFFSET_FOUND_NULL else REPAIR_SECONDS
            deadline = self._clock.monotonic() + min(pull.hold_ms / 1000, held_max)
            key = (pull.verdict.topic, pull.queue_id)
            if self._hold.hold(HeldPull(pull.channel, key, pull.offset, deadline, pull)):
                return None
        self._count(answer)
        return answer

    def woken(self) -> Iterator[tuple[Pull, PullAnswer | Exception]]:
        """Answers to held pulls whose queue grew, or why there is none. Call after every append."""
        for held in self._hold.ready():
            pull: Pull = held.request
            try:
                answer = self._woken(pull, held)
            except Exception as error:  # noqa: BLE001  this one is told, the others go on
                yield pull, error
            else:
                if answer is not None:
                    yield pull, answer

    def _woken(self, pull: Pull, held: HeldPull) -> PullAnswer | None:
        """The answer; None: nothing fits, and it is held again."""
        pulled = self.read(pull, held.place)
        for _ in range(LOOKS_PER_WAKE):  # one look passes over some 800 messages that the filter refuses
            if pulled.status is not PullStatus.NO_MATCHED_MESSAGE:
                break
            held.place = pulled.next_offset
            pulled = self.read(pull, held.place)
        if pulled.status is PullStatus.OFFSET_OVERFLOW_ONE and self._hold.hold(held.renewed()):
            return None
        return self._late(pull, held, pulled)

    def overdue(self) -> Iterator[tuple[Pull, PullAnswer | Exception]]:
        """Answers to held pulls whose time is up, or why there is none."""
        for held in self._hold.overdue():
            pull: Pull = held.request
            try:
                answer = self._late(pull, held, self.read(pull, held.place))
            except Exception as error:  # noqa: BLE001  this one is told, the others go on
                yield pull, error
            else:
                yield pull, answer

    def _late(self, pull: Pull, held: HeldPull, pulled: Pulled) -> PullAnswer:
        answer = self._answer(pull, pulled, held.place)
        if answer.code == ResponseCode.PULL_NOT_FOUND and held.place > pull.offset:
            # Messages came and none fitted the filter: tell how far we looked, so that the client need not ask again.
            answer = answer._replace(
                code=int(ResponseCode.PULL_RETRY_IMMEDIATELY), status=PullStatus.NO_MATCHED_MESSAGE
            )
        self._count(answer)
        return answer

    def after_cold(self, pull: Pull, pulled: Pulled) -> PullAnswer:
        """The answer after a cold read was done."""
        answer = self._answer(pull, pulled, pull.offset)
        self._count(answer)
        return answer

    def _answer(self, pull: Pull, pulled: Pulled, offset: int) -> PullAnswer:
        if pulled.status is PullStatus.FOUND:  # most of them, spared the look-up: hashing an enum is dear
            code = 0
        elif pulled.status in CODE_OF:
            code = int(CODE_OF[pulled.status])
        else:  # An empty or unknown queue: only an offset other than 0 is wrong.
            code = int(ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND)
        suggest = 0
        if self._options.slave_read_enable:
            near = not pulled.count or self._store.in_memory(pulled.last_log)
            suggest = pull.verdict.group.broker_id if near else pull.verdict.group.slow_broker_id
        return PullAnswer(code, pulled.status, pulled, pulled.next_offset, suggest)

    def _count(self, answer: PullAnswer) -> None:
        pulled = answer.pulled
        if answer.status is PullStatus.COLD:
            return
        if answer.code == 0:
            self._stats.got(pulled.count, len(pulled.body) if pulled.long is None else len(pulled.long))
        else:
            self._stats.got(0, 0)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
