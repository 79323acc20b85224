"""What is built for others: small, complete, and good for a broker in an environment that knows nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import venv
import zipfile

import pytest

from tests.support import ROOT, WHOLE_PATIENCE, process, read_line
from tests.system.wheel import distributions, run

WRITTEN = (".pyx", ".pxi", ".h")
"""What the compiled modules are made of."""
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.all, pytest.mark.long]  # one build for both


@pytest.fixture(scope="module")
def built():
    """Folder with the source distribution and the wheel of these sources."""
    return distributions()


@pytest.mark.slow
def test_what_the_build_makes_anew_is_not_shipped(built):
    """Neither the wheel nor the source distribution carries the generated C; the wheel none of its sources either."""
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    held = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in held if name.endswith((".c", *WRITTEN))]
    assert not shutil.which("cc") or [name for name in held if name.endswith(".so")]
    with tarfile.open(archive) as source:
        names = source.getnames()
    assert not [name for name in names if name.endswith((".c", ".so")) or "/tests/" in name]
    written = {str(path.relative_to(ROOT)) for kind in WRITTEN for path in (ROOT / "src").rglob(f"*{kind}")}
    assert written == {name.partition("/")[2] for name in names if name.endswith(WRITTEN)}
    assert {
        "src/metaq/wire/hot/native/append.pxi",
        "src/metaq/store/log/_syncing_c.h",
        "src/metaq/net/_sweep.pyx",
    } <= written


@pytest.mark.slow
def test_a_fresh_environment_with_the_wheel_runs_a_broker(built, tmp_path):
    """`pip install` of the wheel, `metaq up`, `metaq send`, `metaq consume`: as docs/getting-started.md says."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    bin_folder = tmp_path / "env" / "bin"
    clean = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "NAMESRV_ADDR"}}
    installed = subprocess.run(
        [str(bin_folder / "pip"), "install", "-q", str(wheel)],
        capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, env=clean,
    )  # fmt: skip
    if installed.returncode != 0 and "No matching distribution" in installed.stderr:
        pytest.skip("the package index cannot be reached")
    assert installed.returncode == 0, installed.stderr
    metaq = str(bin_folder / "metaq")
    command = (metaq, "up", "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path / "data"))
    with process(*command, env=clean) as child:
        namesrv = read_line(child, "ready up").split("namesrv=")[1].split()[0]
        run(metaq, "send", "orders", "hello", "--namesrv", namesrv, env=clean)
        assert "hello" in run(metaq, "consume", "orders", "--namesrv", namesrv, env=clean)
        child.terminate()
        assert child.wait(WHOLE_PATIENCE) == 0
