"""`metaq pipeline run mirror` killed -9 under running producers, and the move of a cluster. The oracle is `metaq store dump`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.pipelines.mirror.state import GROUPS, STATE
from metaq.pipelines.run import RUNNING, status_of
from metaq.spark.engine.slow_start import run_through
from metaq.spark.pipelines import mirror
from metaq.testing import EmbeddedBroker
from tests.interop.servers import RocketmqServer
from tests.pipelines import commands
from tests.spark.test_kill import producing
from tests.support import PATIENCE, WHOLE_PATIENCE, eventually, run_metaq

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
TOPIC, GROUP = "moved", "mailer"


def words(source, target, folder: Path) -> list[str]:
    given = ["-n", source.namesrv, "--topic", TOPIC, "--to", target.namesrv, "--folder", str(folder)]
    return [*given, "--trigger", "0.2", "--json"]


def pipeline(source, target, folder: Path, *more: str, log: str = "pipeline.log"):
    return commands.pipeline(folder.parent / log, "mirror", *words(source, target, folder), *more)


def batches(folder: Path) -> int:
    """The last batch that the mirror knows to be there."""
    path = folder / STATE
    return json.loads(path.read_text())["batch"] if path.exists() else -1


def reached(running, folder: Path, batch: int) -> None:
    """Wait until the mirror has come so far, or has died of something."""
    eventually(lambda: batches(folder) >= batch or running.poll() is not None, WHOLE_PATIENCE, what=f"batch {batch}")
    logs = [log.read_text()[-3000:] for log in folder.parent.glob("*.log")]
    assert running.poll() is None, "\n".join(logs)


def dumped(broker) -> list[dict]:
    """What is in a broker's store, in the order of its log."""
    done = run_metaq("store", "dump", str(broker.data), timeout=WHOLE_PATIENCE)
    assert done.returncode == 0, done.stderr
    return [message for line in done.stdout.splitlines() if (message := json.loads(line))["topic"] == TOPIC]


def by_queue(messages: list[dict]) -> dict[int, list[tuple[str, str]]]:
    """Per queue what is in it, in its order."""
    found: dict[int, list[tuple[str, str]]] = {}
    for one in sorted(messages, key=lambda one: one["queue_offset"]):
        found.setdefault(one["queue_id"], []).append((one["message_id"], one["body"]))
    return found


def test_killed_and_finished_the_target_is_what_the_source_holds(spark, fresh_metaq_broker, tmp_path):
    """kill -9 of the mirror in full run, of the target under it, then `--once`: every message once, every queue in order."""
    source, folder = fresh_metaq_broker, tmp_path / "mirror"
    with EmbeddedBroker() as target:
        with metaq.Producer(source.namesrv) as producer:
            producer.send(TOPIC, b"first")
        with producing(source, TOPIC):
            with pipeline(source, target, folder) as running:
                reached(running, folder, 3)
            with pipeline(source, target, folder, log="stopped.log") as running:
                reached(running, folder, batches(folder) + 1)
                target.kill()
                target.start()
                reached(running, folder, batches(folder) + 3)
                running.terminate()
                assert running.wait(WHOLE_PATIENCE) == 0, (tmp_path / "stopped.log").read_text()[-3000:]
        assert commands.traces((tmp_path / "stopped.log").read_text()) == [], "the target's death is told in lines"
        more = ["--once", "--progress-group", "mirrors"]
        done = commands.run_here(spark, "mirror", *words(source, target, folder), *more)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        here, there = dumped(source), dumped(target)
        assert len(here) > 100
        assert Counter(one["message_id"] for one in there) == Counter(one["message_id"] for one in here)
        assert by_queue(there) == by_queue(here)
        assert sum(line.get("unfit", 0) + line.get("came_around", 0) for line in lines) == 0
        tables = json.loads((folder / STATE).read_text())["tables"]
        assert sum(run[2] for _, _, runs in tables for run in runs) == len(here)
        assert {len(runs) for _, _, runs in tables} == {1}
        with Admin(source.namesrv) as admin:
            assert admin.group_progress("mirrors").lag == 0


def taken(broker, got: Counter, until) -> None:
    """Take messages as a member of the group that commits what it has and leaves, when `until()` says so."""
    with metaq.PullConsumer(broker.namesrv, group=GROUP, topics=TOPIC, start="earliest") as consumer:
        consumer.wait_assigned(WHOLE_PATIENCE)
        while not until():
            got.update(message.message_id for message in consumer.poll(timeout=0.2, count=50))
        consumer.commit()


def places(broker) -> dict[int, int]:
    """How far the group is, by queue id; none where it is not known."""
    with contextlib.suppress(metaq.MetaqError), Admin(broker.namesrv) as admin:
        return {
            one.queue.queue_id: one.consumed for one in admin.group_progress(GROUP).queues if one.queue.topic == TOPIC
        }
    return {}


def moving(spark, source, target, folder: Path):
    """The mirror as a query of this session, with a group. It has come to its first batch."""
    given = {
        "nameServers": source.namesrv, "topics": TOPIC, "to": target.namesrv, "folder": str(folder), "groups": GROUP,
        "groupSeconds": 0.3, "triggerSeconds": 0.2,
    }  # fmt: skip

    def going(query):
        eventually(lambda: batches(folder) >= 0 or query.exception(), WHOLE_PATIENCE, what="the first batch")
        if query.exception():
            raise query.exception()
        return query

    return run_through(lambda: mirror(spark, given), going)


def test_a_group_and_its_producers_move_from_a_rocketmq_to_us_without_a_stop(spark, tmp_path):
    """Mirror, then the consumers, then the producers: every message is consumed, and none twice, while both are running."""
    source, folder, got = RocketmqServer(tmp_path / "rocketmq"), tmp_path / "mirror", Counter()
    source.start()
    try:
        with metaq.Producer(source.namesrv, timeout=PATIENCE) as producer:
            first = producer.send(TOPIC, b"first")
        with EmbeddedBroker() as target:
            query = moving(spark, source, target, folder)
            with producing(source, TOPIC) as old:
                taken(source, got, lambda: got.total() >= 60)
                eventually(
                    lambda: places(target) and places(target) == places(source), WHOLE_PATIENCE, what="the group's move"
                )
                left = got.total()
                taken(target, got, lambda: got.total() >= left + 100)
            mirrored = {first.message_id, *(one.message_id for one in old)}
            with producing(target, TOPIC) as new:
                taken(target, got, lambda: mirrored <= got.keys() and len(new) > 100)
            everything = mirrored | {one.message_id for one in new}
            taken(target, got, lambda: everything <= got.keys())
            (told,) = json.loads((folder / GROUPS).read_text())["groups"]
            assert told["group"] == GROUP
            assert query.isActive
            query.stop()
            eventually(lambda: status_of(folder).state != RUNNING, what="the run's end")
            assert status_of(folder).fault == ""
            assert got.keys() == everything
            assert got.total() == len(everything)
    finally:
        source.kill()
