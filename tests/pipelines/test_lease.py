"""One run at a time writes into an archive, and a crash leaves it free."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import subprocess
import sys
import threading

import pytest

from metaq.errors import ConfigError, StoreLocked
from metaq.pipelines.lease import is_free, lease_on
from tests.support import PATIENCE, environment, process, read_line

HOLD = """
import pathlib, sys, threading
from metaq.pipelines.lease import lease_on
lease_on(pathlib.Path(sys.argv[1])).take()
print("taken", flush=True)
threading.Event().wait()
"""


def test_the_second_is_told_who_has_it(tmp_path):
    """Host, process and since when; in another process, and in the same one."""
    with process(sys.executable, "-c", HOLD, str(tmp_path)) as other:
        read_line(other, "taken")
        text = (
            rf"another run writes into {tmp_path}: process {other.pid} on {re.escape(platform.node())}, since 2\d{{3}}-"
        )
        with pytest.raises(StoreLocked, match=text):
            lease_on(tmp_path).take(seconds=0)
    mine = lease_on(tmp_path)
    mine.take(seconds=PATIENCE)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()} on"):
        lease_on(tmp_path).take(seconds=0)
    mine.release()
    mine.release()
    lease_on(tmp_path).take(seconds=0)


def test_a_crash_leaves_it_free(tmp_path):
    """kill -9 of the holder: the next one has it at once, whatever the file says."""
    with process(sys.executable, "-c", HOLD, str(tmp_path)) as other:
        read_line(other, "taken")
        other.kill()
        other.wait(PATIENCE)
        lease_on(tmp_path).take(seconds=0)


def test_a_child_of_the_holder_does_not_keep_it(tmp_path):
    """Spark's JVM outlives a killed driver for a moment."""
    mine = lease_on(tmp_path)
    mine.take()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment(), close_fds=False
    ) as child:
        mine.release()
        lease_on(tmp_path).take(seconds=PATIENCE)  # An exec closes its files one by one, while we go on.
        child.communicate(b"\n", timeout=PATIENCE)


def test_one_that_is_ending_is_waited_for(tmp_path):
    """A service that is restarted takes over from itself."""
    mine = lease_on(tmp_path)
    mine.take()
    timer = threading.Timer(0.2, mine.release)
    timer.start()
    lease_on(tmp_path).take(seconds=PATIENCE)
    timer.join()


def test_whether_it_is_free_can_be_asked_without_taking_it(tmp_path):
    """Also where there never was one."""
    assert is_free(tmp_path / "none")
    mine = lease_on(tmp_path)
    mine.take()
    assert not is_free(tmp_path)
    mine.release()
    assert is_free(tmp_path)
    mine.take(seconds=0)
    mine.release()


def test_an_output_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "_lease").mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be written to: Is a directory"):
        lease_on(tmp_path).take()


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    """Rather than going on without one."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ConfigError, match=r"_lease cannot be locked \(No locks available\), so two runs could not"):
        lease_on(tmp_path).take()


def test_a_lease_whose_text_is_lost_is_still_one(tmp_path):
    """A crash between the lock and the text, or a full disk."""
    mine = lease_on(tmp_path)
    mine.take()
    (tmp_path / "_lease").write_text("")
    with pytest.raises(StoreLocked, match="it has not said yet which process it is"):
        lease_on(tmp_path).take(seconds=0)
