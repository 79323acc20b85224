"""Byte positions against the simplest model of them: sums of frame sizes, whatever happens to the disk and the folder."""

from __future__ import annotations

import functools
import itertools
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaq.app.files import broker_files
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.clock import FakeClock, seeded
from metaq.errors import Refused
from metaq.model.message import SysFlag
from metaq.options import BrokerOptions
from metaq.saved import Saving
from metaq.store.config_file import ConfigFile
from metaq.store.log.writer import PutRecord
from metaq.store.message_store import MessageStore
from metaq.store.metaq1.queue_positions import QueuePositions
from metaq.testing.power import PowerLossDisk
from tests.broker.metaq1 import support
from tests.broker.support import BORN_HOST, STORE_HOST, small_store
from tests.crash.simulation.simulation import scratch
from tests.effort import repeats

T = TypeVar("T")
QUEUES = [("orders", 0), ("orders", 1), ("other", 0)]
KINDS = ["plain", "tagged", "attributed", "compressed", "block"]


class Model:
    """What one queue's positions must be."""

    def __init__(self, before: Model | None = None) -> None:
        self.sizes: list[int] = []
        """Frame sizes by queue offset."""
        self.told: int | None = None
        """The last position of the deleted topic before this one; None: nobody was told any."""
        if before is not None:
            self.told = before.told if before.base is None else before.position(len(before.sizes))
        self.base: tuple[int, int] | None = None
        """(queue offset, position) that somebody was told; None: nothing was."""

    @property
    def begin(self) -> int:
        """What lies before it had left the log when positions began."""
        offset = self.base[0] if self.base else 0
        while offset > 0 and self.position(offset - 1) >= 0:
            offset -= 1
        return offset

    def position(self, offset: int) -> int:
        assert self.base is not None
        start, position = self.base
        return position + sum(self.sizes[start:offset]) - sum(self.sizes[offset:start])


class BasesModel(RuleBasedStateMachine):
    """A position that was told never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="metaq-bases-", dir=scratch()))
        self.roots = (self.folder / str(number) for number in itertools.count())
        self.clock = FakeClock()
        self.models = {key: Model() for key in QUEUES}
        self.serial = 0
        self.disk = PowerLossDisk(next(self.roots))
        self.open()

    def teardown(self) -> None:
        self.disk.sync_error = self.disk.open_error = 0
        self.broker.close()
        self.store.close()
        self.disk.close()
        shutil.rmtree(self.folder)

    def open(self) -> None:
        options = small_store(
            self.disk.root, mapped_file_size_commit_log=64 << 10, mapped_file_size_consume_queue=20 * 64,
            message_index_enable=False, file_reserved_time=1,
        )  # fmt: skip
        table = BrokerOptions(broker_name="broker-a", broker_cluster_name="DefaultCluster")
        self.store = MessageStore(
            options, self.clock, STORE_HOST, table.broker_cluster_name, disk=self.disk, threads=False
        )
        environment = Environment(table, options, self.clock, self.store, "broker-a", STORE_HOST)
        root, disk = self.disk.root, self.disk
        files = broker_files(lambda name: ConfigFile(root / "config" / name, disk))
        self.broker = Broker(environment, files, metaq1=support.settings())
        self.broker.lead()

    def ask(self, question: Callable[[], T]) -> T:
        for _ in range(200):
            try:
                return question()
            except Saving:
                self.work()
        raise AssertionError("it is never known")

    def work(self) -> None:
        self.clock.advance(0.1)
        self.store.flusher.flush()
        self.broker.deliver()

    # ------------------------------------------------------------------ messages and questions

    @rule(key=st.sampled_from(QUEUES), kind=st.sampled_from(KINDS), count=st.integers(1, 120), body=st.integers(0, 200))
    def send(self, key: tuple[str, int], kind: str, count: int, body: int) -> None:
        for _ in range(count):
            self.serial += 1
            payload = str(self.serial).encode().ljust(body, b".")
            record = PutRecord(*key, payload, b"KEYS\x01k", 0, 0, 1, BORN_HOST)
            size = 20 + len(payload)
            if kind == "tagged":
                record.properties, size = b"TAGS\x01red\x02KEYS\x01k", size + 4 + 3
            elif kind == "attributed":
                record.properties, size = b"METAQ_ATTRIBUTE\x01a || b", size + 4 + 6
            elif kind == "compressed":
                record.body, record.sys_flag = zlib.compress(payload), int(SysFlag.COMPRESSED)
            elif kind == "block":
                record.properties = b"TAGS\x01red\x02METAQ_BLOCK\x011"
            try:
                self.broker.appender.put([record])
            except Refused:
                return
            self.models[key].sizes.append(size)

    @rule(key=st.sampled_from(QUEUES))
    def touch(self, key: tuple[str, int]) -> None:
        positions = self.ask(lambda: self.broker.metaq1.bases.touch(*key))
        model = self.models[key]
        low = self.store.reader.queue(*key).min_offset
        if model.base is None:
            first = self.ask(lambda: positions.position(low))
            model.base = low, first
            assert first > model.told if model.told is not None else first == 0

    def told(self) -> list[tuple[Model, QueuePositions]]:
        keys = [key for key, model in self.models.items() if model.base is not None]
        return [(self.models[key], self.ask(functools.partial(self.broker.metaq1.bases.touch, *key))) for key in keys]

    @rule()
    def all_positions_are_what_they_were(self) -> None:
        for model, positions in self.told():
            queue = self.store.reader.queue(positions.topic, positions.queue_id)
            assert queue.max_offset == len(model.sizes)
            begin = self.ask(lambda: positions.begin)  # noqa: B023  asked at once
            assert begin == max(queue.min_offset, model.begin)
            offsets = range(begin, queue.max_offset + 1)
            found = [self.ask(functools.partial(positions.position, offset)) for offset in offsets]
            assert found == [model.position(offset) for offset in offsets]
            assert self.ends(positions) == (found[0], found[-1])

    def ends(self, positions: QueuePositions) -> tuple[int, int]:
        return self.ask(lambda: positions.min), self.ask(lambda: positions.max)

    @rule(part=st.floats(0, 1), more=st.integers(-3, 3))
    def a_place_is_found(self, part: float, more: int) -> None:
        for model, positions in self.told():
            queue = self.store.reader.queue(positions.topic, positions.queue_id)
            low, high = self.ends(positions)
            wanted = low + int((high - low) * part) + more
            offset, position = self.ask(functools.partial(positions.at, wanted))
            assert position == model.position(offset)
            if low <= wanted < high:
                assert position <= wanted < model.position(offset + 1)
            else:
                assert offset == (max(queue.min_offset, model.begin) if wanted < low else queue.max_offset)

    @rule(times=st.integers(1, 5))
    def work_goes_on(self, times: int) -> None:
        for _ in range(times):
            self.work()
        if self.disk.sync_error == 0:
            self.store.keeper.checkpoint()

    @rule()
    def retention(self) -> None:
        """What is old goes; what positions are computed from is carried first."""
        self.clock.advance(2 * 3600)
        for _ in range(8):
            self.store.keeper.retain(self.clock.now_ms(), at_once=True)
            self.clock.advance(6)
            self.work()
        for key, model in self.models.items():
            if model.base is not None and (queue := self.store.reader.existing_queue(*key)):
                assert self.broker.metaq1.bases.settled(*key) >= 0 or queue.min_offset == 0

    @rule(topic=st.sampled_from(["orders", "other"]))
    def delete(self, topic: str) -> None:
        outcome = self.broker.delete_topic(topic) if self.is_there(topic) else None
        if outcome is None:
            return
        for _ in range(10):
            self.work()
        assert outcome.done
        assert outcome.error is None
        for key in QUEUES:
            if key[0] == topic:
                self.models[key] = Model(self.models[key])

    def is_there(self, topic: str) -> bool:
        return any(key[0] == topic and queue.max_offset for key, queue in self.store.reader.queues().items())

    # ------------------------------------------------------------------ how it ends, and what is lost

    def again(self, disk: PowerLossDisk | None = None) -> None:
        before = self.disk
        if disk is not None:
            with_errors = self.broker, self.store
            before.sync_error = before.open_error = 0
            with_errors[0].close()
            with_errors[1].close()
            before.close()
            self.disk = disk
        self.open()
        for key, model in self.models.items():
            queue = self.store.reader.existing_queue(*key)
            del model.sizes[queue.max_offset if queue else 0 :]  # what a power cut took was never acknowledged
        self.all_positions_are_what_they_were()

    def stop(self) -> None:
        self.broker.close()
        self.store.close()

    @rule()
    def stop_and_start(self) -> None:
        self.stop()
        self.again()

    @rule()
    def kill(self) -> None:
        self.again(self.disk.kill(next(self.roots)))

    @rule()
    def power_cut(self) -> None:
        self.again(self.disk.cut(next(self.roots)))

    @rule()
    def folder_lost(self) -> None:
        self.stop()
        shutil.rmtree(self.disk.root / "positions", ignore_errors=True)
        self.again()

    @rule(number=st.integers(0, 1 << 30), place=st.floats(0, 1), length=st.integers(1, 5000), byte=st.integers(0, 255))
    def file_damaged(self, number: int, place: float, length: int, byte: int) -> None:
        """Some bytes of a file of positions are others, behind the broker's back."""
        self.stop()
        files = sorted((self.disk.root / "positions").glob("*/*/*"))
        if files:
            path = files[number % len(files)]
            data = bytearray(path.read_bytes())
            end = len(data.rstrip(b"\0"))
            start = int(end * place)
            data[start : start + min(length, len(data) - start)] = bytes([byte]) * min(length, len(data) - start)
            path.write_bytes(data)
        self.again()

    @rule(number=st.integers(0, 1 << 30), empty=st.booleans())
    def file_lost(self, number: int, empty: bool) -> None:
        self.stop()
        files = sorted((self.disk.root / "positions").glob("*/*/*"))
        if files:
            path = files[number % len(files)]
            path.write_bytes(b"") if empty else path.unlink()
        self.again()

    @precondition(lambda self: self.goes_on_when_copied())
    @rule()
    def copied(self) -> None:
        """The log goes on in another folder, without anything else."""
        self.stop()
        root = next(self.roots)
        shutil.copytree(self.disk.root / "commitlog", root / "commitlog")
        self.disk.close()
        self.disk = PowerLossDisk(root)
        self.again()

    def goes_on_when_copied(self) -> bool:
        """Whether each queue has a message left, from which a copy of the log counts on; and no topic was deleted: it would come back."""
        queues = [queue for key in QUEUES if (queue := self.store.reader.existing_queue(*key)) is not None]
        return not self.store.deleted and all(
            queue.max_offset == 0 or queue.min_offset < queue.max_offset for queue in queues
        )

    @rule()
    def disk_fills_up_and_is_emptied(self) -> None:
        """Files of positions cannot grow for a while."""
        self.disk.room = 0
        for key in QUEUES:
            try:
                self.send(key, "tagged", 30, 20)
                if self.models[key].base is not None:
                    self.broker.metaq1.bases.touch(*key).max  # noqa: B018  it may be refused
            except (Saving, Refused):
                pass
        self.work()
        self.disk.room = None

    @invariant()
    def is_well(self) -> None:
        assert self.store.state.failed is None


TestBases = BasesModel.TestCase
TestBases.settings = settings(
    max_examples=repeats(20), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def live(seed: int, steps: int) -> None:
    """One long life, by chance: more comes together than in the short ones."""
    chance, machine = seeded(seed), BasesModel()

    def number(limit: int) -> int:
        return int(chance.random() * limit)

    acts: list[tuple[int, Callable[[], None]]] = [
        (12, lambda: machine.send(QUEUES[number(3)], KINDS[number(5)], 1 + number(120), number(200))),
        (2, lambda: machine.touch(QUEUES[number(3)])),
        (3, machine.all_positions_are_what_they_were),
        (3, lambda: machine.a_place_is_found(chance.random(), number(7) - 3)),
        (6, lambda: machine.work_goes_on(1 + number(3))),
        (3, machine.retention),
        (1, lambda: machine.delete(("orders", "other")[number(2)])),
        (2, machine.stop_and_start),
        (2, machine.kill),
        (2, machine.power_cut),
        (1, machine.folder_lost),
        (2, lambda: machine.file_damaged(number(1 << 30), chance.random(), 1 + number(5000), number(256))),
        (1, lambda: machine.file_lost(number(1 << 30), empty=number(2) == 0)),
        (1, lambda: machine.copied() if machine.goes_on_when_copied() else None),
        (1, machine.disk_fills_up_and_is_emptied),
    ]
    chosen = [act for weight, act in acts for _ in range(weight)]
    try:
        for _ in range(steps):
            chosen[number(len(chosen))]()
            machine.is_well()
    finally:
        machine.teardown()


@pytest.mark.parametrize("seed", range(4))
def test_positions_stay_the_same_over_a_long_life(seed: int):
    """Messages of all kinds, retention, deletions, ends of every kind, damage."""
    live(seed, 120)


@pytest.mark.all
@pytest.mark.parametrize("seed", range(100, 112))
def test_positions_stay_the_same_over_many_long_lives(seed: int):
    """The same, longer."""
    live(seed, 400)
