"""A dead letter: what it was, edited, and sent again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from metaq.admin import topics
from metaq.admin.queues.browsing import is_as_stored
from metaq.admin.sending import dead_letters
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.bodies import Body, body_of, text_of
from metaq.dashboard.page import Asked, Done, File, Page
from metaq.dashboard.pages.dead_letters.group import only_group_of
from metaq.dashboard.pages.messages.message import decoder_of, find
from metaq.dashboard.pages.messages.rows import MessageRow, linked, properties_of, properties_text, row_of
from metaq.errors import BadRequest, NoRoute
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.topics.topic import DEAD_LETTER_PREFIX

EDIT_MAX: Final = 1 << 20
"""Bytes of a body that can be edited here."""
SEND_SECONDS: Final = 10.0


class LetterQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`place`: BROKER:QUEUE:OFFSET. `body`: how the body is shown."""

    place: str = ""
    body: Annotated[str, Meta(pattern="^(avro|protobuf|json|text|hex)?$")] = ""


class Copy(Struct, frozen=True):
    """What would be sent. `text`: the body; None: it is no text, or too long: it cannot be edited here and is sent as it is."""

    text: str | None
    tag: str
    keys: str
    properties: str


class Letter(Struct, frozen=True):
    """`origin`: the topic that it comes from; "": it does not say, and cannot be sent again. `readers`: groups that read that topic and have
    members; `stopped`: those without. `times`: how often the message was sent again before. `reason`: why its consumer could not decode it.
    """

    group: str
    message: MessageRow
    offset_id: str
    origin: str
    readers: list[str]
    stopped: list[str]
    times: int
    reason: str
    whole: bool
    body: Body
    copy: Copy
    marks: dict[str, str]
    notes: list[str]


async def load(asked: Asked) -> Letter:
    query: LetterQuery = asked.query
    group, core = asked.path["group"], asked.cluster.core
    topic = DEAD_LETTER_PREFIX + group
    message = await asked.ask(find(core, asked.path["id"], topic, query.place))
    origin, notes = dead_letters.origin_of(message), list[str]()
    readers, stopped = list[str](), list[str]()
    if origin is not None:
        try:
            readers, stopped = await asked.ask(_readers(core, origin))
        except (NoRoute, *FAULTS) as error:
            notes.append(f"who reads topic {origin}: {error}")
    same = dead_letters.unchanged(message)
    times = message.properties.get(dead_letters.TIMES, "0")
    marks = {name: value for name, value in message.properties.items() if name in _MARKS}
    return Letter(
        group=group, message=row_of(message), offset_id=message.offset_id, origin=origin or "",
        readers=readers, stopped=stopped, times=int(times) if times.isdecimal() and len(times) < 10 else 0,
        reason=message.properties.get(props.UNDECODABLE, ""), whole=not is_as_stored(message),
        body=body_of(message.body, query.body, decoder_of(asked, message)),
        copy=Copy(_editable(message), same.tag or "", " ".join(same.keys), properties_text(same.properties)), marks=marks, notes=notes,
    )  # fmt: skip


_MARKS: Final = frozenset(
    {
        dead_letters.ID, dead_letters.FROM, dead_letters.TIMES, props.RETRY_TOPIC, props.REAL_TOPIC, props.ORIGIN_MESSAGE_ID,
        props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES, props.UNDECODABLE,
    }
)  # fmt: skip


async def _readers(core: ClientCore, topic: str) -> tuple[list[str], list[str]]:
    route = await core.routes.route(topic, fresh=True)
    return await topics.readers(core, topic, [one.any_address for one in route.brokers if one.any_address is not None])


def _editable(message: StoredMessage) -> str | None:
    """Return the body as a form can have it; None: what comes back of it would be another one."""
    if len(message.body) > EDIT_MAX or is_as_stored(message):
        return None
    text = text_of(message.body, cut=False)
    return None if text is None or "\r" in text else text


async def resend(asked: Asked, form: Mapping[str, str]) -> Done:
    """Send a copy of the dead letter, as it was edited."""
    group, core = asked.path["group"], asked.cluster.core
    only_group = only_group_of(form)
    found = await asked.ask(find(core, asked.path["id"], DEAD_LETTER_PREFIX + group, form.get("place", "")))
    if form.get("sent_id") != found.offset_id:
        raise BadRequest("the form is of another dead letter: load its page again; nothing was sent")
    edited = _edited(found, form)
    receipt = await asked.ask(dead_letters.resend(core, found, group, edited, only_group=only_group), SEND_SECONDS)
    place = f"{receipt.queue.broker}:{receipt.queue.queue_id}:{receipt.offset}"
    text = f"Sent again to {receipt.queue.topic}, queue {receipt.queue.broker}:{receipt.queue.queue_id}, offset {receipt.offset}."
    return Done(text, linked(receipt.message_id, receipt.queue.topic, place))


def _edited(message: StoredMessage, form: Mapping[str, str]) -> dead_letters.Edited:
    same = dead_letters.unchanged(message)
    text, body = form.get("body"), message.body
    if text is not None and _editable(message) is not None:
        # Forms have other ends of lines than texts.
        body = text.replace("\r\n", "\n").encode()
    return dead_letters.Edited(
        body=body,
        tag=form.get("tag", same.tag or "") or None,
        keys=tuple(form.get("keys", " ".join(same.keys)).split()),
        properties=properties_of(form["properties"]) if "properties" in form else same.properties,
    )


async def file(asked: Asked) -> File:
    """Return the body as it was sent."""
    query: LetterQuery = asked.query
    topic = DEAD_LETTER_PREFIX + asked.path["group"]
    found = await asked.ask(find(asked.cluster.core, asked.path["id"], topic, query.place))
    return File(f"{found.message_id}.body", found.body)


PAGE: Final = Page(
    name="dead_letters/letter", path="/dead-letters/{group}/{id:path}", title="Dead letter {id}", under="dead_letters/groups",
    values=Letter, load=load, query=LetterQuery, changes={"resend": resend}, file=file, follows=False,
)  # fmt: skip
