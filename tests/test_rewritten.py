"""What a worker has rewritten for the others is what pytest would have made itself."""

import pathlib
import subprocess
import sys

import pytest

from tests.rewritten import make, share
from tests.support import PATIENCE, environment


def test_the_shares_are_all_files_once():
    files = [pathlib.Path(str(number)) for number in range(10)]
    shared = [file for worker in range(4) for file in share(files, worker, 4)]
    assert sorted(shared, key=files.index) == files


def test_pytest_takes_what_was_made(request, tmp_path):
    """And with it the words of a failed assertion; what is there already is not made again."""
    file = tmp_path / "test_words.py"
    file.write_text("def test_words():\n    three = 3\n    assert three == 4\n")
    if sys.dont_write_bytecode:
        pytest.skip("no bytecode is written here")
    assert make([file], request.config) == 1
    assert make([file], request.config) == 0
    (bytecode,) = tmp_path.rglob("*-pytest-*.pyc")
    before = bytecode.stat().st_ino  # it is replaced where it is made anew
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-c", "none.ini", str(file)]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "assert 3 == 4" in done.stdout
    assert bytecode.stat().st_ino == before
