"""Messages by key, and what clients do with the answer: a broker looks keys up by their hash, so clients compare them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from metaq.client.conversation.call import Call
from metaq.errors import BadRequest
from metaq.model import StoredMessage, SysFlag
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.trace import Trace
from metaq.wire import compression, headers, hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.trace import decode

LOOK_UP_MAX = 64
"""Messages that brokers give at most for one question (`maxMsgsNumBatch`)."""
_END_OF_TIME_MS = (1 << 63) - 1


class QueryMessages(Call[list[StoredMessage]], frozen=True, kw_only=True):
    """The messages of a topic that carry `key`, in the broker's order; none if there are none.

    Args: unique: `key` is a message id. begin_ms, end_ms: store times, both inclusive. Bodies are expanded.
    """

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    topic: str
    key: str
    broker: str = ""
    """The name of who is asked, for the messages."""
    unique: bool = False
    count_max: int = LOOK_UP_MAX
    begin_ms: int = 0
    end_ms: int = _END_OF_TIME_MS

    @property
    def action(self) -> str:
        return f"look up {self.key} in topic {self.topic}"

    def request(self) -> Command:
        header = headers.QueryMessageHeader(
            topic=self.topic, key=self.key, max_messages=self.count_max, begin_ms=self.begin_ms, end_ms=self.end_ms,
            unique_id_query=self.unique,
        )  # fmt: skip
        return request(RequestCode.QUERY_MESSAGE, header)

    def read(self, answer: Command) -> list[StoredMessage]:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        found = hot.decode_records(answer.body, 0, len(answer.body), StoredMessage, self.broker, 0, 0)
        messages = [message for message in found if self._carries(message)]
        for message in messages:
            if message.sys_flag & int(SysFlag.COMPRESSED):
                try:
                    message.body = compression.decompress(message.body, message.sys_flag, 4 * BODY_BYTES_MAX)
                except BadRequest:
                    message.body = b""
        return messages

    def _carries(self, message: StoredMessage) -> bool:
        if self.unique:
            return message.properties.get(props.UNIQUE_ID) == self.key
        return self.key in message.keys or message.properties.get(props.UNIQUE_ID) == self.key


class TraceMessage(Struct, frozen=True):
    """A message of a trace topic, read; `client` is the address that it came from."""

    trace: Trace
    client: str


def read_traces(messages: Iterable[StoredMessage]) -> list[TraceMessage]:
    """What messages of a trace topic say."""
    return [TraceMessage(decode(message.body), message.born_host[0]) for message in messages]
