"""`metaq topic trim`, `metaq broker clean`, and how full disks are shown, at a running broker."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Self

import pytest

import metaq
from metaq.admin import Admin
from metaq.admin.upkeep.cleaning import CleanedBroker
from metaq.cli.cluster.cleaning import clean_broker
from metaq.cli.commands import run
from metaq.model.upkeep.cleaning import Cleanable, CleanableFiles
from metaq.testing import EmbeddedBroker
from tests.support import environment, eventually, run_metaq

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("cleaning") / "store") as server:
        yield server


@pytest.fixture
def cli(server: EmbeddedBroker):
    """Run a command at that broker."""

    def run(*args: str, **options: object):
        return run_metaq(*args, "-n", server.namesrv, **options)

    return run


def fill(server: EmbeddedBroker, topic: str, messages: int = 10) -> list[int]:
    """Send messages to one queue. Returns their store times, ms."""
    with Admin(server.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    with metaq.Producer(server.namesrv) as producer:
        for number in range(messages):
            producer.send(topic, b"%d" % number, keys=f"k{number}")
    with metaq.Reader(server.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        return [message.store_ms for message in reader]


def bodies(server: EmbeddedBroker, topic: str) -> list[bytes]:
    with metaq.Reader(server.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        return [message.body for message in reader]


def test_a_trim_is_shown_first_asked_for_and_done(server, cli):
    """In text and in JSON; nothing happens without a yes."""
    fill(server, "cli-trim")
    shown = json.loads(cli("topic", "trim", "cli-trim", "-o", "4", "--dry-run", "--json").stdout)
    assert (shown["messages"], shown["trimmed"], shown["dry_run"], shown["unread"]) == (4, False, True, [])
    (queue,) = shown["queues"]
    assert (queue["min_offset"], queue["new_min_offset"], queue["max_offset"]) == (0, 4, 10)
    assert queue["oldest"] <= queue["newest"]
    assert (
        "4 messages of topic cli-trim would become unreadable"
        in cli("topic", "trim", "cli-trim", "-o", "4", "--dry-run").stdout
    )
    asked = cli("topic", "trim", "cli-trim", "-o", "4", stdin="n\n")
    assert asked.returncode == 1
    assert "Make 4 messages of topic cli-trim unreadable for good?" in asked.stderr
    assert len(bodies(server, "cli-trim")) == 10
    done = cli("topic", "trim", "cli-trim", "-o", "4", stdin="y\n")
    assert done.returncode == 0, done.stderr
    assert "4 messages of topic cli-trim cannot be read any more" in done.stdout
    assert bodies(server, "cli-trim") == [b"4", b"5", b"6", b"7", b"8", b"9"]
    again = cli("topic", "trim", "cli-trim", "-o", "4", "--yes")
    assert "nothing to trim" in again.stdout
    done = json.loads(cli("topic", "trim", "cli-trim", "-p", "0", "-o", "6", "--yes", "--json").stdout)
    assert (done["messages"], done["trimmed"]) == (2, True)


def test_times_and_durations(server, cli):
    """Before a time of this machine's zone or its own; all but the last so long."""
    times = fill(server, "cli-trim-times")
    assert cli("topic", "trim", "cli-trim-times", "--keep-last", "1h", "--yes").returncode == 0
    assert len(bodies(server, "cli-trim-times")) == 10
    moment = run_iso(times[6])
    found = json.loads(cli("topic", "trim", "cli-trim-times", "--before", moment, "--yes", "--json").stdout)
    left = sum(time >= times[6] for time in times)
    assert found["messages"] == 10 - left
    assert len(bodies(server, "cli-trim-times")) == left
    found = json.loads(cli("topic", "trim", "cli-trim-times", "--keep-last", "0s", "--yes", "--json").stdout)
    assert found["messages"] == left
    assert bodies(server, "cli-trim-times") == []


def run_iso(ms: int) -> str:
    from metaq.cli.output import iso_time

    return iso_time(ms) or ""


def test_groups_that_have_not_read_it_stop_a_trim_without_force(server, cli):
    """They are named, with how many; afterwards they go on behind it."""
    fill(server, "cli-trim-groups")
    assert cli("consume", "cli-trim-groups", "--group", "cli-slow", "--count", "10").returncode == 0
    assert cli("group", "reset", "cli-slow", "cli-trim-groups", "--to", "earliest").returncode == 0
    refused = cli("topic", "trim", "cli-trim-groups", "-o", "7", "--yes")
    assert refused.returncode == 2
    assert "cli-slow (7 messages)" in refused.stderr
    assert "--force" in refused.stderr
    assert "Traceback" not in refused.stderr
    shown = cli("topic", "trim", "cli-trim-groups", "-o", "7", "--dry-run")
    assert "group cli-slow has not consumed 7 messages of them" in shown.stderr
    assert len(bodies(server, "cli-trim-groups")) == 10
    forced = cli("topic", "trim", "cli-trim-groups", "-o", "7", "--yes", "--force")
    assert forced.returncode == 0, forced.stderr


def test_a_consumer_that_runs_goes_on_with_what_is_left(server, cli):
    """Also one that was behind: it is sent to where the queue begins now."""
    fill(server, "cli-trim-running")
    got: list[bytes] = []
    consumer = metaq.Consumer(server.namesrv, group="cli-running", topics="cli-trim-running", start="earliest")
    running = threading.Thread(target=consumer.run, args=(lambda message: got.append(message.body),))
    with consumer:
        running.start()
        eventually(lambda: len(got) == 10)
        assert cli("topic", "trim", "cli-trim-running", "--keep-last", "0s", "--yes", "--force").returncode == 0
        with metaq.Producer(server.namesrv) as producer:
            producer.send("cli-trim-running", b"new")
        eventually(lambda: got[-1] == b"new")
        consumer.stop()
        running.join()
    assert len(got) == 11


def test_what_was_trimmed_stays_gone_after_kill_9_and_a_restart(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as server:
        fill(server, "orders")
        trimmed = run_metaq("topic", "trim", "orders", "-o", "6", "--yes", "-n", server.namesrv)
        assert trimmed.returncode == 0, trimmed.stderr
        server.kill()
        server.start()
        assert bodies(server, "orders") == [b"6", b"7", b"8", b"9"]
        server.stop()
        server.start()
        assert bodies(server, "orders") == [b"6", b"7", b"8", b"9"]
        with Admin(server.namesrv) as admin:
            assert admin.describe_topic("orders").messages == 4


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("nowhere", "--keep-last", "1d"), 3, "nowhere"),
        (("SCHEDULE_TOPIC_XXXX", "--keep-last", "1d"), None, "SCHEDULE_TOPIC_XXXX"),
        (("TBW102", "--keep-last", "1d"), 1, "the broker's own"),
        (("cli-bad",), 2, "one of --before, --keep-last and --offset"),
        (("cli-bad", "--before", "2026-01-01", "-o", "1"), 2, "one of --before, --keep-last and --offset"),
        (("cli-bad", "--before", "2999-01-01T00:00:00Z"), 1, "no time from 1970 until now"),
        (("cli-bad", "--before", "9999-12-31T23:59:59Z"), 1, "no time from 1970 until now"),
        (("cli-bad", "--before", "1969-01-01T00:00:00Z"), 2, "no moment since 1970"),
        (("cli-bad", "--before", "earliest"), 2, "is not a time"),
        (("cli-bad", "--before", "soon"), 2, "soon"),
        (("cli-bad", "--keep-last", "-1d"), 2, "not a duration"),
        (("cli-bad", "--keep-last", "7"), 2, "not a duration"),
        (("cli-bad", "--keep-last", "999999999w"), 2, "before 1970"),
        (("cli-bad", "-o", "-1"), 1, "below 0"),
        (("cli-bad", "-o", "1", "-p", "9"), 1, "queueId[9] is illegal"),
        (("cli-bad", "-o", "99", "-p", "0"), 1, "it ends at 3"),
        (("cli-bad", "-o", "1", "-p", "x"), 2, "not a queue"),
        (("cli-bad", "-o", "1", "-p", "other:0"), 3, "other"),
        (("cli-bad", "--keep-last", "1d", "-p", "0"), 2, "a time applies to all queues"),
        (("cli-bad", "--keep-last", "1d", "--broker", "other"), 3, "other"),
    ],
)
def test_what_cannot_be_trimmed_is_a_sentence(server, cli, args, code, says):
    fill_once(server)
    refused = cli("topic", "trim", *args, "--yes")
    assert refused.returncode == code if code is not None else refused.returncode in {1, 3}
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert len(bodies(server, "cli-bad")) == 3


def fill_once(server: EmbeddedBroker) -> None:
    with Admin(server.namesrv) as admin:
        if "cli-bad" not in admin.list_topics():
            fill(server, "cli-bad", 3)


def test_a_broker_is_cleaned(server, cli):
    """By name and by address; a dry run says what would go."""
    name = json.loads(cli("cluster", "--json").stdout)[0]["broker"]
    shown = json.loads(cli("broker", "clean", name, "--dry-run", "--json").stdout)
    (row,) = shown["brokers"]
    assert (shown["dry_run"], row["address"], row["log_files"], row["topics"]) == (True, server.broker, 0, [])
    for option in ("--dry-run", "--yes", "--queues"):  # the last one has nothing to ask for
        assert cli("broker", "clean", name, option).stdout.endswith(f"broker {name} has nothing to delete\n")
    done = cli("broker", "clean", server.broker, "--yes", "--log-files", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["brokers"]
    assert "queue_files" not in row
    done = json.loads(cli("broker", "clean", name, "--json").stdout)
    assert (done["dry_run"], done["brokers"][0]["log_files"]) == (False, 0)
    assert cli("broker", "clean", "nobody", "--yes").returncode == 3
    nobody = cli("broker", "clean", "127.0.0.1:1", "--yes")
    assert nobody.returncode == 1
    assert "nothing was changed" in nobody.stderr


class Cleaning:
    """`Admin` of a broker with two expired log files."""

    found = CleanedBroker("b", 0, "127.0.0.1:1", True, Cleanable(log_files=CleanableFiles(2, 2048)))

    def __init__(self, _name_servers: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find_cleanable(self, _name: str) -> list[CleanedBroker]:
        return [self.found]

    def clean_broker(self, _name: str, **_wanted: bool) -> list[CleanedBroker]:
        return [self.found]


def test_what_is_there_to_delete_is_shown_and_asked_for(monkeypatch, capsys):
    """A kind that is not wanted does not count."""
    monkeypatch.setattr("metaq.admin.Admin", Cleaning)
    asked: list[str] = []
    monkeypatch.setattr("metaq.cli.cluster.cleaning.ask", asked.append)
    for options, said in (
        ({"dry_run": True}, "this is what would be deleted"),
        ({}, "broker b is cleaned"),
        ({"queues": True}, "broker b has nothing to delete"),
    ):
        clean_broker("b", **options)
        assert capsys.readouterr().out.splitlines()[-1] == said
    assert asked == ["Delete these files at broker b?"]


# ---------------------------------------------------------------- a full disk

STATVFS = """
import os
real = os.statvfs
def statvfs(path):
    fields = list(real(path))
    used = float(open(os.environ["METAQ_TEST_DISK"]).read())
    free = round(100_000 * (1 - used / 100))
    fields[2:5] = 100_000, free, free
    return os.statvfs_result((*fields, 0))
os.statvfs = statvfs
"""


def test_a_full_disk_is_seen_step_by_step(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    """In `metaq cluster`, `metaq broker status` and the log; sends are refused, and taken again when there is room."""
    (tmp_path / "sitecustomize.py").write_text(STATVFS)
    disk = tmp_path / "disk"

    def fill_disk(percent: float) -> None:
        (tmp_path / "new").write_text(str(percent))
        (tmp_path / "new").replace(disk)

    fill_disk(50)
    child = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]]),
        "METAQ_TEST_DISK": str(disk),
    }
    options = {"diskMaxUsedSpaceRatio": 75, "cleanFileForciblyEnable": "true", "cleanResourceInterval": 20}
    with EmbeddedBroker(tmp_path / "store", options=options, environment=child) as server:
        with Admin(server.namesrv) as admin:
            admin.create_topic("orders", queues=1)

        def told(*words: str) -> object:
            assert run([*words, "-n", server.namesrv]) == 0
            return capsys.readouterr().out

        def status(key: str) -> object:
            return json.loads(told("cluster", "--json"))[0][key]

        name = status("broker")
        with metaq.Producer(server.namesrv, retries=0) as producer:
            for used, step in ((50, "ok"), (76, "warn"), (86, "clean"), (91, "refuse"), (76, "warn"), (50, "ok")):
                fill_disk(used)
                eventually(lambda step=step: status("disk_step") == step)
                assert round(status("disk_used"), 2) == used / 100
                mark = f"{used}%" if step == "ok" else f"{used}% {step}"
                assert mark in told("cluster")
                assert mark in told("broker", "status", name)
                (replica,) = json.loads(told("broker", "status", name, "--json"))
                assert replica["disk_step"] == step
                if step == "refuse":
                    with pytest.raises(metaq.MetaqError, match="more than 90 percent full"):
                        producer.send("orders", b"refused")
                else:
                    producer.send("orders", step.encode())
        log = server.log.read_text()
        assert log.count("commitlog is") == 5
        assert "messages are taken again" in log
    assert bodies_of_folder(tmp_path / "store") == [b"ok", b"warn", b"clean", b"warn", b"ok"]


def bodies_of_folder(folder: pathlib.Path) -> list[bytes]:
    from metaq.store.offline.reader import StoreReader

    return [record.body for record in StoreReader(folder).records() if record.topic == "orders"]
