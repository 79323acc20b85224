"""What answers of a server of MetaQ 1.x mean, by the command that was asked.

Each function takes an answer and the server's address, for errors, and raises BrokerError for a code that is no success, and
RemoteProtocolError for an answer that the command cannot have.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from metaq.errors import BrokerError, RemoteProtocolError
from metaq.metaq1.model.message import SendResult
from metaq.metaq1.model.partition import Partition
from metaq.wire.metaq1.commands import Answer, Code, ResultLine, TooLong, ValueLine, put_place
from metaq.wire.metaq1.stats import stats_lines

_LONG_DIGITS_MAX: Final = 20
_TEXT_CHARS_MAX: Final = 1000
_RETRIABLE: Final = frozenset({Code.ERROR, Code.UNAVAILABLE})
_CLOSED: Final = "the partition is closed by an operator (403)"


class Found(Struct, frozen=True):
    """Frames from the asked offset on; the last one may be cut off (`metaq.wire.metaq1.frame.frames`)."""

    data: bytes


class Moved(Struct, frozen=True):
    """Nothing can be read there: go on at `offset`."""

    offset: int


class Nothing(Struct, frozen=True):
    """There is nothing yet, or the partition is closed; `why`: the server's words."""

    why: str


Fetched: TypeAlias = Found | Moved | Nothing
Reply: TypeAlias = Answer | TooLong


def refusal(answer: ResultLine, address: str, action: str) -> BrokerError:
    """Return the error of an answer with a code that is no success."""
    text = answer.body[:_TEXT_CHARS_MAX].decode("utf-8", "replace")
    if answer.code == Code.FORBIDDEN:
        text = text or _CLOSED
    return BrokerError(answer.code, text, address, action, retriable=answer.code in _RETRIABLE)


def result_of(answer: Reply, address: str, action: str) -> bytes:
    """Return the body of a success."""
    if not isinstance(answer, ResultLine):
        raise RemoteProtocolError(f"{address} answers a command to {action} with frames, or with too many bytes")
    if answer.code != Code.SUCCESS:
        raise refusal(answer, address, action)
    return answer.body


def stored(answer: Reply, address: str, action: str, broker_id: int) -> SendResult:
    """Return where a put was stored; `broker_id` is the one that was sent to, which the answer does not tell."""
    message_id, number, offset = put_place(result_of(answer, address, action))
    return SendResult(message_id, Partition(broker_id, number), offset)


def fetched(answer: Reply, address: str, action: str) -> Fetched:
    """Return what a get has found."""
    match answer:
        case ValueLine():
            return Found(answer.body)
        case ResultLine(code=Code.NOT_FOUND | Code.FORBIDDEN):
            return Nothing(answer.body[:_TEXT_CHARS_MAX].decode("utf-8", "replace"))
        case ResultLine(code=Code.MOVED):
            return Moved(_number(answer.body, address, action))
        case ResultLine():
            raise refusal(answer, address, action)
    raise RemoteProtocolError(f"{address} answers a command to {action} with more bytes than were asked for")


def offset_of(answer: Reply, address: str, action: str) -> int:
    """Return the number in the answer to `offset`."""
    return _number(result_of(answer, address, action), address, action)


def lines_of(answer: Reply, address: str, action: str) -> list[list[str]]:
    """Return the words of each line of the answer to `stats`."""
    return list(stats_lines(result_of(answer, address, action)))


def figures_of(answer: Reply, address: str, action: str) -> dict[str, str]:
    """Return figure → value of the answer to `stats`; a line of one word has an empty value."""
    return {words[0]: " ".join(words[1:]) for words in lines_of(answer, address, action)}


def _number(body: bytes, address: str, action: str) -> int:
    text = body[: _LONG_DIGITS_MAX + 1].decode("utf-8", "replace")
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(body) > _LONG_DIGITS_MAX:
        raise RemoteProtocolError(f"{address} answers a command to {action} with {text!r:.40} in place of an offset")
    return int(text)
