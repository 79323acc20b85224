"""Requests for pieces of a replica's log, and for their repair."""

from __future__ import annotations

from typing import ClassVar

from metaq.client.conversation.call import Call
from metaq.errors import BadRequest
from metaq.model.scrub import LogChecksums, Mended
from metaq.wire import extensions, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import Command, request

READ_SECONDS = 30.0
"""Longest wait for a piece of a log: the disk may be slow, and others may have theirs read first."""


class GetLogChecksums(Call[LogChecksums | None], frozen=True):
    """Checksums of [offset, stop) of a log, and where the log lies (30015). Outcome None: it is a RocketMQ, or an earlier one of
    ours."""

    seconds: ClassVar[float] = READ_SECONDS
    answers = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    offset: int
    stop: int

    @property
    def action(self) -> str:
        return f"tell checksums of its log from offset {self.offset} on"

    def request(self) -> Command:
        return request(RequestCode.LOG_CHECKSUMS, headers.LogChecksumsHeader(offset=self.offset, stop=self.stop))

    def read(self, answer: Command) -> LogChecksums | None:
        return extensions.log_checksums_of(answer.body) if answer.code == ResponseCode.SUCCESS else None


class GetLogBytes(Call[bytes], frozen=True):
    """Bytes of a log (30016): fewer at the end of a log file, or of what is durable there; none where retention has taken them."""

    seconds: ClassVar[float] = READ_SECONDS

    offset: int
    size: int

    @property
    def action(self) -> str:
        return f"tell {self.size} bytes of its log from offset {self.offset} on"

    def request(self) -> Command:
        return request(RequestCode.LOG_BYTES, headers.LogBytesHeader(offset=self.offset, size=self.size))

    def read(self, answer: Command) -> bytes:
        if len(answer.body) > max(0, self.size):
            raise BadRequest(f"{len(answer.body)} bytes of the log came, asked for were {self.size}")
        return bytes(answer.body)


class RepairLog(Call[Mended], frozen=True):
    """Have one of our brokers replace damaged records of its log by those of another replica (30017)."""

    seconds: ClassVar[float] = 120.0

    offset: int
    size: int
    source: str
    """Address of the broker whose records are right."""

    @property
    def action(self) -> str:
        return f"repair {self.size} bytes of its log from offset {self.offset} on"

    def request(self) -> Command:
        header = headers.RepairLogHeader(offset=self.offset, size=self.size, source=self.source)
        return request(RequestCode.REPAIR_LOG, header)

    def read(self, answer: Command) -> Mended:
        return extensions.mended_of(answer.body)
