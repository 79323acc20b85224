"""`make test-pythons`: which Pythons it runs the tests on, and what it says of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.wheels import versions

from tools import pythons


def a_python(folder: Path, version: str) -> Path:
    """A program that says that it is a Python of this version."""
    folder.mkdir(parents=True)
    program = folder / f"python{version}"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    return program


def test_a_program_that_is_no_such_python_is_left_out(tmp_path):
    assert pythons.runs(Path(sys.executable), pythons.OWN)
    assert not pythons.runs(Path(sys.executable), "3.9")
    assert not pythons.runs(tmp_path / "none", pythons.OWN)


@pytest.mark.parametrize("code", [0, 2])
def test_each_python_that_is_here_has_its_tests_run(tmp_path, monkeypatch, capsys, code):
    """In an environment of its own, with the arguments; one that fails is named, and the others are tested all the same."""
    others = [version for version in versions() if version != pythons.OWN]
    here, there, missing = others
    programs = {version: a_python(tmp_path / version / "bin", version) for version in (here, there)}
    broken = tmp_path / "broken" / f"python{here}"
    monkeypatch.setattr(
        pythons, "interpreters", lambda version: [broken, programs[version]] if version in programs else []
    )
    ran: list[list[str]] = []
    run = subprocess.run

    def make(command, **rest):
        if command[0] != "make":
            return run(command, **rest)
        ran.append(command[2:])
        return subprocess.CompletedProcess(command, code if len(ran) == 1 else 0)

    monkeypatch.setattr(subprocess, "run", make)
    assert pythons.main(["-k", "tls"]) == (1 if code else 0)
    assert ran == [
        [f"PYTHON={programs[version]}", f"VENV=.cache/python-{version}", "ARGS=-k tls"] for version in (here, there)
    ]
    said = capsys.readouterr().out
    assert f"== Python {missing}: not here" in said
    assert (f"the tests failed on Python {here}\n" in said) == bool(code)
