"""Commands that tests run are processes of their own, however they begin."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.testing import EmbeddedBroker
from tests.scripted import ScriptedCluster
from tests.support import metaq_command, run_metaq

pytestmark = pytest.mark.slow


def test_it_ends_as_a_command_that_python_starts(monkeypatch, tmp_path):
    """The same code, output and errors, with this moment's folder and environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    (tmp_path / "here").write_bytes(b"")
    for args in (["--version"], ["topic", "--help"], ["bogus"], ["store", "dump", "here"], ["store", "dump", "gone"]):
        started = subprocess.run(metaq_command(*args), capture_output=True, text=True, check=False)
        forked = run_metaq(*args)
        assert (forked.returncode, forked.stdout, forked.stderr) == (
            started.returncode, started.stdout, started.stderr,
        ), args  # fmt: skip


def test_it_reads_what_it_is_given(tmp_path):
    """All of it, and nothing where nothing is given."""
    empty = run_metaq("send", "x", "-n", "127.0.0.1:1", stdin="")
    assert (empty.returncode, "the body is empty" in empty.stderr) == (2, True)
    body = "x" * 300_000
    sent = run_metaq("send", "x", "-n", "127.0.0.1:1", stdin=body)
    assert (sent.returncode, "Connection refused" in sent.stderr) == (1, True)


def test_one_that_does_not_end_is_killed(tmp_path):
    """After the time that the test gives it."""
    with ScriptedCluster(tmp_path) as cluster:
        cluster.put("orders", 0, [b"x"])
        with pytest.raises(subprocess.TimeoutExpired):
            run_metaq("consume", "orders", "--follow", "-n", cluster.namesrv, timeout=1)


needs_forks = pytest.mark.skipif(sys.platform != "linux", reason="servers are forks on Linux only")


def _status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def _open_at(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return found


@needs_forks
@pytest.mark.parametrize(
    "own",
    [{"METAQ_HOT": "0"}, {"LD_BIND_NOW": "1"}, {"METAQ_UVLOOP": "1"}],
    ids=["a new Python", "loaded anew", "a fork"],
)
def test_a_server_is_a_child_with_signals_and_threads_of_its_own(own):
    """As one that Python starts: killed, stopped, and with nothing open that is the worker's."""
    with EmbeddedBroker(environment=own) as broker:
        forked = b"tests.forked" in Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        assert forked is ("METAQ_UVLOOP" in own)
        assert int(_status(broker.pid)["PPid"]) == os.getpid()
        assert os.getpgid(broker.pid) == os.getpgid(0)
        assert not {end for end in _open_at(broker.pid) & _open_at(os.getpid()) if end.startswith("socket:")}
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.wait_ended() == -signal.SIGKILL
        broker.start()
        broker.stop()
        assert "stopping" in broker.log_text()


@needs_forks
def test_a_server_ends_with_its_parent(tmp_path):
    """Its standard input ends."""
    with EmbeddedBroker(tmp_path / "data") as broker:
        broker._process.stdin.close()
        assert broker.wait_ended() == 0


@needs_forks
def test_what_loses_its_parent_is_not_taken_for_a_server():
    """After a start this process takes no orphans: the end of one would not be seen by who looks whether it lives."""
    with EmbeddedBroker():
        done = subprocess.run(["sh", "-c", "sleep 0.2 & echo $!"], stdout=subprocess.PIPE, text=True, check=True)
        orphan = Path(f"/proc/{int(done.stdout)}")
        assert not orphan.exists() or int(_status(int(done.stdout))["PPid"]) != os.getpid()
