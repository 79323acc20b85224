"""Commands that tests run are processes of their own, however they begin."""

from __future__ import annotations

import subprocess

import pytest

from tests.scripted import ScriptedCluster
from tests.support import metaq_command, run_metaq


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
