"""Executor side: the messages of a range of bytes of one partition of MetaQ 1.x, whatever happens to its servers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from metaq.errors import BadRequest, ClientError, ConnectionFailed, MessagesLost, MetaqError
from metaq.spark.cluster.client import Retries
from metaq.spark.metaq1.link import ANSWER_BYTES_MAX, TextLink, moved, refused
from metaq.wire.metaq1.commands import Code, ResultLine
from metaq.wire.metaq1.frame import HEAD_BYTES, Frame, frames

_LOG = logging.getLogger(__name__)


class Damaged(ClientError):
    """A server returns bytes that are no messages: its file is damaged, or the offset is not one where a message begins."""


class BytesLost(MessagesLost):
    """The same, of a log whose offsets are bytes: nobody knows how many messages that were."""

    def __str__(self) -> str:
        what = f"the messages of {self.queue} in bytes [{self.lost.start}, {self.lost.stop}) are gone"
        return f"{what}. {self.remedy}" if self.remedy else what


class LogEnds(ConnectionFailed):
    """A server's log ends before what was planned. It may be a moment behind: it has just started, or is a slave."""

    def __init__(self, text: str, *, sure: bool) -> None:
        """Args: sure: whether it is the master that names its end."""
        super().__init__(text)
        self.sure = sure


@dataclass(frozen=True)
class Range:
    """The messages that begin in the bytes [start, stop) of one partition. Plain values: pickled for the task."""

    topic: str
    partition: str
    """`B-n`."""
    servers: tuple[str, ...]
    """`host:port`, in the order in which they are asked."""
    has_master: bool
    """Whether the first is the master. Only its word counts on what is gone: a slave may have less."""
    start: int
    stop: int

    @property
    def place(self) -> str:
        return f"partition {self.partition} of {self.topic}"


class Found(NamedTuple):
    """A message and the offset at which it begins."""

    offset: int
    frame: Frame


class RangeReader:
    """Reads one range. `read` may be called once."""

    def __init__(
        self, wanted: Range, group: str, *, fetch_bytes: int, retry_seconds: float, fail_on_data_loss: bool
    ) -> None:
        """
        Args:
            group: named in the requests.
            fetch_bytes: asked for by one fetch; doubled while no whole message fits.
            retry_seconds: how long a fault is retried.
            fail_on_data_loss: whether messages that are gone are an error.
        """
        self._wanted, self._group, self._next = wanted, group, wanted.start
        self._first_size = self._size = fetch_bytes
        self._retry_seconds, self._fails = retry_seconds, fail_on_data_loss
        self._number = int(wanted.partition.rpartition("-")[2])

    def read(self) -> Iterator[list[Found]]:
        """Yield the messages, in order, those of one fetch together.

        Raises: Damaged: bytes that are no messages; they are never taken for an end. MessagesLost: messages are gone, and
            the query is to fail then. ConnectionFailed, RequestTimeout, RemoteProtocolError: no server answers.
            BrokerError: the server refuses, since the partition is closed for instance.
        """
        tries, failed_at, turn = Retries(self._retry_seconds), self._next, 0
        while self._next < self._wanted.stop:
            link = None
            try:
                link = TextLink(self._wanted.servers[turn % len(self._wanted.servers)], max(self._retry_seconds, 1.0))
                while self._next < self._wanted.stop:
                    if found := self._fetch(link):
                        yield found
            except (Damaged, MessagesLost):
                raise
            except MetaqError as fault:
                if self._next != failed_at:
                    failed_at = self._next
                    tries.renew()
                turn += 1
                self._rest(tries, fault)
            finally:
                if link is not None:
                    link.close()

    def _rest(self, tries: Retries, fault: MetaqError) -> None:
        """Wait before the next try; when the time is over, raise `fault`, or take what the master lacks for lost."""
        try:
            tries.pause(fault)
        except LogEnds as end:
            if not end.sure:
                raise
            self._lost(self._wanted.stop)

    def _fetch(self, link: TextLink) -> list[Found]:
        wanted = self._wanted
        answer = link.get(wanted.topic, self._group, self._number, self._next, self._size)
        if not isinstance(answer, ResultLine):
            return self._parsed(answer.body, link.address)
        master = wanted.has_master and link.address == wanted.servers[0]
        if answer.code == Code.MOVED and (kept := moved(answer, link.address)) > self._next and master:
            self._lost(min(kept, wanted.stop))
            return []
        if answer.code in (Code.MOVED, Code.NOT_FOUND):
            # 404 also means exactly at the end, of a log that the original has not loaded, and of one that was never written.
            end = link.bound(wanted.topic, self._group, self._number, last=True)
            raise LogEnds(
                f"{link.address} has nothing of {wanted.place} at offset {self._next}, though there were messages up to {wanted.stop}",
                sure=master and end is not None and end < wanted.stop,
            )
        error = refused(answer, link.address, wanted.topic, self._number)
        # A partition that was closed, or a server that is going down: perhaps for a moment only.
        raise ConnectionFailed(str(error)) if answer.code in (Code.FORBIDDEN, Code.UNAVAILABLE) else error

    def _lost(self, stop: int) -> None:
        lost = BytesLost(self._wanted.place, range(self._next, stop), "Set failOnDataLoss=false to go on without them.")
        if self._fails:
            raise lost
        _LOG.warning("%s", lost)
        self._next = stop

    def _parsed(self, body: bytes, address: str) -> list[Found]:
        found: list[Found] = []
        offset = self._next
        try:
            for frame in frames(body):
                # Also behind a frame that is damaged: what comes before it has been yielded in no other fetch.
                if offset >= self._wanted.stop:
                    break
                found.append(Found(offset, frame))
                offset += frame.size
        except BadRequest as fault:
            raise Damaged(
                f"{self._wanted.place} is damaged at offset {offset}, as {address} returns it: {fault}. Or no message begins at "
                f"offset {self._wanted.start}, where the read began"
            ) from None
        if found:
            self._next, self._size = offset, self._first_size
            return found
        if len(body) < self._size or self._size >= ANSWER_BYTES_MAX:
            need = int.from_bytes(body[:4], "big") + HEAD_BYTES if len(body) >= 4 else HEAD_BYTES
            raise Damaged(
                f"{self._wanted.place} has at offset {self._next} a message of {need} bytes, and {address} returns {len(body)} "
                f"bytes at most: it is larger than the server's maxTransferSize, or cut off"
            )
        self._size = min(self._size * 2, ANSWER_BYTES_MAX)
        return []
