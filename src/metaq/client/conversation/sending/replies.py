"""Request-reply (324 to 326): properties of requests, replies to them, and decoding of pushed replies.

outgoing = asking(outgoing, correlation_id, client_id, ttl_ms)      # a request, sent by `Send`
reply = answering(request, reply)                                   # the reply, sent by `Send` to `reply_topic_of(request)`
correlation_id, message = reply_of(command).…                       # what a broker pushes to whoever waits
"""

from __future__ import annotations

import functools

from msgspec import structs

from metaq.client.conversation.sending.sending import Outgoing
from metaq.errors import BadRequest, ClientError, ConfigError
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.message import BODY_BYTES_MAX, COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB, SysFlag, host_bytes
from metaq.model.notices import RequestReplied
from metaq.model.topics.system import reply_topic
from metaq.wire import compression, headers
from metaq.wire.command import Command

BODY_EXPANDED_MAX = 4 * BODY_BYTES_MAX
"""Bytes of a decompressed reply at most."""
_COMPRESSED = int(SysFlag.COMPRESSED)  # `&` with the enum itself costs 1 µs per reply
_DEFLATE = 8
"""Compression method in the first byte of every zlib stream; its first two bytes are a multiple of 31."""
_HOST_CHARS_MAX = 128
"""Longest `ip:port`."""


def asking(outgoing: Outgoing, correlation_id: str, client_id: str, ttl_ms: int) -> Outgoing:
    """Make a request of `outgoing`: add correlation id, requester and time-out."""
    marks = {props.CORRELATION_ID: correlation_id, props.REPLY_TO: client_id, props.TTL: str(ttl_ms)}
    return structs.replace(outgoing, properties=_with(outgoing.properties, marks))


def reply_topic_of(request: StoredMessage) -> str:
    """Return the reply topic of a request, named after its CLUSTER. Raises ClientError: the message is no request."""
    pairs = request.properties
    missing = [name for name in (props.CORRELATION_ID, props.REPLY_TO, props.CLUSTER) if not pairs.get(name)]
    if missing:
        raise ClientError(
            f"{request} is no request, so nobody waits for a reply: it lacks the properties {', '.join(missing)}"
        )
    return reply_topic(pairs[props.CLUSTER])


def answering(request: StoredMessage, outgoing: Outgoing) -> Outgoing:
    """Make a reply of an ordinary message to the reply topic."""
    marks = {props.MESSAGE_TYPE: props.REPLY}
    for name in (props.CORRELATION_ID, props.REPLY_TO, props.TTL):
        if value := request.properties.get(name):
            marks[name] = value
    return structs.replace(outgoing, properties=_with(outgoing.properties, marks), reply=True)


def _with(text: str, marks: dict[str, str]) -> str:
    more = props.join(marks)
    return f"{text}{props.PAIR_END}{more}" if text else more


def reply_of(command: Command, broker: str, now_ms: int) -> RequestReplied:
    """Decode a reply pushed by the broker of that name (326), and decompress its body. Raises BadRequest."""
    header = headers.PushReplyHeader.from_ext(command.ext)
    pairs = props.parse(header.properties)
    correlation_id = pairs.get(props.CORRELATION_ID, "")
    if not correlation_id:
        raise BadRequest(f"a reply without {props.CORRELATION_ID}")
    pairs[props.ARRIVE_TIME] = str(now_ms)
    body, broken = bytes(command.body), ""
    if header.sys_flag & _COMPRESSED and not _is_plain(body, header.sys_flag):
        try:
            body = compression.decompress(body, header.sys_flag, BODY_EXPANDED_MAX)
        except (BadRequest, ConfigError) as error:
            broken = str(error)
    message = StoredMessage(
        topic=header.topic,
        body=body,
        queue_id=header.queue_id,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_ms=header.born_ms,
        store_ms=header.store_ms,
        reconsume_times=header.reconsume_times,
        born_host_raw=_host(header.born_host),
        store_host_raw=_host(header.store_host),
        properties_raw=props.join(pairs).encode(),
        broker=broker,
    )
    return RequestReplied(correlation_id, message, broken)


def _is_plain(body: bytes, sys_flag: int) -> bool:
    """Return whether a body marked as compressed is not: the Go client marks long replies and sends them uncompressed."""
    zlib = sys_flag & COMPRESSION_TYPE_MASK in (0, COMPRESSION_ZLIB)
    return zlib and (len(body) < 2 or body[0] & 0x0F != _DEFLATE or int.from_bytes(body[:2], "big") % 31 != 0)


def _host(text: str) -> bytes:
    """Encode `ip:port` (Java writes IPv6 without brackets); zeros if it is malformed, since it is only informative."""
    return _known_host(text) if len(text) <= _HOST_CHARS_MAX else bytes(8)


@functools.lru_cache(maxsize=256)  # few distinct ones; parsing one takes as long as a header
def _known_host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    try:
        return host_bytes(address.strip("[]").partition("%")[0], int(port))
    except (ValueError, OverflowError):
        return bytes(8)
