"""Steps of XA branches between the two brokers of a synchronous pair, in the body of a `sync` to `BRANCHES_TOPIC`.

ask | prepare KEY | end KEY | put KEY TOPIC PARTITION FLAG ID        a line, ended by CR LF
body of the message                                                  of put
"""

from __future__ import annotations

from metaq.errors import BadRequest
from metaq.model.metaq1.pair import BranchCopy, BranchStep, SyncMessage
from metaq.wire.metaq1.frame import checksum

_END = b"\r\n"
_WORDS = {BranchStep.ASK: 1, BranchStep.PREPARE: 2, BranchStep.END: 2, BranchStep.PUT: 6}


def encode_copy(copy: BranchCopy) -> bytes:
    """Encode a step. Keys and topics are words of lines already: they have no blank."""
    message = copy.message
    if message is None:
        return " ".join([copy.step.value, *([copy.key] if copy.key else [])]).encode() + _END
    words = (copy.step.value, copy.key, message.topic, message.partition, message.flag, message.message_id)
    return " ".join(map(str, words)).encode() + _END + message.body


def decode_copy(data: bytes) -> BranchCopy:
    """Decode a step. Raises BadRequest."""
    line, end, body = data.partition(_END)
    words = line.decode("utf-8", "replace").split(" ")
    malformed = BadRequest(f"{line[:100]!r} is no step of a branch")
    try:
        step = BranchStep(words[0])
    except ValueError:
        raise malformed from None
    if not end or len(words) != _WORDS[step]:
        raise malformed
    try:
        if step is not BranchStep.PUT:
            return BranchCopy(step, words[1] if len(words) > 1 else "")
        partition, flag, message_id = map(int, words[3:])
    except ValueError:
        raise malformed from None
    return BranchCopy(step, words[1], SyncMessage(words[2], partition, flag, message_id, body, checksum(body)))
