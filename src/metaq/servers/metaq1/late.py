"""Answers of the MetaQ 1.x server whose messages are stored, but not as safe as promised: 1.x has no code for that, and its client sees
a failed put."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.broker.log.acks import Lack
from metaq.broker.metaq1.pair.samsa import Samsa
from metaq.errors import RemoteProtocolError
from metaq.wire.metaq1.commands import Code, Reader, ResultLine, put_place, result


def too_late(answers: bytes, lack: Lack) -> bytes:
    """Return answers to puts as errors that say what their messages lack."""
    what = lack.value if lack is Lack.DOUBT else f"the message is stored, but {lack.value}"
    text = f"{what}: ".encode()
    return b"".join(result(Code.ERROR, text + line.body, line.opaque) for line in _results(answers))


def not_at_the_slave(samsa: Samsa, answers: bytes, lack: Lack) -> bytes:
    """Return the same of the master of a synchronous pair: as errors for the messages that its slave lacks, in the original's words.

    The others of the same read event are answered as they are.
    """
    if lack is Lack.FLUSHED:
        return too_late(answers, lack)
    found = list[bytes]()
    for line in _results(answers):
        text = _failure(samsa, line.body)
        found.append(
            result(line.code, line.body, line.opaque) if text is None else result(Code.ERROR, text, line.opaque)
        )
    return b"".join(found)


def _failure(samsa: Samsa, body: bytes) -> bytes | None:
    try:
        message_id, partition, position = put_place(body)
    except RemoteProtocolError:  # a step of a transaction
        return f"what it has stored is here, and is not known to be at the slave {samsa.settings.url}".encode()
    if position < 0:  # a put into a transaction: the slave gets it at the commit
        return None
    text = samsa.failure_of(message_id, partition)
    return None if text is None else text.encode()


def _results(answers: bytes) -> Iterator[ResultLine]:
    reader, start = Reader(len(answers)), 0
    while start < len(answers):
        line, start = reader.next(answers, start)
        assert isinstance(line, ResultLine), "answers to puts are results"
        yield line
