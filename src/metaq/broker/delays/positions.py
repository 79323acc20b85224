"""Delivery offsets of the delay levels: `config/delayOffset.json`, completed from the log after a crash.

The file is saved every few seconds only. Each delivered copy names its delayed record in the log, and the file holds the log's
end at the time of the save: a start reads the log from there, so no message is delivered twice. RocketMQ repeats up to 10 s of
deliveries after a crash.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from metaq.errors import RemoteProtocolError
from metaq.model import DelayProgress
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.model.topics.topic import DEAD_LETTER_PREFIX
from metaq.saved_file import TextFile
from metaq.store.message_store import MessageStore
from metaq.wire.hot import RecordHead
from metaq.wire.record import copied_from, decode_record

log = logging.getLogger(__name__)

LOG_BYTES_MAX: Final = 64 << 20
"""Growth of the log after which offsets are saved early, which bounds what a start has to read, bytes."""
GIVEN_BACK_MAX: Final = 100_000
CARRIED: Final = 10_000
"""Offset between the numbers of a level's first and second queue (`metaq.broker.delays.carried`)."""
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
_DEAD_LETTERS: Final = DEAD_LETTER_PREFIX.encode()


class SchedulePositions:
    """Level → QueueOffset of the next record to deliver.

    Offsets are saved only when the copies that they count are durable. Otherwise a power cut could lose a copy and keep the
    offset behind it, and the message would be lost.
    """

    def __init__(self, store: MessageStore, file: TextFile[DelayProgress]) -> None:
        self._store, self._saved_progress = store, file
        self._file, self._format = file.file, file.format
        self._offsets: dict[int, int] = {}
        self.given_back: deque[RecordHead] = deque(maxlen=GIVEN_BACK_MAX)
        """Retries and dead letters (36) stored after the file was saved, found in the log at a start."""
        self._taken_at = -1
        """The log's end when the offsets were last taken; -1: never."""
        self._dirty = self._wanted = False
        self._pending: tuple[int, str] | None = None
        self.failing = ""
        """Reason of the last save's failure; "" if it succeeded."""

    def open(self) -> None:
        """Read the file, then the log from where the file says. Raises ConfigError: the file cannot be read."""
        found, store = self._saved_progress.read(), self._store
        self._offsets = dict(found.offsets) if found else {}
        since = None
        if found is not None:
            since = found.log_offset
        elif any(topic == SCHEDULE_TOPIC and queue.max_offset for (topic, _), queue in store.reader.queues().items()):
            # The file is lost, and there are delayed messages: all of the log is read.
            since = store.log.min
        if since is not None and since > store.log.end:
            # A power cut has shortened the log, perhaps by copies that the file counts.
            log.warning(
                "the log ends at %d, and delayOffset.json was saved at %d: all of the log is read for what was delivered",
                store.log.end, since,
            )  # fmt: skip
            self._offsets, since = {}, store.log.min
        self._taken_at = -1 if since is None else since
        self._dirty = self._wanted = since is None
        self._take_back(since)
        if since is not None:
            self._read_log(since)

    def _take_back(self, since: int | None) -> None:
        """Take back offsets that count records which came later, or are not here.

        A queue begins anew at a replica that never had its records: retention had taken them before.
        """
        for level, offset in self.offsets.items():
            queue = self._store.reader.existing_queue(SCHEDULE_TOPIC, level - 1)
            end = 0 if queue is None else queue.max_offset if since is None else queue.first_at(since)
            self.advance(level, min(offset, end))

    def _read_log(self, since: int) -> None:
        newest: dict[int, int] = {}
        carried = self._carried()
        for head in self._store.reader.heads(since):
            origin = copied_from(head.prepared_offset)
            if origin is None:
                continue
            anew = head.topic == _SCHEDULE and head.queue_id >= CARRIED
            if not anew and (head.topic == _SCHEDULE or head.topic.startswith(_DEAD_LETTERS)):
                self.given_back.append(head)
            else:  # queues are delivered and carried in order, so the newest copy is enough
                newest[head.delay_level + (CARRIED if origin in carried else 0)] = origin
        for origin in newest.values():
            self._delivered(origin)

    def _carried(self) -> set[int]:
        """Return LogOffsets of carried records that were undelivered when the offsets were saved."""
        found = set[int]()
        for (topic, queue_id), queue in self._store.reader.queues().items():
            if topic == SCHEDULE_TOPIC and queue_id >= CARRIED:
                first = max(self.next(queue_id + 1), queue.min_offset)
                found.update(unit.log_offset for unit in queue.units(first, queue.max_offset - first))
        return found

    def _delivered(self, log_offset: int) -> None:
        data = self._store.reader.record_at(log_offset)
        try:
            message = decode_record(data) if data else None
        except RemoteProtocolError:
            return
        if message is not None and message.topic == SCHEDULE_TOPIC:
            # Never back: the saved offset may be behind this record already.
            self.advance(message.queue_id + 1, max(self.next(message.queue_id + 1), message.queue_offset + 1))

    def next(self, level: int) -> int:
        return self._offsets.get(level, 0)

    def advance(self, level: int, offset: int) -> None:
        if self._offsets.get(level, 0) != offset:
            self._offsets[level], self._dirty = offset, True

    @property
    def offsets(self) -> dict[int, int]:
        """A copy of all offsets: level → QueueOffset."""
        return dict(sorted(self._offsets.items()))

    # ------------------------------------------------------------------ saving

    def save(self) -> None:
        """Save changed offsets as soon as their copies are durable."""
        self._wanted = self._wanted or self._dirty
        self.settle()

    def settle(self) -> None:
        """Save offsets whose copies have become durable. Called ten times a second, and cheap."""
        if self._store.log.end - self._taken_at >= LOG_BYTES_MAX:
            self._wanted = True
        if self._wanted and self._pending is None:
            self._take()
        if self._pending is not None and self._pending[0] <= self._store.state.flushed:
            text, self._pending = self._pending[1], None
            self._file.save_soon(lambda: text, self._saved)

    def _saved(self, error: OSError | None) -> None:
        """Note the outcome of a save, perhaps in another thread. A failed one is repeated by the next save."""
        reason = "" if error is None else error.strerror or str(error)
        if reason:
            self._dirty = True
            if reason != self.failing:  # once per reason, not at every try
                log.error("%s could not be saved: %s; it is tried again", self._file.where, reason)
        self.failing = reason

    def _take(self) -> None:
        self._dirty = self._wanted = False
        self._taken_at = self._store.log.end
        self._pending = self._taken_at, self._format.text(DelayProgress(self.offsets, self._taken_at))

    def save_once_more(self) -> None:
        """Save as they are now, without waiting. The log is durable up to its end."""
        self._take()
        self.settle()

    def close(self) -> None:
        """Flush the log, save, and wait until that is on the disk."""
        # Also when nothing was delivered: the file says from where a start reads the log.
        if self._dirty or self._wanted or self._pending is not None or self._store.log.end != self._taken_at:
            self._take()
            self._store.flusher.flush()
            self.settle()
        self._file.flush()
