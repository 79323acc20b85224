"""What keeps an open store in order: retention, checkpoints, and what fails in its threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaq.model.retention import Retentions
from metaq.model.upkeep.floors import floor_of
from metaq.store.log.parts import Parts
from metaq.store.reads.repair import Repairs
from metaq.store.retention.expiry import DiskStep
from metaq.store.retention.floors import Ask, Holding
from metaq.store.retention.housekeeping import Housekeeper
from metaq.store.worker import Worker


class StoreKeeper:
    """`MessageStore.keeper`. What takes time is the housekeeping thread's: see `Housekeeper`.

    `tick`, `retain`, `owes`, `checkpoint`, `delete_expired`, `correct_queues`, `trim`, `preview` and `follow_floors` are its bound methods.
    """

    def __init__(self, parts: Parts, housekeeper: Housekeeper, repairs: Repairs, workers: Iterable[Worker]) -> None:
        """`workers`: the store's own threads."""
        self._parts, self._floors, self._repairs, self._workers = parts, housekeeper.floors, repairs, list(workers)
        self.tick, self.retain, self.owes = housekeeper.tick, housekeeper.retain, housekeeper.owes
        self.checkpoint = housekeeper.checkpoint
        self.delete_expired, self.correct_queues = housekeeper.delete_expired, housekeeper.correct_queues
        self.trim, self.preview = housekeeper.trim, housekeeper.preview
        self.follow_floors, self._housekeeper = housekeeper.follow_floors, housekeeper

    @property
    def needed_from(self) -> int:
        """LogOffset below which no service needed a record at the last look of retention."""
        return max(self._housekeeper.needed_from, self._parts.log.min)

    def retain_by(self, retentions: Retentions | None) -> None:
        """From now on, keep each topic's messages as its own rule says; None: all by `fileReservedTime`.

        A topic's min offsets move when its time is up, to where a log file begins. Above 85 percent of the disk the oldest
        files go all the same.
        """
        self._floors.retentions = retentions

    def before_letting_go(self, ask: Ask) -> None:
        """From now on, ask `ask(topic, log_offset)` before a topic lets go of what lies below; False: ask again later."""
        self._floors.ask(ask)

    def floor(self, topic: str, queue_id: int = -1) -> int:
        """LogOffset below which the topic has let go of its messages, though they may lie in the log; 0: of none.

        With `queue_id` that of one queue, which may be higher.
        """
        return floor_of(self._floors.table, topic, queue_id)

    @property
    def floors(self) -> Mapping[str, int]:
        """Topic or queue (`metaq.model.upkeep.floors`) → its floor, of those that have one. Another object whenever one has moved."""
        return self._floors.table

    @property
    def kept(self) -> Mapping[str, int]:
        """Topic → LogOffset of its oldest message, when it was last looked at; empty while no topic has a rule of its own."""
        return self._floors.kept

    @property
    def holding(self) -> Holding | None:
        """Log files that are only kept for one topic with a long time; None: there are none, or no topic has its own."""
        return self._floors.holding

    @property
    def disk_ratio(self) -> float:
        """How full the log's file system is, 0..1."""
        # The log's file system, as in RocketMQ.
        return self._parts.disk.used_percent(self._parts.folder.commit_log) / 100

    @property
    def disk_step(self) -> DiskStep:
        """What a full disk had come to at the last look of retention, every `cleanResourceInterval`."""
        return self._housekeeper.disk_step

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Size of the log's file system, and what is free of it."""
        return self._parts.disk.size_and_free(self._parts.folder.commit_log)

    @property
    def trouble(self) -> str:
        """What fails in the background, and how often in a row; "" while all is well."""
        return "; ".join(filter(None, [*(worker.trouble for worker in self._workers), self._repairs.trouble]))

    @property
    def dead(self) -> list[str]:
        """Names of the threads that have ended by themselves: what they did is not done any more."""
        return [worker.name for worker in self._workers if worker.died]

    def helped_by(self, worker: Worker) -> None:
        """From now on, `trouble` tells what fails in this worker, too."""
        self._workers.append(worker)
