"""What processes open is recorded, and held against the inputs of their step."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from checks.graph import ImportGraph
from checks.inputs import inputs_of, selected_tests
from checks.opened import environment, in_short, recorded, source_of, undeclared
from checks.table import STEPS, one_of_each_name
from tests.support import PATIENCE, ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("src/metaq/__pycache__/clock.cpython-311.pyc", "src/metaq/clock.py"),
        ("src/metaq/__pycache__/clock.cpython-311.opt-1.pyc", "src/metaq/clock.py"),
        ("src/metaq/__pycache__/clock.cpython-311.pyc.140118", "src/metaq/clock.py"),
        ("tests/__pycache__/test_a.cpython-311-pytest-9.1.1.pyc", "tests/test_a.py"),
        ("src/metaq/net/_sweep.cpython-311-x86_64-linux-gnu.so", "src/metaq/net/_sweep.pyx"),
        ("docs/page.md", "docs/page.md"),
    ],
)
def test_what_was_made_of_a_source_is_that_source(path, source):
    """Bytecode, pytest's too, and while it is written; compiled modules."""
    assert source_of(path) == source


def test_only_files_of_the_project_can_be_missing():
    """What a run makes itself is no input."""
    assert undeclared({"b", "a", "made/by/test"}, {"a"}, {"a", "b", "c"}) == ["b"]


def test_many_files_are_named_by_folder():
    assert in_short(["a/x", "a/y"]) == "a/x, a/y"
    assert in_short([f"a/{number}" for number in range(7)]) == "a (7)"


def run_recorded(program, root, out, **more):
    before = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables = {**before, **environment(ROOT, out, {"PYTHONPATH": str(root)}), "CI_ROOT": str(root), **more}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE, env=variables, cwd=root)
    return recorded(out)


def test_opens_and_imports_of_a_process_and_of_those_it_starts_are_recorded(tmp_path):
    """By relative paths, after a fork, and with every descriptor closed; not what lies elsewhere."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("one", "two", "three", "four", "five"):
        (root / f"{name}.py").write_text("")
    program = """
import os, subprocess, sys
import one
open("two.py").close()
open(b"two.py").close()
os.closerange(3, 50)
if not os.fork():
    import three
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "import four"], check=True)
"""
    found = run_recorded(program, root, tmp_path / "out")
    assert {name for name in found if name.endswith(".py")} == {"one.py", "two.py", "three.py", "four.py"}


def test_nothing_is_recorded_where_nobody_asked(tmp_path):
    """The hook costs nothing then: it is not there."""
    assert recorded(tmp_path / "out") == set()
    program = "import sitecustomize, sys; assert sitecustomize.__file__.startswith(sys.argv[1]) if sys.argv[1:] else 1"
    variables = {**os.environ, "PYTHONPATH": str(ROOT / ".ci/checks/record")}
    variables.pop("CI_OPENED", None)
    subprocess.run([sys.executable, "-c", program, str(ROOT)], check=True, timeout=PATIENCE, env=variables)
    assert not (tmp_path / "out").exists()


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git here")
    return [name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()]


def test_the_fallback_step_opens_only_its_inputs(tmp_path):
    """One of its files in full: what pytest, its plugins, the fixtures and the module open is all in the step's list."""
    files = tracked()
    step = one_of_each_name(STEPS)["fallback"]
    graph = ImportGraph(ROOT, files)
    test = "tests/wire/test_compression.py"
    assert test in selected_tests(step, ROOT, files)
    out = tmp_path / "out"
    variables = {**os.environ, **dict(step.environment)}
    variables.update(environment(ROOT, out, variables))
    workers = ["-n", "2", "--dist", "loadgroup"]  # as the step has them: who hands out the tests opens files, too
    command = [sys.executable, "-m", "pytest", *workers, "-p", "no:cacheprovider", "-x", test]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout
    found = recorded(out)
    assert {test, "src/metaq/wire/compression.py", "pyproject.toml"} <= found
    assert undeclared(found, inputs_of(step, graph, ROOT), files) == []
    assert not pathlib.Path(ROOT / ".ci/checks/record/__pycache__").is_symlink()
