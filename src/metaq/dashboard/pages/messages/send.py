"""A test message: written, sent, and followed to where it went."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from metaq.admin.queues.browsing import queue_of
from metaq.admin.sending.messages import send
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.page import Asked, Done, Page
from metaq.dashboard.pages.messages.rows import linked, number_of, properties_of
from metaq.errors import BadRequest, ConfigError, NoRoute
from metaq.model import Message
from metaq.model.message import DELAY_LEVEL_MAX

SECONDS: Final = 10.0
QUEUES_MAX: Final = 500


class SendQuery(Struct, frozen=True, forbid_unknown_fields=True):
    topic: str = ""


class Send(Struct, frozen=True):
    """`queues`: of the topic, BROKER:NUMBER. `problem`: why it cannot be sent to."""

    topic: str
    queues: list[str]
    problem: str
    levels: int


async def load(asked: Asked) -> Send:
    query: SendQuery = asked.query
    queues, problem = list[str](), ""
    if query.topic:
        try:
            queues = await asked.ask(_queues(asked.cluster.core, query.topic))
            problem = "" if queues else f"topic {query.topic} has no queue that can be written to"
        except (NoRoute, ConfigError, *FAULTS) as error:
            problem = str(error)
    return Send(query.topic, queues, problem, DELAY_LEVEL_MAX)


async def _queues(core: ClientCore, topic: str) -> list[str]:
    route = await core.routes.route(topic, fresh=True)
    return [f"{one.broker}:{one.queue_id}" for one in route.writable()][:QUEUES_MAX]


async def send_one(asked: Asked, form: Mapping[str, str]) -> Done:
    """Send the message of a form."""
    topic = form.get("topic", "").strip()
    if not topic:
        raise BadRequest("name the topic that the message is for")
    level = number_of(form.get("delay", ""), "the delay level") or 0
    message = Message(
        topic, _body(form), tag=form.get("tag", "").strip() or None, keys=tuple(form.get("keys", "").split()),
        properties=properties_of(form.get("properties", "")), delay_level=level,
    )  # fmt: skip
    queue = queue_of(topic, form["queue"]) if form.get("queue") else None
    receipt = await asked.ask(send(asked.cluster.core, message, queue=queue), SECONDS)
    text = f"Sent as {receipt.message_id}: {receipt.status.name}."
    if level:
        # It is in the topic of delays until it is due; what the broker told is where it will be.
        return Done(f"{text} It waits at delay level {level}, and then goes to {topic}.", "/delays")
    place = f"{receipt.queue.broker}:{receipt.queue.queue_id}:{receipt.offset}"
    where = f"It is in queue {receipt.queue.broker}:{receipt.queue.queue_id} at offset {receipt.offset}."
    return Done(f"{text} {where}", linked(receipt.message_id, topic, place))


def _body(form: Mapping[str, str]) -> bytes:
    text = form.get("body", "")
    if form.get("as") != "hex":
        # Forms have other ends of lines than texts.
        return text.replace("\r\n", "\n").encode()
    try:
        return binascii.unhexlify("".join(text.split()))
    except ValueError:
        raise BadRequest("the body is not hexadecimal: two digits for each byte") from None


PAGE: Final = Page(
    name="messages/send", path="/send", title="Send a message", under="messages/search", values=Send, load=load, query=SendQuery,
    changes={"send": send_one}, follows=False,
)  # fmt: skip
