"""deletePolicy and deleteWhen of a configuration of MetaQ 1.x, in a broker."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import TypeVar

from msgspec import structs

from metaq.broker.broker import Broker
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import FakeClock
from metaq.in_pieces import finish
from metaq.model.metaq1.settings import DeletePolicy, PartitionRules, PartitionSettings
from metaq.options import Metaq1Options
from metaq.saved import Saving
from metaq.store.offline.segments import SegmentReader, segments_in
from metaq.wire import hot
from tests.broker.support import open_broker
from tests.store.support import message
from tests.support import eventually

Result = TypeVar("Result")
SMALL = {"mapped_file_size_commit_log": 64 * 1024, "max_message_size": 32 * 1024}


def rules(sections: bool = True, **policies: str) -> PartitionRules:
    default = structs.replace(PartitionSettings.of(Metaq1Options()), delete_when="0 0 * * * ?")
    topics = {
        name: structs.replace(default, delete_policy=DeletePolicy.parse(policy)) for name, policy in policies.items()
    }
    return PartitionRules(default, topics, sections=sections)


def settings(found: PartitionRules, **options: object) -> Metaq1Settings:
    return Metaq1Settings(Metaq1Options(enable=True, broker_id=7, **options), found)


def fill(broker: Broker, rounds: int = 12) -> None:
    for number in range(rounds):
        for topic in ("short", "long"):
            broker.appender.put([message(topic, 0, b"%03d" % number * 2_700, tag="red")])
        broker.clock.advance(3600)


def look(broker: Broker) -> None:
    broker.clock.advance(3600)
    broker.store.keeper.retain(broker.clock.now_ms())
    broker.deliver()


def settled(broker: Broker, work: Callable[[], Result]) -> Result:
    def found() -> tuple[Result] | None:
        try:
            return (work(),)
        except Saving:
            broker.store.flusher.flush()
            broker.deliver()
            return None

    return eventually(found)[0]


def test_topics_are_kept_as_their_sections_say_and_a_reload_changes_it(tmp_path):
    """Both the topic's own time and one that it gets later."""
    told = settings(rules(short="delete,4"))
    with open_broker(tmp_path, FakeClock(), store=SMALL, metaq1=told) as broker:
        fill(broker)
        look(broker)
        assert broker.store.keeper.floor("short") > broker.store.keeper.floor("long") == 0
        facts = broker.reports.facts()
        assert (facts.held_for, facts.held_bytes) == ("long", broker.store.keeper.floor("short") - broker.store.log.min)
        told.exchange(rules(short="delete,4", long="delete,30m"), b"")
        look(broker)
        assert broker.store.log.min > 0


def test_without_sections_the_brokers_own_time_holds_unless_another_is_set(tmp_path):
    """`[metaq1] enable` alone deletes nothing earlier or later than before."""
    with open_broker(tmp_path / "a", FakeClock(), store=SMALL, metaq1=settings(rules(sections=False))) as broker:
        fill(broker)
        look(broker)
        assert (broker.store.keeper.holding, broker.store.log.min) == (None, 0)
    other = Metaq1Settings(Metaq1Options(enable=True, delete_policy="delete,1", delete_when="0 0 * * * ?"))
    with open_broker(tmp_path / "b", FakeClock(), store=SMALL, metaq1=other) as broker:
        fill(broker)
        look(broker)
        assert broker.store.log.min > 0


def test_archive_has_the_frames_and_positions_that_clients_were_told(tmp_path):
    """Of messages of any client; they go once it is whole, and what is left has the same positions, also after a restart."""
    folder = tmp_path / "elsewhere"
    told = settings(rules(short="archive,4,true", long="delete,4"), archive_path=str(folder))
    clock = FakeClock()
    with open_broker(tmp_path / "store", clock, store=SMALL, metaq1=told) as broker:
        fill(broker)
        positions = settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        queue = broker.store.reader.existing_queue("short", 0)
        places = settled(broker, lambda: [positions.position(offset) for offset in range(13)])
        records = b"".join(bytes(broker.store.reader.pull("short", 0, offset, 1).body) for offset in range(12))
        frames, _, _ = hot.frames(records, 7, 0, 1 << 30, lambda body, _flag: body)
        assert len(frames) == places[12]
        eventually(lambda: (look(broker), broker.store.keeper.floor("short"))[1])
        low = queue.min_offset
        archived = b"".join(
            zipfile.ZipFile(segment.path).read(f"{segment.start:020d}.meta") for segment in segments_in(folder)
        )
        assert {segment.path.parent.name for segment in segments_in(folder)} == {"short-0"}
        assert archived[: places[low]] == frames[: places[low]]
        assert [found.position for found in SegmentReader(segments_in(folder)[0])][:3] == places[:3]
    with open_broker(tmp_path / "store", clock, store=SMALL, metaq1=told) as broker:
        assert broker.store.reader.existing_queue("short", 0).min_offset == low > 0
        again = settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        assert settled(broker, lambda: [again.position(offset) for offset in range(low, 13)]) == places[low:]


def test_a_damaged_message_that_moves_positions_is_missing_in_the_archive_and_keeps_nothing(tmp_path, caplog):
    """No checksum covers its tag; without it the frame is shorter."""
    told = settings(rules(short="archive,4", long="delete,4"))
    clock = FakeClock()
    with open_broker(tmp_path / "store", clock, store=SMALL, metaq1=told) as broker:
        fill(broker)
        positions = settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        places = settled(broker, lambda: [positions.position(offset) for offset in range(13)])
        log_offset = broker.store.reader.existing_queue("short", 0).units(1, 1)[0].log_offset
    [path] = [
        path
        for path in (tmp_path / "store/commitlog").iterdir()
        if int(path.name) <= log_offset < int(path.name) + path.stat().st_size
    ]
    with path.open("r+b") as file:
        file.seek(log_offset - int(path.name))
        place = file.tell() + file.read(9_000).index(b"TAGS")
        file.seek(place)
        file.write(b"UAGS")
    with open_broker(tmp_path / "store", clock, store=SMALL, metaq1=told) as broker:
        eventually(lambda: (look(broker), broker.store.keeper.floor("short"))[1])
        assert "the message at queue offset 1 of queue 0 of topic short is lost" in caplog.text
        found = [found.position for one in segments_in(tmp_path / "store/archive") for found in SegmentReader(one)]
        assert found == [place for place in places[: len(found) + 1] if place != places[1]]


def test_messages_that_a_power_cut_brings_back_have_no_position_and_keep_no_topic_from_being_archived(tmp_path):
    """Their log file was deleted before a 1.x client came; they had their time."""
    clock, root = FakeClock(), tmp_path / "store"
    with open_broker(root, clock, store=SMALL, metaq1=settings(rules(short="delete,1", long="delete,1"))) as broker:
        fill(broker)
        files = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
        eventually(lambda: (look(broker), broker.store.log.min)[1])
        begin = broker.store.reader.existing_queue("short", 0).min_offset
        assert settled(broker, lambda: settled(broker, lambda: broker.metaq1.bases.touch("short", 0)).min) == 0
    for name, data in files.items():
        if not (path := root / "commitlog" / name).exists():
            path.write_bytes(data)
    for path in (root / "config").glob("metaqFloors.json*"):
        path.unlink()
    told = settings(rules(short="archive,1", long="delete,1"))
    with open_broker(root, clock, store=SMALL, metaq1=told) as broker:
        assert broker.store.reader.existing_queue("short", 0).min_offset < begin
        fill(broker)
        eventually(lambda: (look(broker), broker.store.reader.existing_queue("short", 0).min_offset > begin)[1])
        found = [found.position for one in segments_in(root / "archive") for found in SegmentReader(one)]
        assert found[0] == 0
        assert found == sorted(set(found))
        assert len(found) >= 3


def test_no_topic_lets_go_of_what_positions_are_computed_from(tmp_path):
    """A base that is durable and far enough in the queue comes first."""
    with open_broker(tmp_path, FakeClock(), store=SMALL, metaq1=settings(rules(short="delete,4"))) as broker:
        settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        fill(broker)
        broker.store.flusher.flush()
        broker.clock.advance(3600)
        broker.store.keeper.retain(broker.clock.now_ms())
        assert broker.store.keeper.floor("short") == 0

        def gone() -> bool:
            look(broker)
            broker.store.flusher.flush()
            return broker.store.keeper.floor("short") > 0

        eventually(gone)
        low = broker.store.reader.existing_queue("short", 0).min_offset
        assert 0 < low <= broker.metaq1.bases.settled("short", 0)


def trim(broker, floors):
    """Trim, deliver what the event loop would meanwhile, and return what the store says."""
    said = []
    broker.store.keeper.trim(floors, said.append)
    return eventually(lambda: (broker.store.flusher.flush(), broker.deliver(), said)[2])[0]


def test_a_trim_moves_where_partitions_begin_and_no_position(tmp_path):
    """In the middle of a log file, without sections; positions stay what clients were told, also after a restart."""
    told, clock = settings(rules(sections=False)), FakeClock()
    with open_broker(tmp_path, clock, store=SMALL, metaq1=told) as broker:
        fill(broker)
        positions = settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        places = settled(broker, lambda: [positions.position(offset) for offset in range(13)])
        queue = broker.store.reader.existing_queue("short", 0)
        assert trim(broker, {"short": queue.unit(5).log_offset}) is True
        assert queue.min_offset == 5
        assert settled(broker, lambda: positions.position(5)) == places[5]
        assert positions.min == places[5]
        clock.advance(10)
        broker.appender.put([message("short", 0, b"012" * 2_700, tag="red")])
    with open_broker(tmp_path, clock, store=SMALL, metaq1=told) as broker:
        again = settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        assert settled(broker, lambda: [again.position(offset) for offset in range(5, 13)]) == places[5:]
        assert again.min == places[5]
        assert trim(broker, {"short": broker.store.log.end}) is True
        assert settled(broker, lambda: again.position(13)) == places[12] + places[12] // 12


def test_what_is_archived_is_trimmed_by_whole_log_files_when_it_is_in_the_archive(tmp_path):
    """A file that still takes messages is archived once, when it is full."""
    folder = tmp_path / "elsewhere"
    told = settings(rules(short="archive,400,true"), archive_path=str(folder))
    with open_broker(tmp_path / "store", FakeClock(), store=SMALL, metaq1=told) as broker:
        fill(broker)
        settled(broker, lambda: broker.metaq1.bases.touch("short", 0))
        _, floors = finish(broker.trimming.plan_before("short", broker.clock.now_ms()))
        newest = broker.store.log.run.files[-1].start
        assert floors == {"short": newest}
        assert not folder.exists()
        assert trim(broker, floors) is True
        low = broker.store.reader.existing_queue("short", 0).min_offset
        assert 0 < low <= 12
        assert len(list(segments_in(folder))) > 0
