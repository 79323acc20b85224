"""What a start costs."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from metaq.clock import FakeClock
from metaq.store.disk import Disk
from metaq.store.message_store import MessageStore
from tests.store.support import HOST, START_MS, log_file, open_store, overwrite, put, read_all, small_options


class CountingDisk(Disk):
    """How often each kind of file was opened."""

    def __init__(self):
        self.opened = Counter()

    def open(self, path, flags):
        self.opened[path.parts[-2]] += 1
        return super().open(path, flags)


def opened_at_start(root, messages):
    with open_store(root) as store:
        for number in range(messages):
            put(store, "T", 0, b"%d" % number * 5_000)
    disk = CountingDisk()
    with MessageStore(
        small_options(root), FakeClock(START_MS), HOST, "DefaultCluster", disk=disk, threads=False
    ) as store:
        return len(store.log.run.files), Counter(disk.opened)


def test_start_after_an_end_in_order_opens_as_many_files_whatever_there_are(tmp_path):
    """It takes their names and sizes from their folder."""
    few, opened_few = opened_at_start(tmp_path / "few", 10)
    many, opened_many = opened_at_start(tmp_path / "many", 400)
    assert many > 10 * few
    assert opened_many["commitlog"] == opened_few["commitlog"]
    assert opened_many["0"] <= opened_few["0"] + 1


@pytest.mark.parametrize("parallel", [False, True])
def test_queues_may_be_looked_at_in_parallel(tmp_path, parallel):
    """The same is found: messages, order, and a queue whose file is short."""
    with open_store(tmp_path) as store:
        for number in range(40):
            put(store, f"T{number % 20}", number % 3, b"%d" % number)
    os.truncate(tmp_path / "consumequeue/T7/1" / f"{0:020d}", 0)
    with open_store(tmp_path, load_queues_in_parallel=parallel) as store:
        found = [
            body for (topic, queue_id) in sorted(store.reader.queues()) for body in read_all(store, topic, queue_id)
        ]
        assert sorted(map(int, found)) == list(range(40))


def test_start_after_a_crash_without_checksums_still_finds_the_logs_end(tmp_path):
    """`checkCRCOnRecover=false`, `meta.fast_boot`: a damaged body stays, a torn record does not."""
    for check, left in ((True, 1), (False, 3)):
        root = tmp_path / str(check)
        with open_store(root) as store:
            ends = [put(store, "T", 0, b"%d" % number * 1_000).log_end for number in range(4)]
        (root / "abort").touch()
        for name in ("metaqTails.json", "metaqTails.json.bak"):  # nothing says what was promised
            (root / "config" / name).unlink(missing_ok=True)
        (root / "checkpoint").write_bytes(bytes(4096))
        overwrite(log_file(root), ends[0] + 500, b"damage")
        overwrite(log_file(root), ends[2], bytes(4))
        with open_store(root, check_crc_on_recover=check) as store:
            assert store.reader.existing_queue("T", 0).max_offset == left
