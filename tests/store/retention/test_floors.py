"""Topics that keep their messages for times of their own."""

from __future__ import annotations

import errno
import json
import pathlib

import pytest

from metaq.clock import FakeClock
from metaq.errors import StoreError
from metaq.model.cron import parse_cron
from metaq.model.metaq1.settings import DeletePolicy
from metaq.model.retention import FixedRetentions, TopicRetention
from metaq.store.reads.pull import ReadStatus
from metaq.store.retention.expiry import FileAge, decide
from metaq.testing.faults import FaultyDisk
from tests.store.support import START_MS, answer, checkpoint, crash, open_store, put, read_all, small_options
from tests.support import eventually

EVERY_SECOND = "* * * * * ?"


def rules(default: str = "delete,168", when: str = EVERY_SECOND, **topics: str) -> FixedRetentions:
    cron = parse_cron(when)
    return FixedRetentions(
        TopicRetention(DeletePolicy.parse(default), cron),
        {topic: TopicRetention(DeletePolicy.parse(policy), cron) for topic, policy in topics.items()},
    )


def fill(store, clock, *topics, rounds=12, size=10_000):
    """A message to each topic in turn, an hour apart; several make a log file."""
    for number in range(rounds):
        for topic in topics:
            put(store, topic, 0, b"%s %d " % (topic.encode(), number) * (size // 10))
        clock.advance(3600)


def numbers(store, topic):
    return [int(body.split()[1]) for body in read_all(store, topic, 0)]


def look(store, clock):
    clock.advance(1)
    return store.keeper.retain(clock.now_ms())


def test_each_topic_lets_go_at_its_own_time_and_a_log_file_goes_with_the_last(tmp_path):
    """The short one's min offset moves file by file while the long one keeps the files."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(short="delete,4", long="delete,6"))
        fill(store, clock, "short", "long")
        files = len(store.log.run.files)
        gone = look(store, clock)
        borders = [file.start for file in store.log.run.files]
        assert 0 < gone < files - 1
        assert store.keeper.floor("short") in borders
        assert store.keeper.floor("short") > store.keeper.floor("long")
        assert numbers(store, "long")[-1] == numbers(store, "short")[-1] == 11
        assert len(numbers(store, "short")) < len(numbers(store, "long")) < 12
        low = store.reader.existing_queue("short", 0).min_offset
        assert answer(store.reader.pull("short", 0, 0, 32)).status is ReadStatus.OFFSET_TOO_SMALL
        assert answer(store.reader.pull("short", 0, 0, 32)).next_offset == low
        assert store.keeper.holding.topic == "long"
        assert store.keeper.holding.bytes == store.keeper.floor("short") - store.log.min
        clock.advance(40 * 3600)
        assert look(store, clock) > 0
        assert len(numbers(store, "short") + numbers(store, "long")) <= 8
        assert store.keeper.holding is None


def test_what_a_topic_let_go_of_stays_gone_after_a_crash_and_a_stop_in_order(tmp_path):
    """Also when the consume queues are lost and made anew from the log, in which the records still lie."""
    clock = FakeClock(START_MS)
    store = open_store(tmp_path / "a", clock)
    store.keeper.retain_by(rules(short="delete,4"))
    fill(store, clock, "short", "long")
    assert look(store, clock) == 0
    kept, low = numbers(store, "short"), store.reader.existing_queue("short", 0).min_offset
    assert low > 0
    folder = crash(store, tmp_path / "b")
    for queue_files in (True, False):
        if not queue_files:
            for path in sorted((folder / "consumequeue").rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        with open_store(folder, clock) as store:
            assert store.reader.existing_queue("short", 0).min_offset == low
            assert numbers(store, "short") == kept
            assert len(numbers(store, "long")) == 12
            put(store, "short", 0, b"short 12 ")
            kept = [*kept, 12] if queue_files else kept
            if queue_files:
                kept = numbers(store, "short")


def test_floor_is_on_the_disk_before_a_min_offset_moves(tmp_path):
    """If it cannot be saved nothing moves, and the next look tries again."""
    clock, disk = FakeClock(START_MS), FaultyDisk()
    with open_store(tmp_path, clock, disk=disk) as store:
        store.keeper.retain_by(rules(short="delete,4"))
        fill(store, clock, "short", "long")
        checkpoint(store)
        disk.make_error = errno.ENOSPC
        look(store, clock)
        assert store.reader.existing_queue("short", 0).min_offset == 0
        disk.make_error = 0
        look(store, clock)
        assert store.reader.existing_queue("short", 0).min_offset > 0
        saved = json.loads((tmp_path / "config/metaqFloors.json").read_text())
        assert {name: saved[name] for name in saved if name not in {"v", "crc"}} == {
            "floors": {"short": store.keeper.floor("short")}
        }


def test_nothing_goes_before_the_cron_is_due_except_on_a_full_disk(tmp_path, caplog):
    """Between two looks is due; a cron that is over never is, which the log tells once."""
    clock, disk = FakeClock(START_MS), FaultyDisk()
    with open_store(tmp_path, clock, disk=disk) as store:
        store.keeper.retain_by(rules(when="0 0 6 1 1 ? 2020", short="delete,4"))
        fill(store, clock, "short", "long")
        look(store, clock)
        look(store, clock)
        assert store.keeper.floor("short") == 0
        assert caplog.text.count("does not come to be due any more") == 1
        disk.used = 76
        look(store, clock)
        assert store.keeper.floor("short") > 0
        assert store.log.min == 0
        disk.used = 86
        look(store, clock)
        assert store.log.min > 0


def test_look_at_a_cron_that_was_due_before_the_start_waits_for_the_next(tmp_path):
    """As Quartz does: what was missed while nobody ran is not made up."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        fill(store, clock, "short")
    later = FakeClock(clock.now_ms() + 3_600_000_000)
    with open_store(tmp_path, later) as store:
        store.keeper.retain_by(rules(when="0 0 6 * * ?", short="delete,4"))
        look(store, later)
        assert store.keeper.floor("short") == 0
        later.advance(24 * 3600)
        look(store, later)
        assert store.log.min > 0


def test_cron_that_was_due_while_there_was_one_file_is_over(tmp_path):
    """Its look found nothing to do; the next one is at its next time, not when the log goes on in another file."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(when="0 0 6 * * ?", short="delete,1s"))
        put(store, "short", 0, b"short 0 ")
        clock.advance(24 * 3600)
        look(store, clock)
        for number in range(1, 30):
            put(store, "short", 0, b"short %d " % number * 1000)
        clock.advance(60)
        look(store, clock)
        assert store.log.min == 0
        clock.advance(24 * 3600)
        look(store, clock)
        assert store.log.min > 0


def test_at_most_ten_files_in_one_look_and_the_rest_in_the_next(tmp_path):
    """Though the cron was due once only."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(when="0 0 6 * * ?", short="delete,1s", long="delete,9999"))
        for _ in range(2):
            fill(store, clock, "short", rounds=50, size=10_000)
        starts = [file.start for file in store.log.run.files]
        clock.advance(24 * 3600)
        look(store, clock)
        assert store.log.min == starts[10]
        look(store, clock)
        assert store.log.min > starts[10]


def test_whoever_is_asked_can_put_it_off(tmp_path):
    """He is asked with the topic and the log offset, at each look, until he agrees."""
    clock, asked, ready = FakeClock(START_MS), [], []
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(when="0 0 * * * ?", short="delete,4"))
        store.keeper.before_letting_go(lambda topic, place: asked.append((topic, place)) or bool(ready))
        fill(store, clock, "short", "long")
        look(store, clock)
        look(store, clock)
        assert len(asked) == 2
        assert asked[0] == asked[1] == ("short", store.log.run.find(asked[0][1]).start)
        assert store.keeper.floor("short") == 0
        ready.append(True)
        look(store, clock)
        assert store.keeper.floor("short") == asked[0][1]


def test_messages_let_go_are_not_found_by_key(tmp_path):
    """They still lie in the log, and in the index."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(short="delete,4"))
        put(store, "short", 0, b"short 0 ", key="k")
        fill(store, clock, "short", "long")
        assert len(store.reader.query("short", "k", 32, 0, 1 << 62)) == 1
        look(store, clock)
        assert store.keeper.floor("short") > 0
        assert store.reader.query("short", "k", 32, 0, 1 << 62) == []


def test_floor_behind_the_logs_end_is_none(tmp_path, caplog):
    """The file may be of another log, or unreadable: then nothing is hidden, and the log tells."""
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"T 0 ")
    path = tmp_path / "config/metaqFloors.json"
    for text, told in (('{"floors":{"T":999999999}}', "behind the log's end"), ("{", "is ignored")):
        path.write_text(text)
        with open_store(tmp_path) as store:
            assert numbers(store, "T") == [0]
        assert told in caplog.text


def test_topics_that_the_broker_carries_forward_hold_no_file(tmp_path):
    """Delayed messages and staged ones are owed or not, by their owners' word."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(short="delete,4"))
        put(store, "rmq_sys_METAQ_TXN", 0, b"x")
        fill(store, clock, "short")
        assert look(store, clock) > 0
        assert store.keeper.floor("rmq_sys_METAQ_TXN") == 0


@pytest.mark.parametrize(
    ("used", "kept_from", "gone"), [(10, 250, 2), (10, 0, 0), (10, 400, 4), (80, 250, 2), (86, 0, 4)]
)
def test_log_files_go_up_to_the_oldest_that_a_topic_keeps(tmp_path, used, kept_from, gone):
    """At any hour; on a full disk whatever is kept."""
    ages = [FileAge(i * 100, i * 100 + 100, START_MS) for i in range(4)]
    expired = decide(
        ages, used_percent=used, now_ms=START_MS, options=small_options(tmp_path, delete_when=""), kept_from=kept_from
    )
    assert expired.files == gone


def test_floor_follows_a_log_that_is_cut(tmp_path):
    """A replica's log can become shorter than what a topic had let go of."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(short="delete,4"))
        fill(store, clock, "short", "long")
        look(store, clock)
        place = store.log.run.files[1].start
        assert store.keeper.floor("short") > place
        with pytest.raises(StoreError):
            store.writer.truncate(place + 1)
        store.writer.truncate(place)
        assert store.keeper.floor("short") == place
        fill(store, clock, "short", "long")
    for _ in range(2):
        with open_store(tmp_path, clock) as store:
            assert store.keeper.floor("short") == place
            assert numbers(store, "short") == list(range(12))
        (tmp_path / "config/metaqFloors.json").unlink(missing_ok=True)  # the version before it says no more


class NoRoomForFloors(FaultyDisk):
    """A disk that is full whenever their file is to be written."""

    def open(self, path, flags):
        if "metaqFloors" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().open(path, flags)


@pytest.mark.parametrize("full", [False, True])
def test_floors_that_a_power_cut_left_behind_the_logs_end_never_hide_what_comes_there(tmp_path, full):
    """They are forgotten at the start that finds them, on a full disk too."""
    path = tmp_path / "config/metaqFloors.json"
    with open_store(tmp_path) as store:
        put(store, "T", 0, b"T 0 ")
        floor = store.log.file_bytes
    path.write_text(json.dumps({"floors": {"T": floor}}))
    with open_store(tmp_path, disk=NoRoomForFloors() if full else None) as store:
        for number in range(1, 12):
            put(store, "T", 0, b"T %d " % number * 2_000)
        assert store.log.end > floor
    with open_store(tmp_path) as store:
        assert numbers(store, "T") == list(range(12))


def test_log_is_durable_up_to_a_floor_before_it_is_saved(tmp_path):
    """A power cut would leave it behind the log's end."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(short="delete,4"))
        fill(store, clock, "short", "long")
        assert store.state.flushed < store.log.end
        look(store, clock)
        assert store.state.flushed >= store.keeper.floor("short") > 0


def test_looks_at_many_queues_keep_no_file_open(tmp_path):
    """Each open one counts against the process's limit."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        for number in range(300):
            put(store, f"T{number}", 0, b"%d" % number)
        fill(store, clock, "short")
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules())
        before = sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir())
        look(store, clock)
        assert len(store.keeper.kept) == 301
        assert sum(1 for _ in pathlib.Path("/proc/self/fd").iterdir()) < before + 20


def test_a_slave_has_its_masters_floors_once_its_log_is_there_and_they_never_go_back(tmp_path):
    """One ahead of the log would hide what a new master appends there; after a restart they hold without the master."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        fill(store, clock, "short", "long", rounds=6)
        store.flusher.flush()
        first, ahead = store.log.run.files[1].start, store.log.run.files[-1].end + 5 * store.log.file_bytes
        store.keeper.follow_floors({"short": first, "long": ahead})
        eventually(lambda: store.keeper.floor("short") == first)
        assert len(numbers(store, "short")) < 6
        assert (store.keeper.floor("long"), numbers(store, "long")) == (0, list(range(6)))
        store.keeper.follow_floors({"short": 0})
        while store.log.end < ahead:
            fill(store, clock, "short", "long", rounds=1)
        left = len(numbers(store, "short"))
        store.flusher.flush()
        store.keeper.follow_floors({})
        eventually(lambda: store.keeper.floor("long") == ahead)
        assert (store.keeper.floor("short"), len(numbers(store, "short"))) == (first, left)
        store.keeper.follow_floors({"other": store.log.end + store.log.file_bytes})
        store.keeper.follow_floors(None)
        place = store.log.end + store.log.file_bytes
        while store.log.end < place:
            fill(store, clock, "other", rounds=1)
        store.flusher.flush()
        store.keeper.follow_floors({"short": place})
        eventually(lambda: store.keeper.floor("short") == place)
        assert store.keeper.floor("other") == 0
    with open_store(tmp_path, clock) as store:
        assert store.keeper.floors == {"short": place, "long": ahead}


@pytest.mark.parametrize("hours", [0, 3, 40])
def test_a_preview_says_which_log_files_go_when_topics_have_let_go(tmp_path, hours):
    """What `delete_expired` does then, though the crons are not due; nothing has moved before."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        store.keeper.retain_by(rules(when="0 0 6 1 1 ? 2020", short="delete,4", long="delete,6"))
        fill(store, clock, "short", "long", rounds=12)
        clock.advance(hours * 3600)
        store.keeper.tick(clock.now_ms())
        said = []
        store.keeper.preview((), said.append)
        eventually(lambda: said)
        (files, _, _) = said[0]
        assert files.files > 0
        assert (store.keeper.floor("short"), store.log.min) == (0, 0)
        gone = []
        store.keeper.delete_expired(gone.append)
        eventually(lambda: gone)
        assert gone == [files.files]
        assert store.log.min == files.bytes
