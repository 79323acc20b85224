"""A message of MetaQ 1.x, as it is sent, and what a server says of it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from metaq.errors import InvalidMessage
from metaq.metaq1.model.partition import Partition
from metaq.model.message import as_body
from metaq.wire.metaq1.frame import HAS_ATTRIBUTE, HEAD_BYTES, with_attribute


class Message(Struct, frozen=True):
    """A topic, bytes, and perhaps an attribute.

    Raises TypeError, InvalidMessage: a part of it is missing, or the protocol does not carry it.
    """

    topic: str
    """Name of the topic."""
    data: bytes
    """A bytearray or memoryview is copied."""
    attribute: str | None = None
    """Any text, by which consumers filter; a tag for clients of RocketMQ's protocol. An empty one differs from none."""

    def __post_init__(self) -> None:
        check_topic_word(self.topic)
        if type(self.data) is not bytes:
            force_setattr(self, "data", as_body(self.data))
        if self.attribute is not None and not isinstance(self.attribute, str):
            raise TypeError(f"attribute is {self.attribute!r}: pass text or None")

    def encoded(self) -> tuple[int, bytes]:
        """Return flag and body of a put. Raises InvalidMessage: the attribute is no text that UTF-8 has."""
        if self.attribute is None:
            return 0, self.data
        try:
            return HAS_ATTRIBUTE, with_attribute(self.attribute, self.data)
        except UnicodeEncodeError as error:
            raise InvalidMessage(
                f"the attribute of a message for topic {self.topic} cannot be UTF-8: {error}"
            ) from None


def check_topic_word(topic: object) -> None:
    """Raise TypeError or InvalidMessage if `topic` cannot be a word of the protocol, which frames lines by blanks."""
    if not isinstance(topic, str):
        raise TypeError(f"topic is {topic!r}: pass text")
    if not topic.strip():
        raise InvalidMessage("the topic is blank: name one")
    if not topic.isascii() or not topic.isprintable() or " " in topic:
        raise InvalidMessage(f"the topic {topic!r:.100} cannot be sent: need ASCII characters without blanks")


def check_size(message: Message, body: bytes, frame_bytes_max: int) -> None:
    """Raise InvalidMessage if no get could return the message: a server sends at most its `maxTransferSize` at once."""
    if len(body) + HEAD_BYTES > frame_bytes_max:
        raise InvalidMessage(
            f"a message of {len(body)} bytes for topic {message.topic} is too large: with its {HEAD_BYTES} bytes of header it may "
            f"have {frame_bytes_max} (max_message_bytes), since no server returns more than its maxTransferSize"
        )


class SendResult(Struct, frozen=True):
    """A message is stored, or belongs to a transaction. What is refused raises."""

    message_id: int
    """Id that the server gave the message, unique in its cluster; -1: it has none yet."""
    partition: Partition
    """Partition that it goes to."""
    offset: int
    """Byte position in the partition; -1 in a transaction, which has no place before its commit."""
    text: str = ""
    """"send to local": an ordered producer keeps it in a local file, and sends it later; offset and id are -1."""
