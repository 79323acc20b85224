"""A stranger's first minutes: a fresh clone, `make`, and nothing on the machine but Python and the usual tools."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import warnings

import pytest

from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, WHOLE_TEST_SECONDS

UNSTEADY_MAX = 3
"""So many tests of a run may fail and pass alone; more is no accident."""
COREUTILS = [
    "arch",
    "base64",
    "basename",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "cksum",
    "comm",
    "cp",
    "csplit",
    "cut",
    "date",
    "dd",
    "df",
    "dir",
    "dircolors",
    "dirname",
    "du",
    "echo",
    "env",
    "expand",
    "expr",
    "factor",
    "false",
    "fmt",
    "fold",
    "groups",
    "head",
    "hostid",
    "id",
    "install",
    "join",
    "link",
    "ln",
    "logname",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mknod",
    "mktemp",
    "mv",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "numfmt",
    "od",
    "paste",
    "pathchk",
    "pr",
    "printenv",
    "printf",
    "ptx",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "runcon",
    "seq",
    "sha1sum",
    "sha256sum",
    "shred",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "stdbuf",
    "stty",
    "sum",
    "sync",
    "tac",
    "tail",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uname",
    "unexpand",
    "uniq",
    "unlink",
    "uptime",
    "users",
    "vdir",
    "wc",
    "who",
    "whoami",
    "yes",
    "[",
]

TARGETS = [
    "demo",
    "quick",
    "nightly",
    "test",
    "test-interop",
    "test-all",
    "lint",
    "types",
    "bench-small",
    "fuzz",
    "verify-locked",
    "audit",
    "lock",
    "wheel",
    "wheels",
    "release",
    "clean",
    "help",
]


@pytest.fixture
def bare_path(tmp_path):
    """A folder for PATH with python3, make, bash, git and coreutils, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("make", "bash", "git", *COREUTILS):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    # The interpreter itself, not a version manager's shim, which would need the manager.
    (folder / "python3").symlink_to(pathlib.Path(sys.executable).resolve())
    return folder


def make(clone, bare_path, *args, timeout, **more):
    command = ["make", *args]
    # `env -i`: no HOME, no JAVA_HOME, no PYTHONPATH. Only the cache of downloads may be shared, to be kind to PyPI.
    environment = {"PATH": str(bare_path), **more}
    if cache := os.environ.get("PIP_CACHE_DIR"):
        environment["PIP_CACHE_DIR"] = cache
    return subprocess.run(
        command, cwd=clone, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def clone_to(folder):
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True, timeout=PATIENCE)
    return folder


@pytest.mark.parametrize("target", TARGETS)
def test_target_is_runnable_with_bare_tools(bare_path, target):
    """Every target of the Makefile is planned by a bare make: no tool is missing before the environment exists."""
    done = make(ROOT, bare_path, "--dry-run", target, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_help_lists_every_target(bare_path):
    """`make help` reads the Makefile, so that it cannot forget a target."""
    done = make(ROOT, bare_path, "help", timeout=PATIENCE)
    for target in TARGETS:
        assert f"make {target} " in done.stdout


def test_demo_is_the_default_and_says_what_it_downloads(bare_path, tmp_path):
    """`make` alone is the demo; before it installs anything it says how much that will be."""
    clone = tmp_path / "clone"
    clone.mkdir()
    shutil.copy(ROOT / "Makefile", clone)
    for name in ("pyproject.toml", "setup.py"):
        (clone / name).touch()
    done = make(clone, bare_path, "--dry-run", timeout=PATIENCE)
    assert "downloads about 0.7 GB" in done.stdout
    assert done.stdout.strip().endswith("-m demo")


def test_old_python_is_refused_by_name(bare_path, tmp_path):
    """An interpreter that is too old is named, and how to choose another is said."""
    old = tmp_path / "old-python"
    old.write_text('#!/bin/bash\n[ "$1" = -V ] && echo "Python 3.6.8"\nexit 1\n')
    old.chmod(0o755)
    clone = tmp_path / "clone"
    clone.mkdir()
    shutil.copy(ROOT / "Makefile", clone)
    for name in ("pyproject.toml", "setup.py"):
        (clone / name).touch()
    done = make(clone, bare_path, f"PYTHON={old}", "lint", timeout=PATIENCE)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stdout + done.stderr
    assert "Python 3.6.8" in done.stdout + done.stderr


def last_failed(clone: pathlib.Path) -> list[str]:
    """The tests that failed in the clone's last run. Beside each other, those of a group are named TEST@GROUP; alone they are not."""
    found = clone / ".pytest_cache/v/cache/lastfailed"
    return [re.sub(r"@\w+$", "", name) for name in json.loads(found.read_text())] if found.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(4 * WHOLE_TEST_SECONDS)
@pytest.mark.skipif(
    "METAQ_FRESH_CLONE" not in os.environ,
    reason="installs everything again and runs make demo and make test in a clone (10-20 min): `make test-all` does it",
)
def test_both_targets_work_from_a_fresh_clone_without_compiler_and_java(bare_path, tmp_path):
    """`make demo` and `make test` do everything; the doctor names the pure-Python fallback and the bundled Java.

    METAQ_FRESH_CLONE names another target than `test`: CI runs `test-plain` here, and all tests with a compiler.
    """
    target = os.environ["METAQ_FRESH_CLONE"]
    clone = clone_to(tmp_path / "clone")
    before = set(tmp_path.iterdir())

    demo = make(clone, bare_path, timeout=2 * WHOLE_PATIENCE)
    assert demo.returncode == 0, demo.stdout[-4000:] + demo.stderr[-4000:]
    assert "lost" in demo.stdout

    # An old Java in JAVA_HOME is passed over with a notice.
    old_java = tmp_path / "java8"
    (old_java / "bin").mkdir(parents=True)
    (old_java / "bin" / "java").write_text("#!/bin/bash\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    (old_java / "bin" / "java").chmod(0o755)
    doctor = make(clone, bare_path, "doctor", timeout=WHOLE_PATIENCE, JAVA_HOME=str(old_java))
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "plain" in doctor.stdout
    assert "bundled Java" in doctor.stdout
    assert "passed over" in doctor.stdout

    # METAQ_FRESH_CLONE is not set in there: no clone in the clone.
    test = make(clone, bare_path, target, timeout=2 * WHOLE_PATIENCE)
    if test.returncode != 0 and 1 <= len(failed := last_failed(clone)) <= UNSTEADY_MAX:
        # As .ci/run does: of thousands of tests a busy machine fails one now and then. It is named, and must pass alone.
        warnings.warn(f"failed in the clone, and are run again: {failed}\n{test.stdout[-6000:]}", stacklevel=1)
        test = make(clone, bare_path, target, timeout=WHOLE_PATIENCE, ARGS=shlex.join(failed))
    assert test.returncode == 0, test.stdout[-6000:] + test.stderr[-2000:]
    assert " passed" in test.stdout
    assert set(tmp_path.iterdir()) - before == {old_java}
