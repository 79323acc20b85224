"""Queries of messages by key or id (12), and at a place in the log (33). Brokers look keys up by hash, so the client compares them."""

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
END_OF_TIME_MS = (1 << 63) - 1


class QueryRecords(Call[list[StoredMessage]], frozen=True, kw_only=True):
    """Messages of a topic that may have the key `key`, in the broker's order, with bodies as they are stored.

    RocketMQ compares hashes: some may have another key, or be of another topic. See `carries` and `opened`.

    Args:
        unique: `key` is a message id.
        begin_ms, end_ms: store times, both inclusive; brokers know them to the second.
    """

    answers = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

    topic: str
    key: str
    broker: str = ""
    """Name of the broker that is asked, set in the messages."""
    unique: bool = False
    count_max: int = LOOK_UP_MAX
    begin_ms: int = 0
    end_ms: int = END_OF_TIME_MS

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
        return hot.decode_records(answer.body, 0, len(answer.body), StoredMessage, self.broker, 0, 0)


class QueryMessages(QueryRecords, frozen=True, kw_only=True):
    """Messages of a topic with the key `key`, in the broker's order, bodies decompressed.

    Messages may be missing where others with the same hash have filled the response: `key_search` asks for those.
    """

    def read(self, answer: Command) -> list[StoredMessage]:
        found = QueryRecords.read(self, answer)
        return opened(one for one in found if carries(one, self.topic, self.key, unique=self.unique))


class ViewMessage(Call[StoredMessage], frozen=True):
    """The message that begins at a LogOffset of the broker (33), its body decompressed."""

    log_offset: int
    broker: str = ""
    """As in `QueryRecords`."""

    @property
    def action(self) -> str:
        return f"read the message at offset {self.log_offset} of its log"

    def request(self) -> Command:
        return request(RequestCode.VIEW_MESSAGE_BY_ID, headers.ViewMessageHeader(offset=self.log_offset))

    def read(self, answer: Command) -> StoredMessage:
        found = hot.decode_records(answer.body, 0, len(answer.body), StoredMessage, self.broker, 0, 0)
        if not found:
            raise BadRequest("the answer has no message in it")
        return opened(found[:1])[0]


def carries(message: StoredMessage, topic: str, key: str, *, unique: bool) -> bool:
    """Return whether the message is of the topic and has the key; `unique`: has that id."""
    if message.topic != topic:
        return False
    if message.properties.get(props.UNIQUE_ID) == key:
        return True
    return not unique and key in message.keys


def opened(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Return the messages with their bodies decompressed."""
    found = list(messages)
    for message in found:
        if message.sys_flag & int(SysFlag.COMPRESSED):
            try:
                message.body = compression.decompress(message.body, message.sys_flag, 4 * BODY_BYTES_MAX)
            except (BadRequest, ConfigError):
                # One body that cannot be read must not hide the other messages of the response. It stays as it is stored:
                # an empty one would be counted neither as read nor as unreadable.
                continue
    return found


class TraceMessage(Struct, frozen=True):
    """A decoded message of a trace topic; `client` is its sender's address."""

    trace: Trace
    client: str


def read_traces(messages: Iterable[StoredMessage]) -> list[TraceMessage]:
    """Decode messages of a trace topic."""
    return [TraceMessage(decode(message.body), message.born_host[0]) for message in messages]
