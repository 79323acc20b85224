"""A rolling upgrade: brokers of the release before, and of this one, are replaced by others while a producer sends."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from metaq.admin import Admin
from metaq.testing import Cluster
from tests.support import PATIENCE, ROOT, run_metaq
from tests.system.rolling import Load, group, running

pytestmark = pytest.mark.slow

NAME = "broker-0"
SOURCE = ROOT / "src" / "metaq"
NEXT = "9.9.9"


def before_failover(folder: pathlib.Path) -> pathlib.Path:
    """Lay out the package of the last commit that knew no failover. Returns what goes into PYTHONPATH; skips without the history."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout

    try:
        first = git("rev-list", "--reverse", "HEAD", "--", "src/metaq/app/failover").decode().split()[0]
        archive = git("archive", f"{first}^", "src/metaq")
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        pytest.skip(f"the history of this repository is not here: {error}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    assert not (folder / "src" / "metaq" / "app" / "failover").exists()
    return folder / "src"


def next_release(folder: pathlib.Path) -> pathlib.Path:
    """Lay out this package with another version."""
    shutil.copytree(SOURCE, folder / "metaq", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "metaq" / "__init__.py"
    text, changed = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{NEXT}"', file.read_text())
    assert changed == 1
    file.write_text(text)
    return folder


def runs_from(pid: int, folder: pathlib.Path) -> bool:
    """Whether a process has a folder in its PYTHONPATH."""
    return str(folder).encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.all
@pytest.mark.long
def test_a_pair_of_the_release_before_is_upgraded(tmp_path):
    """Its brokers cannot restart themselves, and know nothing of being quiet: whoever supervises them starts the new release."""
    old = before_failover(tmp_path / "before")
    with running(Cluster(replicas=2, environment={"PYTHONPATH": str(old)})) as pair:
        assert all(runs_from(one.pid, old) for one in pair.brokers)

        def by(process):
            broker = pair.brokers[process.member]
            broker._given_environment = {}
            broker.restart()

        with Load(pair) as load, Admin(pair.namesrv) as admin:
            done = admin.restart_cluster(by=by, quiet=1, timeout=PATIENCE)
        load.check()
        print(f"longest send in a rolling upgrade from the release before: {load.longest:.2f} s")
        assert [one.member for one in done.restarted] == [1, 0]
        assert done.leaders == {NAME: pair.address(1)}
        assert not any(runs_from(one.pid, old) for one in pair.brokers)


def test_a_group_goes_over_to_what_is_installed_then(tmp_path):
    """A link names the release; brokers that are told to restart execute what is behind it by then."""
    link = tmp_path / "current"
    link.symlink_to(SOURCE.parent)
    with group(environment={"PYTHONPATH": f"{link}{os.pathsep}{ROOT}"}) as made:
        link.unlink()
        link.symlink_to(next_release(tmp_path / "next"))
        with Load(made) as load:
            done = run_metaq("cluster", "restart", "--quiet", "1", "-n", made.namesrv)
        assert done.returncode == 0, done.stderr
        load.check()
        print(f"longest send in a rolling upgrade of a group: {load.longest:.2f} s")
        for broker in made.brokers:
            assert f"metaq {NEXT} broker" in broker.log_text()
