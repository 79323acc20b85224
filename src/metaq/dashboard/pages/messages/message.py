"""A message: all that is known of it, its body, who has consumed it, and its trace."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from msgspec import Meta, Struct

from metaq.address import join_address
from metaq.admin import messages, traces, tracks
from metaq.admin.queues import browsing
from metaq.admin.sending import dead_letters
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.bodies import Body, body_of
from metaq.dashboard.decoding.schemas import Decoder
from metaq.dashboard.page import Asked, File, Page
from metaq.dashboard.pages.messages.rows import place_text
from metaq.dashboard.timeline import Timeline, timeline
from metaq.errors import BadRequest, ConfigError, NoRoute
from metaq.model import StoredMessage, SysFlag
from metaq.model import properties as props
from metaq.model.message import BODY_AS_STORED, TRANSACTION_MASK
from metaq.model.topics.topic import DEAD_LETTER_PREFIX

MORE_SECONDS: Final = 1.5
"""What track and trace may take of a page's time."""
GROUPS_MAX: Final = 200


class MessageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`topic`: its topic; an id of a broker needs none. `place`: BROKER:QUEUE:OFFSET, where several have one id. `body`: how it is shown."""

    topic: str = ""
    place: str = ""
    body: Annotated[str, Meta(pattern="^(avro|protobuf|json|text|hex)?$")] = ""


class TrackRow(Struct, frozen=True):
    """`offset`: the next one that the group consumes in the message's queue; None: unknown. `deliveries`: that its clients have traced."""

    group: str
    state: str
    offset: int | None
    detail: str
    deliveries: int
    last_ms: int | None
    last_result: str


class Message(Struct, frozen=True):
    """`properties`: of its sender; `system`: that clients and brokers have added. `letter_of`: group whose dead letter it is; "": none.

    `flags`: its system flags in words. `tracks`: None: they could not be found out, which `notes` says.
    """

    id: str
    offset_id: str
    topic: str
    broker: str
    queue: int
    offset: int
    place: str
    log_offset: int
    tag: str
    keys: list[str]
    properties: dict[str, str]
    system: dict[str, str]
    flags: list[str]
    sys_flag: int
    flag: int
    born_ms: int
    born_host: str
    stored_ms: int
    store_host: str
    retries: int
    prepared_offset: int
    letter_of: str
    body: Body
    tracks: list[TrackRow] | None
    tracks_more: int
    trace: Timeline
    notes: list[str]


async def load(asked: Asked) -> Message:
    query: MessageQuery = asked.query
    core, notes = asked.cluster.core, list[str]()
    found = await asked.ask(find(core, asked.path["id"], query.topic, query.place))
    track, trace = await asyncio.gather(_track(asked, found, notes), _trace(asked, found))
    rows = [_track_row(one) for one in track.groups] if track is not None else None
    if track is not None and track.silent:
        notes.append(f"groups may be missing, these brokers could not be asked: {', '.join(track.silent)}")
    if browsing.is_as_stored(found):
        notes.append("the body cannot be decompressed: it is shown as it is stored")
    own = {name: value for name, value in found.properties.items() if name not in props.RESERVED}
    return Message(
        id=found.message_id, offset_id=found.offset_id, topic=found.topic, broker=found.broker, queue=found.queue_id,
        offset=found.queue_offset, place=place_text(found), log_offset=found.log_offset, tag=found.tag or "", keys=list(found.keys),
        properties=own, system={name: value for name, value in found.properties.items() if name in props.RESERVED},
        flags=flags_of(found.sys_flag), sys_flag=found.sys_flag & ~BODY_AS_STORED, flag=found.flag,
        born_ms=found.born_ms, born_host=join_address(*found.born_host), stored_ms=found.store_ms,
        store_host=join_address(*found.store_host), retries=found.reconsume_times, prepared_offset=found.prepared_offset,
        letter_of=found.topic.removeprefix(DEAD_LETTER_PREFIX) if found.topic.startswith(DEAD_LETTER_PREFIX) else "",
        body=body_of(found.body, query.body, decoder_of(asked, found)), tracks=rows[:GROUPS_MAX] if rows is not None else None,
        tracks_more=max(0, len(rows) - GROUPS_MAX) if rows is not None else 0, trace=trace, notes=notes,
    )  # fmt: skip


async def find(core: ClientCore, message_id: str, topic: str, place: str) -> StoredMessage:
    """Return a message, at a place if one is named. Raises as `browsing.at` and `messages.get`; MessageNotFound: another is there."""
    if not place:
        return await messages.get(core, message_id, topic or None)
    if not topic:
        raise BadRequest("a place is one in a topic: name it")
    found = await browsing.at(core, browsing.place_of(topic, place))
    if message_id not in {found.message_id, found.offset_id}:
        raise messages.MessageNotFound(
            f"the message at {place} of topic {topic} is not {message_id[:100]}, but {found.message_id}"
        )
    return found


async def _track(asked: Asked, message: StoredMessage, notes: list[str]) -> tracks.MessageTrack | None:
    try:
        return await asked.ask(tracks.track_of(asked.cluster.core, message), MORE_SECONDS)
    except (NoRoute, ConfigError, *FAULTS) as error:
        notes.append(f"who has consumed it: {error}")
        return None


async def _trace(asked: Asked, message: StoredMessage) -> Timeline:
    try:
        return timeline(await asked.ask(traces.trace(asked.cluster.core, message.message_id), MORE_SECONDS))
    except (traces.TraceNotFound, ConfigError, NoRoute, *FAULTS) as error:
        return Timeline([], 0, 0, str(error))


def _track_row(one: tracks.GroupTrack) -> TrackRow:
    last = one.deliveries[-1] if one.deliveries else None
    return TrackRow(
        one.group, one.state.value, one.offset, one.detail, len(one.deliveries), last.time_ms if last is not None else None,
        last.result if last is not None else "",
    )  # fmt: skip


def decoder_of(asked: Asked, message: StoredMessage) -> Decoder | None:
    """Return how a message's body is decoded: by the schema of its topic, or of the one that it comes from; None: it has none."""
    return asked.schemas.get(message.topic) or asked.schemas.get(dead_letters.origin_of(message) or "")


def flags_of(sys_flag: int) -> list[str]:
    """Return system flags in words."""
    found = [
        text
        for bit, text in (
            (SysFlag.COMPRESSED, "compressed"), (SysFlag.MULTI_TAGS, "several tags"), (SysFlag.BORN_HOST_V6, "born at IPv6"),
            (SysFlag.STORE_HOST_V6, "stored at IPv6"),
        )
        if sys_flag & bit
    ]  # fmt: skip
    transaction = {
        int(SysFlag.PREPARED): "half message", int(SysFlag.COMMITTED): "committed", int(SysFlag.ROLLED_BACK): "rolled back",
    }.get(sys_flag & TRANSACTION_MASK)  # fmt: skip
    return [*found, *([transaction] if transaction is not None else [])]


async def file(asked: Asked) -> File:
    """Return the body as it was sent."""
    query: MessageQuery = asked.query
    found = await asked.ask(find(asked.cluster.core, asked.path["id"], query.topic, query.place))
    return File(f"{found.message_id}.body", found.body)


PAGE: Final = Page(
    name="messages/message", path="/messages/{id:path}", title="Message {id}", under="messages/search", values=Message, load=load,
    query=MessageQuery, file=file, follows=False,
)  # fmt: skip
