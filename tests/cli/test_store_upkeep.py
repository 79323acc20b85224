"""`metaq store check|scrub|repair|copy`: what they print, and how they exit."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from metaq.cli.store.upkeep import progress_shown
from metaq.model.topics.system import SCHEDULE_TOPIC
from tests.store.support import log_file, message, open_store, overwrite
from tests.store.upkeep.support import filled
from tests.support import environment, run_metaq

pytestmark = pytest.mark.slow


def test_check_tells_each_kind_and_the_first_damage(tmp_path):
    """A line per kind with what was counted; exit code 1 with file and byte once something is damaged, 2 for no store."""
    root = filled(tmp_path / "store")
    clean = run_metaq("store", "check", str(root))
    assert clean.returncode == 0, clean.stderr
    assert "500 records" in clean.stdout
    assert "no damage from log offset 0 to" in clean.stdout
    overwrite(log_file(root), 89, b"\xff\xff")
    broken = run_metaq("store", "check", str(root))
    assert broken.returncode == 1
    assert f"{log_file(root)} at byte 0: a record's body does not fit its checksum" in broken.stdout
    told = json.loads(run_metaq("store", "check", str(root), "--json").stdout)
    assert told["kinds"][0]["damage"][0]["path"] == str(log_file(root))
    assert run_metaq("store", "check", str(tmp_path / "nowhere")).returncode == 2
    assert "holds no commit log" in run_metaq("store", "check", str(tmp_path)).stderr


def test_check_for_rocketmq_fails_while_something_is_owed(tmp_path):
    """Delayed messages that were written anew, for one; without --for they are nobody's concern."""
    with open_store(tmp_path) as store:
        store.writer.put([message(SCHEDULE_TOPIC, 10_001, b"later")])
    assert run_metaq("store", "check", str(tmp_path)).returncode == 0
    owed = run_metaq("store", "check", str(tmp_path), "--for", "rocketmq")
    assert owed.returncode == 1
    assert "not ready for RocketMQ: 1 delayed message was written anew" in owed.stdout


def test_scrub_makes_checksums_once_and_tells_what_differs(tmp_path):
    """Properties too, which check cannot judge."""
    root = filled(tmp_path / "store")
    first = run_metaq("store", "scrub", str(root))
    assert first.returncode == 0, first.stderr
    assert "checksums made of" in first.stdout
    assert "checksums made of" not in run_metaq("store", "scrub", str(root)).stdout
    overwrite(log_file(root), 55, b"\x01")  # the port of the born host
    assert run_metaq("store", "check", str(root)).returncode == 0
    found = run_metaq("store", "scrub", str(root))
    assert found.returncode == 1
    assert f"{log_file(root)} at byte 0: it does not fit its checksum" in found.stdout


def test_copy_tells_what_it_has_made_and_refuses_a_target_that_is_there(tmp_path):
    """With the log offsets of the copy, and what it left out."""
    root = filled(tmp_path / "store")
    (root / "archive").mkdir()
    done = run_metaq("store", "copy", str(root), str(tmp_path / "copy"))
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'copy'}: the log from 0 to " in done.stdout
    assert "left out: archive" in done.stdout
    again = run_metaq("store", "copy", str(root), str(tmp_path / "copy"))
    assert again.returncode == 1
    assert "is there already" in again.stderr


def test_a_copy_that_is_interrupted_exits_as_one(tmp_path):
    """Ctrl-C in the middle: 130, nothing under the target's name, and the same command goes on."""
    root = filled(tmp_path / "store")
    slow = (
        "import os, signal, sys; import metaq.store.upkeep.copy as made; from metaq.cli.commands import run; "
        "made._Copy._copy_rest = lambda _: os.kill(os.getpid(), signal.SIGINT); sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", slow, "store", "copy", str(root), str(tmp_path / "copy")]
    done = subprocess.run(command, env=environment(), check=False)
    assert done.returncode == 130
    assert not (tmp_path / "copy").exists()
    assert (tmp_path / "copy.copying").exists()
    assert run_metaq("store", "copy", str(root), str(tmp_path / "copy")).returncode == 0


def test_repair_says_what_it_does_and_first_what_it_would(tmp_path):
    """Exit code 1 while there is something to do, 0 once all is clean."""
    root = filled(tmp_path / "store")
    unit = root / "consumequeue/orders/1" / f"{0:020d}"
    overwrite(unit, 400, b"\xff")
    told = run_metaq("store", "repair", str(root), "--dry-run")
    assert told.returncode == 1
    assert f"would be done: {unit.parent}: rebuilt from the log" in told.stdout
    done = run_metaq("store", "repair", str(root))
    assert done.returncode == 0, done.stderr
    assert f"{unit.parent}: rebuilt from the log" in done.stdout
    assert run_metaq("store", "check", str(root)).returncode == 0
    assert "nothing that is derived" in run_metaq("store", "repair", str(root)).stdout
    assert run_metaq("store", "check", str(root), "--delay-levels", "never").returncode == 2


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_nowhere_else(monkeypatch):
    """A line that is written over, each percent once; nothing into a file."""
    for stream, shown in (
        (Terminal(), ["1.0 KiB of 2.0 KiB read, 50 %", "2.0 KiB of 2.0 KiB read, 100 %\n"]),
        (io.StringIO(), []),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        show = progress_shown("read")
        for done in (1024, 1025, 2048, 2048):
            show(done, 2048)
        assert stream.getvalue().split("\r")[1:] == shown
