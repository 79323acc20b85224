"""Pid files and log files of servers in the background."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from metaq.app.background.places import Description, Places, run_folder
from tests.support import PATIENCE, environment

LOG = """
import logging, os, pathlib, sys
from metaq.app.background.log_file import RotatedLog
log = logging.getLogger()
log.addHandler(RotatedLog(pathlib.Path(sys.argv[1]), 2000, int(sys.argv[2])))
for number in range(100):
    log.error("line %d %s", number, "x" * 60)
os.write(2, b"from below\\n")
print("from above", flush=True)
"""


def logged(path: pathlib.Path, older: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOG, str(path), str(older)], capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=True
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")


def test_a_log_file_is_rotated_by_size_and_has_what_the_process_prints(tmp_path):
    """The newest lines are in the file itself, what others write to standard error, too; as many older ones as are kept."""
    path = tmp_path / "a.log"
    logged(path, 3)
    files = [path, *(path.with_name(f"a.log.{number}") for number in (1, 2, 3))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 2000 for file in files[1:])
    lines = [line for file in reversed(files) for line in file.read_text().splitlines()]
    assert lines[-2:] == ["from below", "from above"]
    numbers = [int(line.split()[line.split().index("line") + 1]) for line in lines[:-2]]
    assert numbers == list(range(numbers[0], 100))


def test_a_log_file_that_cannot_be_rotated_grows_and_says_so(tmp_path):
    """No line is lost."""
    path = tmp_path / "a.log"
    path.with_name("a.log.1").mkdir()
    logged(path, 1)
    text = path.read_text()
    assert [f"line {number} " in text for number in range(100)] == [True] * 100
    assert 1 <= text.count("cannot be rotated") <= 6


def test_folder_of_pid_files():
    """A flag, else METAQ_RUN_DIR, else the user's state folder; a relative XDG_STATE_HOME counts as none."""
    assert run_folder("/a", {"METAQ_RUN_DIR": "/b"}) == pathlib.Path("/a")
    assert run_folder(None, {"METAQ_RUN_DIR": "/b", "XDG_STATE_HOME": "/c"}) == pathlib.Path("/b")
    assert run_folder(None, {"XDG_STATE_HOME": "/c"}) == pathlib.Path("/c/metaq/servers")
    usual = pathlib.Path("~/.local/state/metaq/servers").expanduser()
    assert run_folder(None, {"XDG_STATE_HOME": "c"}) == run_folder(None, {}) == usual


def test_descriptions_that_cannot_be_read_are_none(tmp_path):
    """Half written, of another release, or no file at all: the server is listed by its pid file."""
    places = Places(tmp_path)
    for garbage in (b"", b"{", b'{"name": 3}', b"\xff"):
        (tmp_path / "a.json").write_bytes(garbage)
        assert places.find("a").description is None
        assert places.names() == ["a"]
    kept = Description(name="a", server="up", pid=1, since_ms=2, folder="/", arguments=[], log="/l")
    places.write(kept)
    assert places.find("a").description == kept
