"""Timeline of one message from clients' traces: its send, its transaction, its deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from metaq.admin.brokers import masters
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.groups import GetConnections, GetConsumeStats
from metaq.client.conversation.reading.lookups import LOOK_UP_MAX, QueryMessages, read_traces
from metaq.client.shared.core import ClientCore
from metaq.errors import ConfigError, NoRoute, NotFound
from metaq.model import StoredMessage
from metaq.model.topics.system import TRACE_TOPIC
from metaq.model.topics.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from metaq.model.trace import Begun, Handled, Kind, Record, Result, Sent, Settled

KEY_CHARS_MAX = 255
GROUPS_MAX, TOPICS_MAX = 16, 64
"""Groups, and topics, that are searched when only consumers have traced a message."""
_KINDS: dict[int, str] = {Kind.HALF: "half message sent", Kind.DELAYED: "delayed message sent"}
_RESULTS: dict[int, str] = {
    Result.SUCCESS: "ok", Result.TIMEOUT: "timed out", Result.EXCEPTION: "exception", Result.RETURNED_NULL: "returned null",
    Result.FAILED: "failed",
}  # fmt: skip


_WHO_TRACES = (
    "Clients write traces only if tracing is switched on (trace=True; in Java enableMsgTrace), about a second after the event. "
    "If they have a trace topic of their own, name it with --trace-topic"
)


class TraceNotFound(NotFound):
    """No client has traced the message."""


class TraceEvent(Struct, frozen=True, kw_only=True):
    """One event in a message's life.

    `what`: "sent", "half message sent", "delayed message sent", "stored", "committed", "rolled back", "undecided",
    "delivered". `group` of producers or consumers; `client`: address that sent the record. `cost_ms`: of the send or the
    handling; None if unknown. `result`: "ok", or the failure; "not ended" for a delivery of which only the beginning was
    traced. `attempt`: 1 for the first delivery; 0 for other events. `detail`: more, as text.
    """

    time_ms: int
    """When it happened, by the client's clock, ms since 1970."""
    what: str
    topic: str = ""
    """Topic of the message; "": the record does not tell."""
    group: str = ""
    client: str = ""
    cost_ms: int | None = None
    result: str = ""
    attempt: int = 0
    detail: str = ""


class MessageTrace(Struct, frozen=True, kw_only=True):
    """A message's timeline, in the order of time. `silent`: brokers that were not asked or did not answer, so that events may
    be missing. `unreadable`: number of records of unknown kinds. `cut`: whether a broker had more records than fit into an
    answer."""

    message_id: str
    """The id that was asked for."""
    events: tuple[TraceEvent, ...]
    """What happened, in the order of time."""
    silent: tuple[str, ...] = ()
    unreadable: int = 0
    cut: bool = False


class _Report(Struct, frozen=True):
    """A trace record, and the address that sent it."""

    record: Record
    client: str


async def trace(core: ClientCore, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> MessageTrace:
    """Return the timeline of one message. Raises TraceNotFound; ConfigError: not a message id; as requests do."""
    if not message_id or len(message_id) > KEY_CHARS_MAX or message_id.split() != [message_id] or "," in message_id:
        raise ConfigError(f"{message_id[:60]!r} is no message id: producers give 32 or 56 hex characters")
    try:
        # By key: trace messages carry the ids of the messages that they are about as keys.
        found, silent = await look_up(core, trace_topic, message_id, unique=False)
    except NoRoute:
        raise TraceNotFound(
            f"message {message_id} has no trace: the trace topic {trace_topic} does not exist. {_WHO_TRACES}"
        ) from None
    reports: list[_Report] = []
    unreadable = 0
    for read in read_traces(found):
        unreadable += read.trace.unreadable
        reports += [
            _Report(record, getattr(record, "client_host", "") or read.client)
            for record in read.trace.records
            if _is_of(record, message_id)
        ]
    stored, more_silent = await _stored(core, message_id, reports)
    events = [*_timeline(reports), *stored]
    if not events:
        raise TraceNotFound(_why_nothing(message_id, trace_topic, silent))
    return MessageTrace(
        message_id=message_id, events=tuple(sorted(events, key=_order)), silent=tuple(sorted({*silent, *more_silent})),
        unreadable=unreadable, cut=len(found) >= LOOK_UP_MAX,
    )  # fmt: skip


async def look_up(core: ClientCore, topic: str, key: str, *, unique: bool) -> tuple[list[StoredMessage], list[str]]:
    """Return messages by key from all brokers of the topic, and the brokers that could not be asked. Raises NoRoute."""
    route = await core.routes.route(topic)
    silent = [data.broker for data in route.brokers if data.any_address is None]
    asked = [data for data in route.brokers if data.any_address is not None]
    outcomes = await asyncio.gather(
        *(core.ask(data.any_address or "", QueryMessages(topic=topic, key=key, unique=unique, broker=data.broker)) for data in asked),
        return_exceptions=True,
    )  # fmt: skip
    found: list[StoredMessage] = []
    for data, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, list):
            found += outcome
        elif isinstance(outcome, FAULTS):
            silent.append(data.broker)
        else:
            raise outcome
    return found, silent


async def _stored(core: ClientCore, message_id: str, reports: Iterable[_Report]) -> tuple[list[TraceEvent], list[str]]:
    """Return the events of the message's storing, if its topic is known and it is still stored."""
    events: list[TraceEvent] = []
    silent: list[str] = []
    topics = {one.record.topic for one in reports if isinstance(one.record, Sent | Settled) and one.record.topic}
    if not topics:  # Only consumers have traced, and their records name groups, not topics.
        topics = await _topics_of(core, {one.record.group for one in reports if one.record.group})
    for topic in sorted(topics)[:TOPICS_MAX]:
        try:
            found, more = await look_up(core, topic, message_id, unique=True)
        except NoRoute:
            continue
        except FAULTS as error:
            silent.append(f"those of topic {topic} ({error})")
            continue
        silent += more
        events += [
            TraceEvent(
                time_ms=message.store_ms, what="stored", topic=message.topic, client="{}:{}".format(*message.store_host),
                result="ok", detail=f"{message.broker} queue {message.queue_id} offset {message.queue_offset}",
            )
            for message in found
        ]  # fmt: skip
    return events, silent


async def _topics_of(core: ClientCore, groups: Iterable[str]) -> set[str]:
    """Return the topics that groups subscribe to, or have progress in. Brokers that do not answer are skipped."""
    addresses = (await masters(core)).values()
    # Two requests for each and each broker: a look must not become a flood.
    names = sorted(groups)[:GROUPS_MAX]
    members = [core.ask(address, GetConnections(name)) for name in names for address in addresses]
    progress = [core.ask(address, GetConsumeStats(name)) for name in names for address in addresses]
    topics: set[str] = set()
    for online in await asyncio.gather(*members, return_exceptions=True):
        if isinstance(online, tuple):
            topics.update(online[1].subscriptions)
        elif online is not None and not isinstance(online, FAULTS):
            raise online
    for known in await asyncio.gather(*progress, return_exceptions=True):
        if isinstance(known, tuple):
            topics.update(queue.topic for queue in known[0])
        elif not isinstance(known, FAULTS):
            raise known
    return {topic for topic in topics if not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))}


def _is_of(record: Record, message_id: str) -> bool:
    return message_id in record.message_ids if isinstance(record, Sent) else record.message_id == message_id


def _timeline(reports: Iterable[_Report]) -> list[TraceEvent]:
    events: list[TraceEvent] = []
    ends: dict[str, Handled] = {}
    begun: dict[str, tuple[Begun, str]] = {}
    for one in reports:
        record = one.record
        if isinstance(record, Sent):
            events.append(_sent(record, one.client))
        elif isinstance(record, Settled):
            events.append(_settled(record, one.client))
        elif isinstance(record, Begun):
            begun[record.request_id] = record, one.client
        else:
            ends[record.request_id] = record
    for request_id, (record, client) in begun.items():
        events.append(_delivered(record, ends.pop(request_id, None), client))
    # Deliveries whose beginning is missing: it may be at a broker that did not answer.
    events.extend(map(_ended, ends.values()))
    return events


def _sent(record: Sent, client: str) -> TraceEvent:
    return TraceEvent(
        time_ms=record.time_ms, what=_KINDS.get(record.kind, "sent"),
        topic=record.topic, group=record.group, client=client, cost_ms=record.cost_ms,
        result="ok" if record.success else "failed",
        detail=f"to {record.store_host}, {record.body_bytes} bytes" if record.store_host else f"{record.body_bytes} bytes",
    )  # fmt: skip


def _settled(record: Settled, client: str) -> TraceEvent:
    what = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}.get(record.state, "undecided")
    return TraceEvent(
        time_ms=record.time_ms, what=what, topic=record.topic, group=record.group, client=client, result="ok",
        detail="when the broker asked" if record.from_check else "",
    )  # fmt: skip


def _delivered(record: Begun, end: Handled | None, client: str) -> TraceEvent:
    return TraceEvent(
        time_ms=record.time_ms, what="delivered", group=record.group, client=client,
        cost_ms=None if end is None else end.cost_ms, result="not ended" if end is None else _result(end),
        attempt=record.retry_times + 1,
    )  # fmt: skip


def _ended(end: Handled) -> TraceEvent:
    """Return the event of a delivery whose begin record is lost."""
    return TraceEvent(
        time_ms=max(0, end.time_ms - end.cost_ms), what="delivered", group=end.group, cost_ms=end.cost_ms, result=_result(end),
    )  # fmt: skip


def _result(end: Handled) -> str:
    code = Result.FAILED if not end.success and end.code == Result.SUCCESS else end.code
    return _RESULTS.get(code, "failed")


_PLACES = {"sent": 0, "half message sent": 0, "delayed message sent": 0, "stored": 1}
"""Order of events of the same millisecond."""


def _order(event: TraceEvent) -> tuple[int, int, int]:
    return event.time_ms, _PLACES.get(event.what, 2), event.attempt


def _why_nothing(message_id: str, trace_topic: str, silent: Iterable[str]) -> str:
    missing = ", ".join(silent)
    if missing:
        return (
            f"nothing is told of {message_id} in topic {trace_topic}; but these brokers could not be asked: {missing}"
        )
    return f"nothing is told of {message_id} in topic {trace_topic}. {_WHO_TRACES}"
