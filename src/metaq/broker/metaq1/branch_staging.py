"""Open MetaQ 1.x transactions on their way from memory into the log: chunks that are full or make room, and the decision at the end.

Each is one staged transaction (docs/formats/staging.md). A step that fails can be repeated: a chunk keeps its number and content until
it is stored (`metaq.broker.metaq1.gathering`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from metaq.broker.channel import Channel
from metaq.broker.metaq1.gathering import CHUNK_BYTES, Branch, GatheredPart, Memory
from metaq.broker.requests import Decide, SealPart, Stage
from metaq.broker.staged.service import StagingService
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.transactions.staging import Chunk, DecisionOutcome, PartLifetime, TransactionDecision
from metaq.saved import Saving

STAGED_AT_ONCE: Final = 16
"""Other transactions staged at most to make room in memory for one message."""


class BranchStaging:
    """Stages and decides the open transactions of one broker.

    Args:
        memory: counts what is buffered; less, when it is staged.
        broker: name of the broker.
    """

    def __init__(self, staging: StagingService, memory: Memory, clock: Clock, broker: str) -> None:
        self._staging, self._memory, self._clock, self._broker = staging, memory, clock, broker

    def make_room(self, branch: Branch, part: GatheredPart, size: int, of_channel: Collection[Branch]) -> None:
        """Stage buffered messages until `size` more bytes fit into this part, and into memory.

        `of_channel`: the local transactions of the branch's connection. Raises Refused, Saving: they do not fit.
        """
        while part.waiting or (part.data and len(part.data) + size > CHUNK_BYTES):
            part.cut()
            self._stage(branch, [part])
        memory, channel = self._memory, branch.channel
        # First its own messages, then those of its connection's other transactions, then the longest holders of all.
        if branch.held and memory.is_full_for(channel, size):
            self._stage_all(branch)
        if memory.is_full_for(channel, size):
            for other in [*of_channel, *memory.oldest(STAGED_AT_ONCE)]:
                if other.channel is channel and other.held:
                    self._stage_other(other)
                    if not memory.is_full_for(channel, size):
                        break
        if memory.is_full(size):
            for other in memory.oldest(STAGED_AT_ONCE):
                self._stage_other(other)
                if not memory.is_full(size):
                    break
        memory.check(channel, size)

    def _stage_other(self, branch: Branch) -> None:
        """Stage another transaction to make room. An error there is that client's, at its next step, and not this one's."""
        try:
            self._stage_all(branch)
        except (Refused, Saving):
            self._memory.postpone(branch)

    def _stage_all(self, branch: Branch) -> None:
        for part in branch.parts.values():
            part.cut()
        self._stage(branch, [part for part in branch.parts.values() if part.waiting])
        self._stage_rest(branch)

    def _stage_rest(self, branch: Branch) -> None:
        """Stage what was buffered behind chunks that had been waiting."""
        rest = [part for part in branch.parts.values() if part.data]
        for part in rest:
            part.cut()
        self._stage(branch, rest)

    def _stage(self, branch: Branch, parts: list[GatheredPart]) -> None:
        """Stage the waiting chunks of these parts. Raises Refused, Saving: it can be repeated."""
        if parts:
            # Before the call: a part of the chunks may be stored although it raises.
            branch.staged = True
            self._staging.stage(
                self._request(branch, [part.chunk(seal=False) for part in parts], None), *self._who(branch)
            )
            for part in parts:
                self._memory.add(branch, -len(part.waiting))
                part.staged()

    def _who(self, branch: Branch) -> tuple[Caller, Channel | None]:
        """Return the caller it counts for, and the connection with which it ends."""
        return branch.channel.caller, branch.channel if branch.local else None

    def _request(self, branch: Branch, chunks: list[Chunk], decide: Decide | None) -> Stage:
        return Stage(
            transaction=branch.id,
            chunks=tuple(chunks),
            born_ms=self._clock.now_ms(),
            born_host=branch.born_host,
            lifetime=PartLifetime.CONNECTION,  # also of XA branches, without a channel: a restart rolls back unprepared ones
            decide=decide,
        )

    def decide(self, branch: Branch, outcome: DecisionOutcome) -> TransactionDecision:
        """Stage the rest, seal the parts, and decide. Raises Refused; Saving: it can be repeated."""
        waiting = [part for part in branch.parts.values() if part.waiting and part.data]
        self._stage(branch, waiting)
        chunks = []
        for part in branch.parts.values():
            part.cut()
            if part.waiting:
                chunks.append(part.chunk(seal=True))
            elif not part.sealed:
                self._staging.seal(
                    SealPart(transaction=branch.id, part=part.part, seal=part.seal), branch.channel.caller
                )
                part.sealed = True
        decide = Decide(
            transaction=branch.id,
            outcome=outcome,
            parts=tuple(part.manifest(self._broker) for part in branch.parts.values()),
            label="" if branch.local else str(branch.key),
        )
        request = self._request(branch, chunks, decide)
        branch.staged = True
        decision: TransactionDecision | None
        if chunks:
            decision = self._staging.stage(request, *self._who(branch)).decision
        else:
            decision = self._staging.decide(decide, None).decision
        if decision is None or decision.outcome is not outcome:
            raise Refused(Reason.INVALID, f"the transaction {branch.key} was ended by somebody else")
        return decision
