"""Damaged records of this broker's log are replaced by those of another replica, when an administrator says so (30017)."""

from __future__ import annotations

import asyncio
import logging

from metaq.app.role.pending import outcome_of
from metaq.broker.broker import Broker
from metaq.broker.replication.mending import Mending
from metaq.client.conversation.administration import GetReplicaState
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.scrubbing.calls import GetLogBytes
from metaq.client.conversation.scrubbing.judging import Bytes, Place, judge
from metaq.errors import ConfigError, MetaqError, Reason, Refused, StoreError, StoreFailed
from metaq.model.leadership import parting
from metaq.model.scrub import RANGE_BYTES, DamagedSide, Mended
from metaq.net.address import split_address

log = logging.getLogger(__name__)


class Mender:
    """Repairs one broker's log. Only in its event loop; files are read and written in threads.

    Args: caller: sends the requests.
    """

    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker, self._caller = broker, caller
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """End a repair that is under way. What is being written is written whole."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def begin(self, mending: Mending, log_offset: int, size: int, source: str) -> None:
        """Carry out a repair, see `RepairRequests.ask`."""

        async def run() -> None:
            try:
                mended = await self._mend(log_offset, size, source)
            except Refused as error:
                mending.finish(error)
            except (MetaqError, OSError) as error:
                mending.finish(Refused(Reason.UNAVAILABLE, f"the log was not repaired: {error}"))
            except asyncio.CancelledError:
                mending.finish(Refused(Reason.UNAVAILABLE, "the log was not repaired: this broker is stopping"))
                raise
            except Exception as error:
                log.exception("the log could not be repaired at log offset %d", log_offset)
                mending.finish(Refused(Reason.UNAVAILABLE, f"the log could not be repaired: {error!r}"))
            else:
                mending.succeed(mended)

        self._task = asyncio.get_running_loop().create_task(run(), name="repair the log")

    async def _mend(self, log_offset: int, size: int, source: str) -> Mended:
        """Raises Refused, StoreError, OSError."""
        end = log_offset + size
        await self._check_source(source, end)
        log_file = self._broker.store.log.run.find(log_offset)
        if log_file is None or end > min(log_file.end, self._broker.store.state.flushed):
            raise Refused(
                Reason.INVALID, f"log offsets {log_offset} to {end} are not of one log file here, on the disk"
            )
        theirs = await self._fetch(source, log_offset, size)
        own = await self._read(log_offset, size)
        places = await asyncio.to_thread(self._damaged, Bytes(log_offset, log_file.end, theirs, own))
        if not places:
            raise Refused(
                Reason.INVALID,
                f"nothing was changed: from log offset {log_offset} to {end} this log is not damaged, or the broker at {source} has no "
                "right records there either",
            )
        kept = ""
        for place in places:
            good = theirs[place.log_offset - log_offset : place.log_offset + place.size - log_offset]
            folder = await self._write(place.log_offset, good)
            kept = kept or folder
            self._broker.scrub.repaired(place.log_offset, place.size)
        first, last = places[0], places[-1]
        return Mended(first.log_offset, last.log_offset + last.size - first.log_offset, kept)

    async def _write(self, log_offset: int, good: bytes) -> str:
        writing = asyncio.ensure_future(asyncio.to_thread(self._broker.store.writer.mend, log_offset, good))
        try:
            return str(await asyncio.shield(writing))
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)  # the store is closed next
            raise
        except StoreFailed:
            raise
        except StoreError as error:
            raise Refused(Reason.INVALID, f"the log was not repaired: {error}") from error

    async def _check_source(self, source: str, end: int) -> None:
        """Return if the broker there has the same log up to `end`. Raises Refused."""
        try:
            split_address(source)
            state = await ask(self._caller, source, GetReplicaState())
        except ConfigError as error:
            raise Refused(Reason.INVALID, str(error)) from error
        except FAULTS as error:
            raise Refused(Reason.UNAVAILABLE, f"the broker at {source} does not answer: {error}") from error
        name, roles = self._broker.environment.name, self._broker.roles
        if state is None or state.broker != name:
            raise Refused(Reason.INVALID, f"the broker at {source} is no replica of {name} of ours")
        common = parting(roles.kept.epochs, self._broker.store.log.end, state.epochs, state.log_end)
        if end > common:
            raise Refused(
                Reason.INVALID,
                f"this log and that of the broker at {source} are the same up to log offset {common} only",
            )

    async def _fetch(self, source: str, log_offset: int, size: int) -> bytes:
        """Raises Refused: they are not there any more."""
        found = b""
        while len(found) < size:
            call = GetLogBytes(log_offset + len(found), min(RANGE_BYTES, size - len(found)))
            try:
                piece = await ask(self._caller, source, call)
            except FAULTS as error:
                raise Refused(Reason.UNAVAILABLE, f"the broker at {source} does not tell its log: {error}") from error
            if not piece:
                raise Refused(Reason.UNAVAILABLE, f"the broker at {source} has no log at offset {call.offset}")
            found += piece
        return found

    async def _read(self, log_offset: int, size: int) -> bytes:
        found = b""
        while len(found) < size:
            size_left = min(RANGE_BYTES, size - len(found))
            piece = await outcome_of(self._broker.log_ranges.piece(log_offset + len(found), size_left))
            if not piece:
                raise Refused(
                    Reason.UNAVAILABLE, f"this broker has no log at offset {log_offset + len(found)} any more"
                )
            found += piece
        return found

    def _damaged(self, piece: Bytes) -> list[Place]:
        """The places of whole records that are right there, and damaged here."""
        # Which of the two leads makes no difference: here the other one's stands as the master's.
        places, judged = judge(piece, piece.start, final=True)
        joined = list[Place]()
        for one in places:
            if one.damaged is not DamagedSide.SLAVE or one.log_offset + one.size > judged:
                continue
            last = joined[-1] if joined else None
            if last is not None and last.log_offset + last.size == one.log_offset:  # one sync for both
                joined[-1] = last._replace(size=last.size + one.size)
            else:
                joined.append(one)
        return joined
