"""`metaq store` on store folders, and on files of MetaQ 1.x."""

from __future__ import annotations

import json
import subprocess
import zipfile

import pytest

from metaq.clock import FakeClock
from metaq.model import DataVersion, TopicConfig
from metaq.saved import SavedTable
from metaq.saved_file import TableFile
from metaq.store.journalled_file import JournalledFile
from metaq.wire.files import TOPICS
from metaq.wire.metaq1.frame import frame, with_attribute
from tests.store.support import open_store, put
from tests.support import PATIENCE, environment, eventually, metaq_command, run_metaq

pytestmark = pytest.mark.slow


def test_dump_prints_frames_of_each_kind_of_file_of_1x(tmp_path):
    """A data folder with live, archived and zipped files; a damaged one ends there, and the exit code says so."""
    folder = tmp_path / "test-0"
    folder.mkdir()
    one, two, three = frame(1, 0, b"one"), frame(-2, 1, with_attribute("red", b"two")), frame(3, 1, b"\xff")
    (folder / f"{0:020d}.meta.arc").write_bytes(one)
    with zipfile.ZipFile(folder / f"{len(one):020d}.meta.zip", "w") as archive:
        archive.writestr(f"{len(one):020d}.meta", two)
    last = folder / f"{len(one + two):020d}.meta"
    last.write_bytes(three)
    dumped = run_metaq("store", "dump", str(tmp_path))
    shown = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [(row["position"], row["message_id"], row["attribute"]) for row in shown] == [
        (0, 1, None),
        (23, -2, "red"),
        (53, 3, None),
    ]
    assert [row.get("body", row.get("body_base64")) for row in shown] == ["one", "two", "/w=="]
    assert run_metaq("store", "dump", str(last), "--from", "53").stdout.count("\n") == 1
    assert run_metaq("store", "dump", str(tmp_path), "--topic", "other").stdout == ""
    last.write_bytes(three + b"torn")
    torn = run_metaq("store", "dump", str(tmp_path))
    assert torn.returncode == 1
    assert f"{last} ends at position 74: 4 bytes that are no whole frame" in torn.stderr


def test_dump_of_some_topics_has_every_message_of_theirs_and_no_other(tmp_path):
    """In the order of the log, with what JSON must escape, and a body that is no text."""
    texts = ['"\\\n', "\u2028é", "plain"]
    with open_store(tmp_path) as store:
        for number in range(600):
            put(store, "abc"[number % 3], 0, b"\xff" if number == 500 else f"{number} {texts[number % 2]}".encode())
    dumped = run_metaq("store", "dump", str(tmp_path), "--topic", "a", "--topic", "c")
    shown = [json.loads(line) for line in dumped.stdout.rstrip("\n").split("\n")]
    assert [(row["topic"], row["queue_offset"]) for row in shown] == [
        ("abc"[number % 3], number // 3) for number in range(600) if number % 3 != 1
    ]
    wanted = [f"{number} {texts[number % 2]}" for number in range(600) if number % 3 != 1 and number != 500]
    assert [row["body"] for row in shown if "body" in row] == wanted
    assert [row["body_base64"] for row in shown if "body" not in row] == ["/w=="]


def test_what_was_read_before_a_fault_is_printed(tmp_path):
    """A log file is missing between two others: the command fails, behind the messages of those before it."""
    with open_store(tmp_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(40):
            put(store, "T", 0, b"%02d" % number * 5000)
    files = sorted((tmp_path / "commitlog").iterdir())
    files[2].unlink()
    dumped = run_metaq("store", "dump", str(tmp_path))
    assert dumped.returncode != 0
    assert f"the log file before it ends at {2 << 16}" in dumped.stderr
    assert 0 < len(dumped.stdout.splitlines()) < 40


def test_dump_of_a_folder_that_holds_neither_says_so(tmp_path):
    """And names what it looked for."""
    dumped = run_metaq("store", "dump", str(tmp_path))
    assert dumped.returncode != 0
    assert "holds no commit log" in dumped.stderr


def test_import_takes_a_data_folder_once_and_tells_what_it_could_not(tmp_path):
    """Counts for each partition; a second run has nothing to do; what is torn and what is damaged is named."""
    data, store = tmp_path / "meta" / "a.b-1", tmp_path / "store"
    data.mkdir(parents=True)
    whole = b"".join(frame(number, 0, b"%d" % number) for number in range(100))
    (data / f"{500:020d}.meta").write_bytes(whole + b"torn")
    command = (
        "store",
        "import-meta",
        str(tmp_path / "meta"),
        "--data",
        str(store),
        "-o",
        "mappedFileSizeCommitLog=1048576",
    )
    done = run_metaq(*command, "--json")
    assert done.returncode == 0, done.stderr
    [one] = json.loads(done.stdout)["partitions"]
    assert (one["topic"], one["partition"], one["begin"], one["end"]) == ("a.b", 1, 500, 500 + len(whole))
    assert (one["messages"], one["bytes"], one["already"], one["problem"]) == (100, len(whole), 0, "")
    assert f"a.b-1: 4 bytes that are no whole frame at position {500 + len(whole)}: not imported" in done.stderr
    again = run_metaq(*command)
    assert again.returncode == 0, again.stderr
    assert again.stdout.split()[-3:] == ["0", "0", str(len(whole))]
    dumped = run_metaq("store", "dump", str(store), "--topic", "a.b").stdout.splitlines()
    assert [json.loads(line)["properties"]["METAQ_ID"] for line in dumped] == [str(number) for number in range(100)]
    (data / f"{600:020d}.meta").write_bytes(b"")
    damaged = run_metaq(*command)
    assert damaged.returncode == 1
    assert "a.b-1: " in damaged.stderr
    assert run_metaq("store", "import-meta", str(tmp_path / "meta")).returncode == 2
    assert run_metaq("store", "import-meta", str(store), "--data", str(tmp_path / "other")).returncode != 0


def test_import_that_is_told_to_stop_closes_in_order_and_goes_on_later(tmp_path):
    """SIGTERM: exit code 1 and the store as after an orderly end; the next run takes the rest."""
    data, store = tmp_path / "meta" / "test-0", tmp_path / "store"
    data.mkdir(parents=True)
    whole = b"".join(frame(number, 0, b"%06d" % number * 20) for number in range(150_000))
    (data / f"{0:020d}.meta").write_bytes(whole)
    command = metaq_command(
        "store", "import-meta", str(tmp_path / "meta"), "--data", str(store), "-o", "mappedFileSizeCommitLog=16777216"
    )
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as child:
        eventually(lambda: (store / "positions").exists() or child.poll() is not None)
        child.terminate()
        _, told = child.communicate(timeout=PATIENCE)
    assert child.returncode == 1, told
    assert "stopped: the same command goes on from here" in told
    assert not (store / "abort").exists()
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, env=environment(), check=True, timeout=PATIENCE
    )
    [one] = json.loads(done.stdout)["partitions"]
    assert 0 < one["bytes"] <= len(whole)
    assert one["already"] + one["bytes"] == len(whole)


def test_fold_makes_a_folder_ready_for_rocketmq(tmp_path):
    """After a crash: topics.json holds what was answered, and there is no journal. Once more, it says that there is none."""
    config = tmp_path / "config"
    table = SavedTable(
        TableFile(JournalledFile(config / "topics.json"), TOPICS, TOPICS), {}, DataVersion(), clock=FakeClock()
    )
    for name in ("orders", "bills"):
        table.change(name, TopicConfig(name, 4, 4, 6)).settle()
    assert (config / "topics.json.journal.1").exists()
    folded = run_metaq("store", "fold", str(tmp_path))
    assert (folded.returncode, folded.stdout.splitlines()) == (
        0,
        [
            "topics.json: written, with the changes of its journals",
            "subscriptionGroup.json: unchanged, it has no journal",
        ],
    )
    assert list(TOPICS.parse((config / "topics.json").read_text())[1]) == ["orders", "bills"]
    assert not list(config.glob("*.journal.*"))
    assert "topics.json: unchanged, it has no journal" in run_metaq("store", "fold", str(tmp_path)).stdout


def test_fold_refuses_a_journal_of_another_file(tmp_path):
    """And changes nothing."""
    config = tmp_path / "config"
    table = SavedTable(
        TableFile(JournalledFile(config / "topics.json"), TOPICS, TOPICS), {}, DataVersion(), clock=FakeClock()
    )
    for name in ("orders", "bills"):
        table.change(name, TopicConfig(name, 4, 4, 6)).settle()
    (config / "topics.json").write_text(TOPICS.whole({}, DataVersion(1, 1)))
    folded = run_metaq("store", "fold", str(tmp_path))
    assert folded.returncode == 2
    assert "is not the file that" in folded.stderr
    assert (config / "topics.json.journal.1").exists()
