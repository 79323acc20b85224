"""Retention of topics by MetaQ 1.x's deletePolicy and deleteWhen, and work that must be done before files are deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.part import BrokerPart
from metaq.errors import Refused
from metaq.model.cron import Cron, parse_cron
from metaq.model.metaq1.settings import Expired
from metaq.model.retention import TopicRetention
from metaq.options import Metaq1Options
from metaq.saved import Saving
from metaq.store.message_reader import MessageReader
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.archive import Archiver
from metaq.store.queues.table import QueueKey

ARCHIVE_FOLDER = "archive"

_DEFAULT = Metaq1Options().delete_policy, Metaq1Options().delete_when

CallSoon = Callable[[Callable[[], None]], None]
_Question = tuple[str, int, tuple[int, ...]]


class PartitionRetentions:
    """Retention rules per topic, read from the rules in force, which a reload replaces."""

    def __init__(self, settings: Metaq1Settings) -> None:
        self._settings = settings
        self._crons: dict[str, Cron] = {}

    def of(self, topic: str) -> TopicRetention:
        """Return a topic's rule, see `Retentions`."""
        settings = self._settings.rules.settings(topic)
        text = settings.delete_when
        cron = self._crons.get(text)
        if cron is None:  # parsed when the configuration was read, so it raises nothing here
            cron = self._crons[text] = parse_cron(text)
        return TopicRetention(settings.delete_policy, cron)


class _Places:
    """Byte positions for the archiver's thread, looked up on the event loop. The archiver asks again until it has an answer."""

    def __init__(self, bases: Bases, call_soon: CallSoon) -> None:
        self._bases, self._call_soon = bases, call_soon
        self._known: dict[_Question, tuple[int, ...]] = {}
        self._misfits: dict[QueueKey, frozenset[int]] = {}

    def __call__(self, topic: str, queue_id: int, queue_offsets: tuple[int, ...]) -> tuple[int, ...] | None:
        """See `metaq.store.metaq1.archive.PositionsOf`."""
        question = topic, queue_id, queue_offsets
        if question not in self._known:
            self._call_soon(lambda: self._look_up(question))
        # Taken out: answers are not kept, the archiver asks once for each file.
        return self._known.pop(question, None)

    def misfits(self, topic: str, queue_id: int) -> frozenset[int] | None:
        """See `metaq.store.metaq1.archive.PositionsOf`."""
        if (topic, queue_id) not in self._misfits:
            self._call_soon(lambda: self._look_for_misfits(topic, queue_id))
        return self._misfits.pop((topic, queue_id), None)

    def _look_for_misfits(self, topic: str, queue_id: int) -> None:
        positions = self._bases.find(topic, queue_id)
        if positions is not None:

            def looked(error: Refused | None) -> None:
                if error is None:
                    self._misfits[topic, queue_id] = positions.misfits

            positions.verify().when_done(looked)

    def _look_up(self, question: _Question) -> None:
        topic, queue_id, queue_offsets = question
        try:
            positions = self._bases.touch(topic, queue_id)
            self._known[question] = tuple(positions.position(offset) for offset in queue_offsets)
        except (Saving, Refused):  # being computed, or not storable now: the archiver asks again
            pass
        except ValueError:  # the messages are deleted meanwhile, or never had positions
            with contextlib.suppress(Saving, Refused):
                if queue_offsets[0] < positions.begin:
                    self._known[question] = -1, positions.begin


class _Bases:
    """Lets retention delete only as far as durable bases of byte positions allow."""

    def __init__(self, reader: MessageReader, bases: Bases, call_soon: CallSoon) -> None:
        self._reader, self._bases, self._call_soon = reader, bases, call_soon

    def may_go(self, topic: str, log_offset: int) -> bool:
        """See `metaq.store.retention.floors.Ask`."""
        late = [
            queue.queue_id
            for queue in self._reader.queues().values()
            if queue.topic == topic and queue.first_at(log_offset) > self._bases.settled(topic, queue.queue_id)
        ]
        # Asked by the thread that deletes; bases belong to the event loop, so deletion waits for the next round.
        if late:
            self._call_soon(lambda: self._carry(topic, late))
        return not late

    def _carry(self, topic: str, queue_ids: list[int]) -> None:
        for queue_id in queue_ids:
            self._bases.carry_queue(topic, queue_id)


class Metaq1Retention(BrokerPart):
    """Applies deletePolicy and deleteWhen to the store, also after a reload, and archives topics with the policy `archive`.

    Without topic sections and with the defaults, `fileReservedTime` stays in force for all topics: switching MetaQ
    1.x on must not by itself change how long messages are kept.
    """

    def __init__(self, store: MessageStore, settings: Metaq1Settings, bases: Bases, call_soon: CallSoon) -> None:
        self._store, self._settings, self._bases, self._call_soon = store, settings, bases, call_soon
        self._retentions = PartitionRetentions(settings)
        options = settings.options
        self._archiver = Archiver(
            store,
            Path(options.archive_path).expanduser() if options.archive_path else store.folder.root / ARCHIVE_FOLDER,
            lambda topic: self._retentions.of(topic).policy,
            _Places(bases, call_soon),
            broker_id=options.broker_id,
            at_once=options.quartz_thread_count,
        )
        self._in_force = False

    def open(self) -> None:
        """Put the rules in force. Raises ConfigError: deleteWhen of [system] cannot be parsed."""
        parse_cron(self._settings.options.delete_when)
        # Asked without rules too: an administrator may trim a topic.
        self._store.keeper.before_letting_go(_Bases(self._store.reader, self._bases, self._call_soon).may_go)
        self._store.keeper.before_letting_go(self._archiver.may_go)
        self._settings.watch(lambda _names: self._choose())
        self._choose()

    def _choose(self) -> None:
        options, store = self._settings.options, self._store
        if not self._settings.rules.sections and (options.delete_policy, options.delete_when) == _DEFAULT:
            store.keeper.retain_by(None)
            return
        store.keeper.retain_by(self._retentions)
        # Once: a reload changes the rules that it looks at, not the hook.
        if not self._in_force:
            self._in_force = True
            store.keeper.owes(self._archiver)

    def archives(self, topic: str) -> bool:
        """Return whether a topic's messages are archived, log file by log file, before they go."""
        return self._retentions.of(topic).policy.what is Expired.ARCHIVE

    def close(self) -> None:
        """End the archiver's thread. `Bases`, which it needs for positions, is closed after this."""
        self._archiver.stop()
