"""Transactions of 1.x clients against a model of them, on a disk whose power can be cut.

Whatever is begun, put, prepared, ended, by clients or by hand, whatever times out, whichever connection ends, and at whichever
record the broker dies: what consumers see is what was committed, whole, once, together and in the order of the commits; and what is
prepared waits for its end.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Struct, field

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.metaq1 import branch_staging, gathering
from metaq.broker.metaq1.transactions import Metaq1Transactions
from metaq.broker.staged import admission as staging_admission
from metaq.broker.staged import apply as staging_apply
from metaq.broker.staged import service as staging
from metaq.clock import FakeClock
from metaq.errors import Refused
from metaq.model import TopicConfig
from metaq.model.metaq1.partition import PartitionPut
from metaq.model.transactions.metaq1 import BranchKey, BranchRefused, LocalKey, TransactionKey, Vote
from metaq.model.transactions.staging import DecisionOutcome
from metaq.options import BrokerOptions, Metaq1Options, StoreOptions
from metaq.store.config_file import ConfigFile
from metaq.store.log.scan import LogScan
from metaq.store.message_store import MessageStore
from metaq.testing.power import PowerLossDisk
from tests.broker.metaq1.test_partitions import settings
from tests.broker.staged.support import run_steps, stored
from tests.broker.support import BORN_HOST, STORE_HOST, FakeChannel
from tests.crash.mortal_broker import APPENDS
from tests.effort import repeats

PLACES = [("test", 0), ("test", 1), ("stock", 0)]
XIDS = [BranchKey(7, bytes([number]), b"", "q") for number in range(3)]
LOCALS = [LocalKey("s", number) for number in range(2)]
KEYS = st.sampled_from([*XIDS, *LOCALS])
Place = tuple[str, int]


class Died(BaseException):
    """The broker has come to its fault point: nothing catches that."""


class MortalStore(MessageStore):
    """Dies behind so many more records, if `left` is above 0. From then on nothing is done: a killed process has no `finally`."""

    left = 0
    dead = False

    def _open(self, tail: Any, opened: contextlib.ExitStack) -> None:
        super()._open(tail, opened)
        for name in APPENDS:
            setattr(self.writer, name, self._mortal(getattr(self.writer, name)))

    def _mortal(self, append: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.dead:
                raise Died
            begin = self.log.end
            try:
                return append(*arguments, **named)
            finally:
                self._count(begin)

        return call

    def _count(self, begin: int) -> None:
        if not self.left:
            return
        heads = [head for heads in LogScan(self.log.run, begin, self.log.end, check_crc=False) for head in heads]
        if len(heads) < self.left:
            self.left -= len(heads)
            return
        last = heads[self.left - 1]
        self.left, self.dead = 0, True
        if last.log_offset + last.size < self.log.end:
            self._writer.truncate(last.log_offset + last.size)
        raise Died


class Kept(Struct, eq=False):
    """A transaction, as its client knows it."""

    messages: dict[Place, list[bytes]] = field(default_factory=dict)
    channel: int = 0
    deadline: float | None = None

    @property
    def empty(self) -> bool:
        return not self.messages


class BranchesModel(RuleBasedStateMachine):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = contextlib.ExitStack()
        for module, name, value in [
            (staging, "AT_ONCE_BYTES", 3000), (staging_admission, "AT_ONCE_BYTES", 3000), (staging_apply, "AT_ONCE_BYTES", 3000),
            (branch_staging, "CHUNK_BYTES", 1000), (gathering, "SHARE_BYTES", 5000),
            (gathering, "GATHERED_BYTES", 8000),
        ]:  # fmt: skip
            self.patches.enter_context(mock.patch.object(module, name, value))
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="metaq-branches-"))
        self.folders = (self.base / str(number) for number in itertools.count())
        self.clock = FakeClock()
        self.serial = itertools.count()
        self.disk = PowerLossDisk(next(self.folders), 1)
        self.locals: dict[tuple[int, LocalKey], Kept] = {}
        self.branches: dict[BranchKey, Kept] = {}
        self.prepared: dict[BranchKey, Kept] = {}
        self.by_hand: dict[BranchKey, DecisionOutcome] = {}
        self.delivered: dict[Place, list[bytes]] = {place: [] for place in PLACES}
        self.open()

    def open(self) -> None:
        self.disk.used = 10.0
        self.channels = [FakeChannel(f"127.0.0.1:{50_000 + number}") for number in range(2)]
        options = StoreOptions(
            store_path_root_dir=str(self.disk.root), mapped_file_size_commit_log=256 * 1024,
            mapped_file_size_consume_queue=20 * 500, max_hash_slot_num=13, max_index_num=400, max_message_size=20_000,
        )  # fmt: skip
        self.store = MortalStore(options, self.clock, STORE_HOST, "DefaultCluster", disk=self.disk, threads=False)
        table = BrokerOptions(broker_name="broker-a", broker_cluster_name="DefaultCluster")
        environment = Environment(table, options, self.clock, self.store, "broker-a", STORE_HOST)
        config = self.disk.root / "config"
        text = settings(Metaq1Options(broker_id=7, max_tx_timeout_in_seconds=60), test=2, stock=1)
        files = broker_files(lambda name: ConfigFile(config / name, self.disk))
        self.broker = Broker(environment, files, metaq1=text)
        self.broker.lead()
        for topic in ("test", "stock"):
            self.broker.topics.update(TopicConfig(topic, 2, 2))
        self.store.flusher.flush()

    def teardown(self) -> None:
        try:
            self.end_all()
            self.broker.close()
            self.store.close()
            self.disk.close()
        finally:
            shutil.rmtree(self.base)
            self.patches.close()

    @property
    def service(self) -> Metaq1Transactions:
        assert self.broker.metaq1 is not None
        return self.broker.metaq1.transactions

    # ------------------------------------------------------------------ what is known

    def kept(self, key: TransactionKey, channel: int) -> Kept | None:
        return self.locals.get((channel, key)) if isinstance(key, LocalKey) else self.branches.get(key)

    def drop(self, key: TransactionKey, channel: int) -> None:
        if isinstance(key, LocalKey):
            del self.locals[channel, key]
        else:
            del self.branches[key]

    def deliver(self, kept: Kept) -> None:
        for place, bodies in kept.messages.items():
            self.delivered[place] += bodies

    def refused(self, act: Callable[[], object]) -> None:
        with pytest.raises(Refused):
            act()

    # ------------------------------------------------------------------ clients

    @rule(key=KEYS, channel=st.integers(0, 1), seconds=st.sampled_from([0, 0, 5, 1000]))
    def begin(self, key: TransactionKey, channel: int, seconds: int) -> None:
        if key in self.by_hand:
            self.refused(lambda: self.service.begin(key, seconds, self.channels[channel]))
            return
        self.service.begin(key, seconds, self.channels[channel])
        if key in self.prepared or self.kept(key, channel) is not None:
            return
        kept = Kept(channel=channel, deadline=self.clock.monotonic() + min(seconds, 60) if seconds else None)
        if isinstance(key, LocalKey):
            self.locals[channel, key] = kept
        else:
            self.branches[key] = kept

    @rule(key=KEYS, channel=st.integers(0, 1), place=st.sampled_from(PLACES), size=st.sampled_from([10, 10, 300, 900, 2500]),
          count=st.integers(1, 4))  # fmt: skip
    def put(self, key: TransactionKey, channel: int, place: Place, size: int, count: int) -> None:
        kept = self.kept(key, channel)
        for _ in range(count):
            body = b"%06d" % next(self.serial) + bytes(size)
            put = PartitionPut(topic=place[0], partition=place[1], body=body, born_host=BORN_HOST)
            act = lambda put=put: self.service.put(key, put, self.channels[channel])  # noqa: E731
            if kept is None:
                self.refused(act)
                return
            assert act().position == -1
            kept.messages.setdefault(place, []).append(body)

    @rule(key=KEYS, channel=st.integers(0, 1))
    def begin_and_fill(self, key: TransactionKey, channel: int) -> None:
        """What most clients do."""
        self.begin(key, channel, 0)
        for place in PLACES:
            self.put(key, channel, place, 300, 2)

    @rule(key=KEYS, channel=st.integers(0, 1), dies=st.integers(0, 12), power=st.booleans())
    def prepare(self, key: TransactionKey, channel: int, dies: int, power: bool) -> None:
        kept = self.kept(key, channel)
        if isinstance(key, LocalKey) or kept is None:
            self.refused(lambda: self.service.prepare(key, self.channels[channel]))
            return
        if kept.empty:
            assert self.service.prepare(key, self.channels[channel]).vote is Vote.READ_ONLY
            self.drop(key, channel)
        elif self.lives(lambda: self.service.prepare(key, self.channels[channel]), dies, power):
            self.drop(key, channel)
            self.prepared[key] = kept
        elif key in self.service.recover(None):
            self.prepared[key] = kept

    @rule(key=KEYS, channel=st.integers(0, 1), one_phase=st.booleans(), dies=st.integers(0, 15), power=st.booleans())
    def commit(self, key: TransactionKey, channel: int, one_phase: bool, dies: int, power: bool) -> None:
        act = lambda: self.service.commit(key, self.channels[channel], one_phase=one_phase)  # noqa: E731
        if key in self.prepared:
            assert isinstance(key, BranchKey)
            if self.lives(act, dies, power) or key not in self.service.recover(None):
                self.deliver(self.prepared.pop(key))
            return
        kept = self.kept(key, channel)
        if kept is None or not (one_phase or isinstance(key, LocalKey)):
            self.refused(act)
            return
        if self.lives(act, dies, power):
            self.drop(key, channel)
            self.deliver(kept)
        elif any(bodies[0] in self.found(place) for place, bodies in kept.messages.items()):
            self.deliver(kept)

    @rule(key=KEYS, channel=st.integers(0, 1), dies=st.integers(0, 3), power=st.booleans())
    def rollback(self, key: TransactionKey, channel: int, dies: int, power: bool) -> None:
        act = lambda: self.service.rollback(key, self.channels[channel])  # noqa: E731
        if key in self.prepared:
            assert isinstance(key, BranchKey)
            if self.lives(act, dies, power) or key not in self.service.recover(None):
                del self.prepared[key]
        elif self.kept(key, channel) is None:
            self.refused(act)
        elif self.lives(act, dies, power):
            self.drop(key, channel)

    @rule(key=st.sampled_from(XIDS), outcome=st.sampled_from([DecisionOutcome.COMMIT, DecisionOutcome.ROLLBACK]), dies=st.integers(0, 8),
          power=st.booleans())  # fmt: skip
    def end_by_hand(self, key: BranchKey, outcome: DecisionOutcome, dies: int, power: bool) -> None:
        act = lambda: self.service.end_by_hand(str(key), outcome)  # noqa: E731
        if key not in self.prepared:
            self.refused(act)
            return
        if not self.lives(act, dies, power):
            try:  # it is remembered, or nothing was done
                self.service.rollback(key, self.channels[0])
            except BranchRefused:
                assert key in self.service.recover(None)
            else:
                del self.prepared[key]
                return
        kept = self.prepared.pop(key)
        self.by_hand[key] = outcome
        if outcome is DecisionOutcome.COMMIT:
            self.deliver(kept)

    @rule(key=st.sampled_from(XIDS))
    def forget(self, key: BranchKey) -> None:
        self.service.forget(key)
        self.by_hand.pop(key, None)
        self.store.flusher.flush()

    # ------------------------------------------------------------------ the world

    def lives(self, act: Callable[[], object], dies: int, power: bool) -> bool:
        """Whether it was done, and is durable. `dies`: behind so many records of it."""
        self.store.left = dies
        try:
            act()
            run_steps(self.broker)
        except Died:
            self.crash(power)
            return False
        self.store.left = 0
        self.store.flusher.flush()
        return True

    def crash(self, power: bool) -> None:
        self.disk, old = self.disk.cut(next(self.folders)) if power else self.disk.kill(next(self.folders)), self.disk
        self.store.folder.close()
        old.close()
        self.locals.clear()
        self.branches.clear()
        self.open()
        self.settle()

    @rule(power=st.booleans())
    def die(self, power: bool) -> None:
        self.crash(power)

    @rule()
    def restart(self) -> None:
        self.broker.close()
        self.store.close()
        self.disk.restart()
        self.locals.clear()
        self.branches.clear()
        self.open()
        self.settle()

    @rule(channel=st.integers(0, 1))
    def connection_ends(self, channel: int) -> None:
        self.broker.closed(self.channels[channel])
        self.channels[channel] = FakeChannel(f"127.0.0.1:{next(self.serial) % 10_000 + 10_000}")
        self.locals = {place: kept for place, kept in self.locals.items() if place[0] != channel}

    @rule(seconds=st.sampled_from([1, 6, 61]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.settle()
        now = self.clock.monotonic()
        for table in (self.locals, self.branches):
            for key in [key for key, kept in table.items() if kept.deadline is not None and kept.deadline <= now]:
                del table[key]

    @rule()
    def carry(self) -> None:
        """Retention has come to everything that is there."""
        self.broker.staging.carry(self.store.log.end)
        self.settle()
        self.store.flusher.flush()

    def settle(self) -> None:
        self.broker.tick()
        run_steps(self.broker)
        self.store.flusher.flush()

    # ------------------------------------------------------------------ what must hold

    def found(self, place: Place) -> list[bytes]:
        return [message.body for message in stored(self.broker, *place)]

    @invariant()
    def consumers_see_what_was_committed_and_managers_what_is_in_doubt(self) -> None:
        assert {place: self.found(place) for place in PLACES} == self.delivered
        assert set(self.service.recover(None)) == set(self.prepared) | set(self.by_hand)
        assert len(self.service.listing()) == sum(map(len, (self.prepared, self.by_hand, self.locals, self.branches)))
        if not (self.locals or self.branches or self.prepared):
            self.broker.tick()
            assert self.broker.staging.held == (0, 0)

    def end_all(self) -> None:
        """In the end everything can be ended."""
        for key in list(self.prepared):
            self.service.commit(key, self.channels[0], one_phase=False)
            self.deliver(self.prepared.pop(key))
        for key in list(self.by_hand):
            self.forget(key)
        for (channel, key), kept in list(self.locals.items()):
            self.service.commit(key, self.channels[channel], one_phase=True)
            self.deliver(kept)
        self.locals.clear()
        self.settle()
        self.consumers_see_what_was_committed_and_managers_what_is_in_doubt()


class LongBranchesModel(BranchesModel):
    """The same, for longer."""


BranchesModel.TestCase.settings = profile(
    max_examples=repeats(25), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
LongBranchesModel.TestCase.settings = profile(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactionsHoldWhatTheyPromise = BranchesModel.TestCase


@pytest.mark.all
class TestTransactionsHoldItForLong(LongBranchesModel.TestCase):
    """In `make test-all`."""
