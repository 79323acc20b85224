"""Queries of messages by key or id (12). Brokers look keys up by hash, so the client compares them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from metaq.client.conversation.call import Call
from metaq.errors import BadRequest, ConfigError
from metaq.model import StoredMessage, SysFlag
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.trace import Trace
from metaq.wire import compression, headers, hot
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request
from metaq.wire.trace import decode

LOOK_UP_MAX = 64
"""Messages in one response at most (brokers' `maxMsgsNumBatch`)."""
_END_OF_TIME_MS = (1 << 63) - 1


class QueryMessages(Call[list[StoredMessage]], frozen=True, kw_only=True):
    """Messages of a topic with the key `key`, in the broker's order.

    Args:
        unique: `key` is a message id.
        begin_ms, end_ms: store times, both inclusive. Bodies are decompressed.
    """

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    topic: str
    key: str
    broker: str = ""
    """Name of the broker that is asked, set in the messages."""
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
                except (BadRequest, ConfigError):
                    # One body that cannot be read must not hide the other messages of the response. It stays as it is stored:
                    # an empty one would be counted neither as read nor as unreadable.
                    continue
        return messages

    def _carries(self, message: StoredMessage) -> bool:
        if self.unique:
            return message.properties.get(props.UNIQUE_ID) == self.key
        return self.key in message.keys or message.properties.get(props.UNIQUE_ID) == self.key


class TraceMessage(Struct, frozen=True):
    """A decoded message of a trace topic; `client` is its sender's address."""

    trace: Trace
    client: str


def read_traces(messages: Iterable[StoredMessage]) -> list[TraceMessage]:
    """Decode messages of a trace topic."""
    return [TraceMessage(decode(message.body), message.born_host[0]) for message in messages]
