"""How much of several logs one micro-batch takes. A log is what a server returns: a slice of bytes, cut off anywhere."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from metaq.spark.metaq1.limits import boundary, limited
from metaq.wire.metaq1.commands import Code, ResultLine, ValueLine
from metaq.wire.metaq1.frame import HEAD_BYTES, frame

SIZES = st.lists(st.one_of(st.integers(0, 60), st.integers(0, 3000)), max_size=30)


class Logs:
    """Answers a `get` as section 1.4 of the protocol has it: 301 before the first message, 404 at the end."""

    def __init__(self, sizes: dict[str, list[int]], first: int = 0, transfer: int = 500) -> None:
        self.data = {
            partition: b"".join(frame(number, 0, b"x" * size) for number, size in enumerate(told))
            for partition, told in sizes.items()
        }
        self.marks = {
            partition: list(itertools.accumulate((HEAD_BYTES + size for size in told), initial=first))
            for partition, told in sizes.items()
        }
        self.first, self.transfer, self.asked = first, transfer, 0

    @property
    def start(self) -> dict[str, int]:
        return dict.fromkeys(self.data, self.first)

    @property
    def end(self) -> dict[str, int]:
        return {partition: self.first + len(data) for partition, data in self.data.items()}

    def get(self, partition: str, offset: int, size: int) -> ResultLine | ValueLine:
        assert size >= HEAD_BYTES
        self.asked += 1
        data = self.data[partition][offset - self.first :][: min(size, self.transfer)]
        if offset < self.first:
            return ResultLine(Code.MOVED, b"%d" % self.first, 1)
        return ValueLine(data, 1) if data else ResultLine(Code.NOT_FOUND, b"", 1)


@given(st.dictionaries(st.sampled_from(["0-0", "0-1", "0-2", "1-0"]), SIZES, min_size=1), st.integers(1, 4000))
def test_batches_are_whole_messages_within_the_limit_and_take_everything_in_the_end(sizes, most):
    """A batch above it is one message alone. Each batch takes something."""
    logs = Logs(sizes)
    at, end, turn = logs.start, logs.end, 0
    while at != end:
        turn += 1
        reached = limited(at, end, most, logs.get, turn)
        assert all(reached[partition] in logs.marks[partition] for partition in at)
        taken = {
            partition: reached[partition] - at[partition] for partition in at if reached[partition] != at[partition]
        }
        assert taken
        if sum(taken.values()) > most:
            ((partition, size),) = taken.items()
            assert logs.marks[partition].index(at[partition] + size) - logs.marks[partition].index(at[partition]) == 1
        at = reached


def test_a_short_partition_is_not_kept_waiting_by_a_long_one():
    """Equal shares: it is at its end with the first batch."""
    logs = Logs({"0-0": [100] * 1000, "0-1": [100] * 4}, transfer=1 << 20)
    reached = limited(logs.start, logs.end, 2400, logs.get, 1)
    assert reached == {"0-0": 16 * 120, "0-1": 480}


def test_a_message_above_every_share_has_its_turn():
    """Beside partitions that always have more."""
    logs = Logs({"0-0": [50] * 1000, "0-1": [2000], "0-2": [50] * 1000})
    at = logs.start
    for turn in range(1, 4):
        at = limited(at, logs.end, 700, logs.get, turn)
    assert at["0-1"] == 2020


def test_bodies_are_skipped_not_read():
    """Ten messages of 100 KB are ten small questions."""
    logs = Logs({"0-0": [100_000] * 10}, transfer=1000)
    assert boundary("0-0", 0, 900_000, logs.get, one=True) == 8 * 100_020
    assert logs.asked == 9


def test_what_is_gone_does_not_count():
    """The server moves the start: the limit holds from there."""
    logs = Logs({"0-0": [80] * 10}, first=5000)
    assert boundary("0-0", 100, 350, logs.get, one=True) == 5200


def test_damage_ends_the_batch_before_it_or_within_it():
    """So that the messages before it are read, and then a reader finds it."""
    logs = Logs({"0-0": [80] * 4})
    logs.data["0-0"] = logs.data["0-0"][:200] + b"\xff" * 200
    assert boundary("0-0", 0, 390, logs.get, one=True) == 200
    assert boundary("0-0", 200, 390, logs.get, one=True) == 201
