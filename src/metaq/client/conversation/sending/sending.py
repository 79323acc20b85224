"""SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), replies (325), and CONSUMER_SEND_MSG_BACK (36)."""

from __future__ import annotations

from msgspec import Struct

from metaq.client.conversation.call import Call, Order
from metaq.model import MessageQueue, SendStatus
from metaq.model import properties as props
from metaq.model.topics.system import AUTO_CREATE_TOPIC
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request

_STORED = {status.value: status for status in SendStatus}
"""Response codes of stored sends, with flush and replication confirmed or not."""


class Outgoing(Struct, frozen=True):
    """Content of a send: one message, or a batch body. `properties` is "" for a batch, whose entries have their own."""

    topic: str
    body: bytes
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    reply: bool = False
    """Whether it is a reply, which its broker pushes to the requester."""


class Stored(Struct, frozen=True):
    """Result of a send: offset of the first message, offset ids of all, comma-joined."""

    queue: MessageQueue
    offset: int
    status: SendStatus
    offset_ids: str
    region: str = ""
    """The broker's region (MSG_REGION)."""
    trace: bool = True
    """Whether the broker wants clients with tracing to trace it (TRACE_ON)."""


class Template(Struct, frozen=True):
    """Settings for automatic topic creation by a send: template topic, and number of queues at most."""

    topic: str = AUTO_CREATE_TOPIC
    queues: int = 4
    unit: bool = False
    """Whether the topic belongs to a unit."""


class Send(Call[Stored], frozen=True):
    """Send to `queue`. `born_ms`: bornTimestamp, ms since the epoch."""

    answers = _STORED

    group: str
    outgoing: Outgoing
    queue: MessageQueue
    born_ms: int
    template: Template = Template()

    @property
    def action(self) -> str:
        return f"send to topic {self.outgoing.topic}"

    def request(self) -> Command:
        outgoing = self.outgoing
        header = headers.SendHeader(
            producer_group=self.group,
            topic=outgoing.topic,
            default_topic=self.template.topic,
            default_topic_queues=self.template.queues,
            unit_mode=self.template.unit,
            queue_id=self.queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_ms=self.born_ms,
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=outgoing.reconsume_times,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=outgoing.batch,
            broker_name=self.queue.broker,
        )
        if outgoing.reply:
            # V2 codes with one-letter names, as Java's client: shorter, and decoded on brokers' fast path.
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        else:
            code = RequestCode.SEND_BATCH_MESSAGE if outgoing.batch else RequestCode.SEND_MESSAGE_V2
        return request(code, header, outgoing.body)

    def read(self, answer: Command) -> Stored:
        header = headers.SendReplyHeader.from_ext(answer.ext)
        queue = self.queue._replace(queue_id=header.queue_id)
        region, trace = answer.ext.get(props.REGION, ""), answer.ext.get(props.TRACE) != "false"
        return Stored(queue, header.queue_offset, _STORED[answer.code], header.message_id, region, trace)


class GiveBack(Order, frozen=True, kw_only=True):
    """Send a failed message back: deliver it again later, or store it with the dead letters (36).

    `log_offset` names the record at its broker. `delay_level`: below zero straight to the dead letters, 0 as the broker
    chooses. `repeated`: an earlier request like this one may have been answered, and the answer lost.
    """

    group: str
    broker: str
    topic: str
    message_id: str
    log_offset: int
    delay_level: int
    max_reconsume_times: int
    repeated: bool = False

    @property
    def action(self) -> str:
        return f"take back {self.message_id}"

    def request(self) -> Command:
        # `repeated` is left out unless true: a first request looks like that of Java's client.
        header = headers.SendBackHeader(
            offset=self.log_offset,
            group=self.group,
            delay_level=self.delay_level,
            origin_message_id=self.message_id,
            origin_topic=self.topic,
            max_reconsume_times=self.max_reconsume_times,
            broker_name=self.broker,
            repeated=self.repeated or None,
        )
        return request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
