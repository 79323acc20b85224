"""The tests' archive of loaded classes is a cache: without it they go on."""

from __future__ import annotations

import os
import pathlib

from tests.spark.jvm import AGAIN_SECONDS, archived
from tests.support import eventually

MAKES = """
import pathlib, re, sys
pathlib.Path(re.search("ArchiveClassesAtExit=([^ ]+)", sys.argv[1])[1]).write_text("classes")
"""
HANGS = """
import pathlib, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
pathlib.Path({!r}).write_text(str(child.pid))
child.wait()
"""


def test_it_is_made_once(tmp_path):
    """Who comes later gets the same file, whatever its program would do."""
    archive = tmp_path / "cache" / "classes.jsa"
    assert archived(archive, MAKES) == archive
    assert archive.read_text() == "classes"
    assert archived(archive, "raise SystemExit(1)") == archive


def test_a_try_that_takes_too_long_ends_with_its_children_and_is_not_repeated(tmp_path):
    """Nothing is raised, no JVM is left behind, and the next callers do without the archive until an hour has passed."""
    archive, child = tmp_path / "classes.jsa", tmp_path / "child"
    assert archived(archive, HANGS.format(str(child)), seconds=3.0) is None
    assert archived(archive, MAKES) is None
    if child.exists():  # else it was ended before it could start one
        eventually(lambda: not _runs(int(child.read_text())))
    long_ago = (archive.with_suffix(".failed").stat().st_mtime - AGAIN_SECONDS - 1,) * 2
    os.utime(archive.with_suffix(".failed"), long_ago)
    assert archived(archive, MAKES) == archive
    assert not archive.with_suffix(".failed").exists()


def test_a_program_that_fails_leaves_no_archive(tmp_path):
    """Also when it has written half a file."""
    archive = tmp_path / "classes.jsa"
    assert archived(archive, MAKES + "raise SystemExit(1)") is None
    assert not archive.exists()


def _runs(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
