"""How far a start is that replays the log, and that it can be stopped: the next one begins again and misses nothing."""

from __future__ import annotations

import shutil

import pytest

from metaq.clock import FakeClock
from metaq.store.log.scan import LogScan
from metaq.store.message_store import MessageStore
from metaq.store.start_progress import StartMoment, StartProgress, StartStopped
from tests.store.support import HOST, START_MS, open_store, put, read_all, small_options

COUNT = 3000


class Noting(StartProgress):
    """Notes each step, lets a second pass, and stops at the n-th."""

    def __init__(self, clock, stop_at=0):
        super().__init__(clock)
        self.fake, self.stop_at, self.moments = clock, stop_at, []

    def at(self, place):
        self.fake.advance(1.0)
        self.moments.append(None)
        if len(self.moments) == self.stop_at:
            self.stop()
        super().at(place)
        self.moments[-1] = self.now()


@pytest.fixture
def forgetful(tmp_path):
    """A folder of which only the log is left: it is read as a whole."""
    root = tmp_path / "store"
    with open_store(root) as store:
        for number in range(COUNT):
            put(store, "T", number % 3, b"%d" % number + b"x" * 200)
    shutil.rmtree(root / "consumequeue")
    for path in (root / "checkpoint", *(root / "config").glob("metaqTails*")):
        path.unlink()
    return root


def opened(root, progress):
    clock = FakeClock(START_MS)
    return MessageStore(small_options(root), clock, HOST, "DefaultCluster", threads=False, progress=progress)


def numbers(store):
    return sorted(int(body.split(b"x")[0]) for queue_id in range(3) for body in read_all(store, "T", queue_id))


def test_it_only_gets_on_and_says_what_is_left(forgetful):
    progress = Noting(FakeClock(START_MS))
    assert progress.now().text() == "opening the store"
    with opened(forgetful, progress) as store:
        assert numbers(store) == list(range(COUNT))
    percents = [moment.percent for moment in progress.moments]
    assert percents == sorted(percents)
    assert len(set(percents)) > 10 and percents[-1] == 100
    middle = next(moment for moment in progress.moments if moment.percent >= 50)
    text = middle.text()
    assert text.startswith(f"replaying {middle.percent} %: ") and "MiB, about " in text and text.endswith(" s left")
    assert middle.seconds_left == pytest.approx(middle.seconds * (middle.total - middle.done) / middle.done)
    assert progress.now().text() == "making durable what was replayed"


@pytest.mark.parametrize("part", [0.1, 0.6, 0.99])
def test_a_stopped_start_lets_the_folder_go_and_the_next_one_misses_nothing(forgetful, tmp_path, part):
    """While the log is checked, while it is replayed, and at the last step."""
    shutil.copytree(forgetful, tmp_path / "copy")
    counted = Noting(FakeClock(START_MS))
    opened(tmp_path / "copy", counted).close()
    steps = len(counted.moments)
    with pytest.raises(StartStopped, match="the next start begins again"):
        opened(forgetful, Noting(FakeClock(START_MS), max(1, int(steps * part))))
    with opened(forgetful, None) as store:
        assert numbers(store) == list(range(COUNT))
        put(store, "T", 0, b"%d" % COUNT)
    with opened(forgetful, None) as store:
        assert numbers(store) == list(range(COUNT + 1))


@pytest.mark.parametrize("step", [1, 7, 300, 4096])
def test_steps_end_between_records(forgetful, monkeypatch, step):
    """However few bytes are looked at at once, the same records are found, also those that are longer."""
    with opened(forgetful, None) as store:
        run, end = store.log.run, store.log.end
        whole = [(head.log_offset, head.size) for heads in LogScan(run, 0, end, check_crc=True) for head in heads]
        monkeypatch.setattr("metaq.store.log.scan._STEP_BYTES", step)
        places = []
        scan = LogScan(run, 0, check_crc=True, told=places.append)
        assert [(head.log_offset, head.size) for heads in scan for head in heads] == whole
        assert scan.end == end == places[-1]
        assert places == sorted(places) and len(places) >= end // max(step, 1024) / 2


def test_long_starts_are_told_in_larger_units():
    assert StartMoment("replaying", 5 << 30, 20 << 30, 3600.0).text() == (
        "replaying 25 %: 5.0 of 20.0 GiB, about 3 h 0 min left"
    )
    assert StartMoment("replaying", 0, 1 << 20, 1.0).text() == "replaying 0 %: 0.0 of 1.0 MiB"
