"""Pulls with a predicate as filter: read unfiltered, evaluated in a helper process, answered later.

first / woken ──► read ──► judge ──► some pass: answer
                   ▲                 none passes: read on, until there is nothing more or the time is over
                   └── held, while there is nothing new
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import structs

from metaq.broker.log.long_polling import HeldPull, HeldPulls
from metaq.broker.pulls.predicates import Job, Predicates, passes
from metaq.clock import Clock
from metaq.errors import Reason, Refused
from metaq.options import KIB
from metaq.store.message_reader import MessageReader
from metaq.store.reads.pull import ReadResult, ReadStatus

Pull: TypeAlias = Any
PullAnswer: TypeAlias = Any
"""The types of `metaq.broker.pulls.pull`, which imports this module."""
COUNT_MAX, JUDGED_BYTES_MAX = 256, 256 * KIB
"""Messages and bytes of one question to a helper process; a single message may be larger."""
LOOK_SECONDS = 5.0
"""Time for which a pull reads on while nothing passes, s; also a pull without long polling."""
HOLD_SECONDS_MAX = 600.0
_QUEUE_OFFSET = slice(20, 28)
"""Place of QUEUEOFFSET in a record."""

AnswerOf = Callable[[Pull, ReadResult, int], PullAnswer]


class PredicatePulls:
    """Pulls with predicates, for the pull service. If a method returns None, the pull's channel is answered later."""

    def __init__(
        self, reader: MessageReader, held_pulls: HeldPulls, clock: Clock, predicates: Predicates, answer: AnswerOf
    ) -> None:
        """Args: answer: makes the response of a read from an offset, and counts it."""
        self._reader, self._held_pulls, self._clock = reader, held_pulls, clock
        self._predicates, self._answer = predicates, answer

    def first(self, pull: Pull) -> PullAnswer | None:
        """Read for a pull that has just arrived."""
        held = min(pull.hold_ms / 1000, HOLD_SECONDS_MAX)
        return self._look(pull, pull.request.offset, self._clock.monotonic() + held)

    def woken(self, pull: Pull, held: HeldPull) -> PullAnswer | None:
        """Read for a held pull whose queue has grown."""
        return self._look(pull, held.place, held.deadline)

    def overdue(self, pull: Pull, held: HeldPull) -> PullAnswer | None:
        """Read for a held pull whose deadline has passed."""
        return self._look(pull, held.place, 0.0)

    def after_cold(self, pull: Pull, pulled: ReadResult) -> PullAnswer | None:
        """Go on after a cold read."""
        return self._take(pull, pulled, pulled.next_offset, self._clock.monotonic() + pull.hold_ms / 1000)

    def _look(self, pull: Pull, place: int, deadline: float) -> PullAnswer | None:
        pulled = self._reader.pull(
            pull.admission.topic, pull.request.queue_id, place, min(pull.count_max, COUNT_MAX),
            min(pull.bytes_max, JUDGED_BYTES_MAX), None, read_end=self._reader.log_tail.read_end,
        )  # fmt: skip
        return self._take(pull, pulled, place, deadline)

    def _take(self, pull: Pull, pulled: ReadResult, place: int, deadline: float) -> PullAnswer | None:
        if pulled.status is ReadStatus.FOUND:
            records = _records(pulled.body)
            done = functools.partial(self._judged, pull, pulled, deadline)
            self._predicates.judge(
                pull.admission.group.name, pull.admission.predicate, records, done, owner=pull.channel
            )
            return None
        if pulled.status is ReadStatus.OFFSET_OVERFLOW_ONE and self._clock.monotonic() < deadline:
            key = (pull.admission.topic, pull.request.queue_id)
            if self._held_pulls.hold(HeldPull(pull.channel, key, place, deadline, pull, size=pull.size)):
                return None
        if pulled.status is ReadStatus.OFFSET_OVERFLOW_ONE and place > pull.request.offset:
            # Not NO_NEW_MSG: the client goes on behind what was refused, instead of having it evaluated again.
            pulled = structs.replace(pulled, status=ReadStatus.NO_MATCHED_MESSAGE)
        return self._answer(pull, pulled, place)

    def _judged(self, pull: Pull, pulled: ReadResult, deadline: float, job: Job) -> None:
        try:
            answer = self._after(pull, pulled, deadline, job)
        except Exception as error:  # noqa: BLE001  sent to this client; other pulls go on
            pull.channel.answer_pull(pull, error)
        else:
            if answer is not None:
                pull.channel.answer_pull(pull, answer)

    def _after(self, pull: Pull, pulled: ReadResult, deadline: float, job: Job) -> PullAnswer | None:
        judged, following = len(job.verdicts), pulled.next_offset
        if judged < len(job.records):
            if not judged:
                raise Refused(Reason.BUSY, f"[OVERLOAD]system busy: {job.why or f'{job.predicate} is slow'}; ask again")
            # The time was over before all were evaluated: the client continues at the first that was not.
            following = int.from_bytes(job.records[judged][_QUEUE_OFFSET], "big")
        taken = [record for record, verdict in zip(job.records, job.verdicts, strict=False) if passes(verdict)]
        if taken:
            body = b"".join(taken)
            found = structs.replace(pulled, next_offset=following, body=body, count=len(taken))
            return self._answer(pull, found, following)
        # A pull without long polling reads on for LOOK_SECONDS too: a response per refused run would cost a round trip.
        if self._clock.monotonic() < max(deadline, job.deadline - LOOK_SECONDS) and judged == len(job.records):
            return self._look(pull, following, deadline)
        none = structs.replace(pulled, status=ReadStatus.NO_MATCHED_MESSAGE, next_offset=following, body=b"", count=0)
        return self._answer(pull, none, following)


def _records(body: bytes | memoryview) -> Sequence[memoryview]:
    """Split a pull's body into records. Copied, because the log file may be unmapped before the helper answers."""
    view, at = memoryview(bytes(body)), 0
    records: list[memoryview] = []
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        records.append(view[at : at + size])
        at += size
    return records
