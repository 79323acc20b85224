"""The store against the simplest model of it: a list of bodies per queue."""

from __future__ import annotations

import itertools
import pathlib
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaq.clock import FakeClock
from tests.effort import repeats
from tests.store.support import (
    START_MS,
    checkpoint,
    copy_running,
    dumped,
    log_file,
    message,
    open_store,
    overwrite,
    read_all,
    restart_machine,
)

QUEUES = [("orders", 0), ("orders", 1), ("%RETRY%group", 0), ("SCHEDULE_TOPIC_XXXX", 3)]


class StoreModel(RuleBasedStateMachine):
    """Whatever is put, however the store ends, and whatever derived file is lost: every queue holds what was put to it,
    in order, without a hole or a double; and so does every later put."""

    def __init__(self) -> None:
        super().__init__()
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="metaq-model-"))
        self.names = (self.base / str(number) for number in itertools.count())
        self.clock = FakeClock(START_MS)
        self.model: dict[tuple[str, int], list[bytes]] = {}
        self.log: list[tuple[int, int, tuple[str, int], str]] = []
        """(start, end, queue, key) of each record, in log order."""
        self.durable = 0
        self.serial = 0
        self.root = next(self.names)
        self.store = open_store(self.root, self.clock)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)

    # ------------------------------------------------------------------ what a broker does

    @rule(queue=st.sampled_from(QUEUES), sizes=st.lists(st.integers(1, 6000), min_size=1, max_size=8))
    def put(self, queue: tuple[str, int], sizes: list[int]) -> None:
        records = []
        for size in sizes:
            self.serial += 1
            body = str(self.serial).encode().ljust(size, b".")
            records.append(message(*queue, body, tag="a", key=f"k{self.serial}"))
        done = self.store.writer.put(records)
        held = self.model.setdefault(queue, [])
        assert done.queue_offset == len(held)
        start = done.log_offset
        for record in records:
            size = int.from_bytes(self.store.reader.record_at(start)[:4], "big")
            self.log.append((start, start + size, queue, record.keys[0].decode().partition("#")[2]))
            held.append(record.body)
            start += size
        assert start == done.log_end

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(50, 250))
    def put_many_small_ones(self, queue: tuple[str, int], count: int) -> None:
        self.put(queue, [1] * count)

    @rule(seconds=st.integers(0, 4000))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.store)
        self.durable = self.store.log.end

    # ------------------------------------------------------------------ how it ends

    def reopen(self, root: pathlib.Path) -> None:
        self.root = root
        self.store = open_store(root, self.clock)
        self.durable = self.store.log.end

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.reopen(self.root)

    def crashed(self) -> pathlib.Path:
        copy = next(self.names)
        copy_running(self.root, copy)
        self.store.close()
        return copy

    @rule()
    def kill(self) -> None:
        """kill -9."""
        self.reopen(self.crashed())

    @rule(part=st.floats(0, 1), unit=st.sampled_from([512, 4096]))
    def tear_the_log(self, part: float, unit: int) -> None:
        """The machine dies, and from some sector or page on the log never reached the disk."""
        end = self.store.log.end
        place = max(self.durable, int(self.durable + (end - self.durable) * part) // unit * unit)
        root = self.crashed()
        for path in sorted((root / "commitlog").glob("[0-9]" * 20)):  # not the one that was just being made
            start, size = int(path.name), path.stat().st_size
            if start + size > place:
                begin = max(0, place - start)
                overwrite(path, begin, bytes(size - begin))
        self._forget_from(place)
        self.reopen(root)

    @rule(which=st.floats(0, 1))
    def tear_one_record(self, which: float) -> None:
        """The machine dies, and one page is missing: whole records, that nobody may see again, lie behind it."""
        loose = [entry for entry in self.log if entry[0] >= self.durable]
        if not loose:
            return
        place = loose[min(len(loose) - 1, int(len(loose) * which))][0]
        root = self.crashed()
        overwrite(log_file(root, place - place % (64 * 1024)), place % (64 * 1024), bytes(4))
        restart_machine(root)
        self._forget_from(place)
        self.reopen(root)

    def _forget_from(self, place: int) -> None:
        kept = [entry for entry in self.log if entry[1] <= place]
        lost = self.log[len(kept) :]
        self.log = kept
        for queue in QUEUES:
            if gone := sum(1 for entry in lost if entry[2] == queue):
                del self.model[queue][-gone:]

    # ------------------------------------------------------------------ what gets lost besides

    @rule(clean=st.booleans(), queue=st.sampled_from([*QUEUES, None]))
    def lose_consume_queues(self, clean: bool, queue: tuple[str, int] | None) -> None:
        root = self._ended(clean)
        folder = root / "consumequeue" if queue is None else root / "consumequeue" / queue[0] / str(queue[1])
        shutil.rmtree(folder, ignore_errors=True)
        self.reopen(root)

    @rule(clean=st.booleans(), queue=st.sampled_from(QUEUES), part=st.floats(0, 1))
    def lose_the_last_units(self, clean: bool, queue: tuple[str, int], part: float) -> None:
        root = self._ended(clean)
        for path in sorted((root / "consumequeue" / queue[0] / str(queue[1])).glob("*"))[-1:]:
            units = path.stat().st_size // 20
            place = int(units * part) * 20
            overwrite(path, place, bytes(units * 20 - place))
        self.reopen(root)

    @rule(clean=st.booleans(), all_of_it=st.booleans())
    def lose_the_index(self, clean: bool, all_of_it: bool) -> None:
        root = self._ended(clean)
        for path in sorted((root / "index").glob("*"))[-1 if all_of_it else 0 :]:
            path.unlink()
        self.reopen(root)

    @rule(clean=st.booleans(), name=st.sampled_from(["checkpoint", "config/metaqTails.json"]))
    def lose_the_checkpoint(self, clean: bool, name: str) -> None:
        root = self._ended(clean)
        (root / name).unlink(missing_ok=True)
        (root / f"{name}.bak").unlink(missing_ok=True)
        self.reopen(root)

    def _ended(self, clean: bool) -> pathlib.Path:
        if not clean:
            return self.crashed()
        self.store.close()
        return self.root

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def every_queue_holds_what_was_put(self) -> None:
        for queue, bodies in self.model.items():
            assert read_all(self.store, *queue) == bodies
            held = self.store.reader.queue(*queue)
            assert (held.min_offset, held.max_offset) == (0, len(bodies))
            units = [(start, end - start) for start, end, owner, _ in self.log if owner == queue]
            assert [unit[:2] for unit in held.units(0, len(bodies))] == units

    @invariant()
    def the_log_holds_nothing_else(self) -> None:
        found = dumped(self.root) if self.log else []
        assert len(found) == len(self.log)
        assert self.store.log.end >= (self.log[-1][1] if self.log else 0)

    @precondition(lambda self: self.log)
    @rule(which=st.floats(0, 0.999))
    def find_by_key(self, which: float) -> None:
        start, end, queue, key = self.log[int(len(self.log) * which)]
        if not key:
            return
        record = self.store.reader.record_at(start)
        assert len(record) == end - start
        assert record in self.store.reader.query(queue[0], key, 64, 0, 1 << 60)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=repeats(25), stateful_step_count=20, suppress_health_check=list(HealthCheck)
)
