"""Topics that let go of their messages, in the model of a store: whatever crashes and is lost, what is gone stays gone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.store.retention.test_floors import rules
from tests.store.support import read_all
from tests.store.test_model import StoreModel

pytestmark = pytest.mark.slow

LONG = ("orders", 1)
SHORT = "%RETRY%group"


class FloorModel(StoreModel):
    """The first message, of a topic that keeps everything, keeps all log files: floors alone hide what the short one lets go."""

    def __init__(self) -> None:
        super().__init__()
        self.put(LONG, [1])
        self.floor = 0

    @rule()
    def let_go(self) -> None:
        self.store.keeper.retain_by(rules("delete,9999999", **{SHORT: "delete,1s"}))
        self.clock.advance(2)
        self.store.keeper.retain(self.clock.now_ms())
        assert self.store.log.min == 0
        assert self.store.keeper.floor(SHORT) >= self.floor
        if self.store.keeper.floor(SHORT) > self.floor:
            self.floor = self.store.keeper.floor(SHORT)
            self.durable = self.store.state.flushed

    def _low(self, queue: tuple[str, int]) -> int:
        """How many messages of a queue are gone."""
        floor = self.floor if queue[0] == SHORT else 0
        return sum(1 for start, _, owner, _ in self.log if owner == queue and start < floor)

    @invariant()
    def every_queue_holds_what_was_put(self) -> None:
        assert self.store.keeper.floor(SHORT) == self.floor
        for queue, bodies in self.model.items():
            low, held = self._low(queue), self.store.reader.queue(*queue)
            assert read_all(self.store, *queue) == bodies[low:]
            assert (held.min_offset, held.max_offset) == (low, len(bodies))
            units = [(start, end - start) for start, end, owner, _ in self.log if owner == queue]
            assert [unit[:2] for unit in held.units(low, len(bodies))] == units[low:]

    @precondition(lambda self: self.log)
    @rule(which=st.floats(0, 0.999))
    def find_by_key(self, which: float) -> None:
        start, _, queue, key = self.log[int(len(self.log) * which)]
        if not key:
            return
        gone = queue[0] == SHORT and start < self.floor
        record = self.store.reader.record_at(start)
        assert (record in self.store.reader.query(queue[0], key, 64, 0, 1 << 60)) is not gone


TestFloorModel = FloorModel.TestCase
TestFloorModel.settings = settings(max_examples=15, stateful_step_count=20, suppress_health_check=list(HealthCheck))
