"""`metaq meta1 start`, `stop`, `restart` and `status`: a real broker with a server.ini, in a run dir of the test's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.app.background.places import Places
from metaq.errors import ConfigError
from tests.interop.metaq1 import OurServer, TextConnection
from tests.support import eventually, run_metaq

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("background")]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path / "run")
    yield made
    for name in made.names():
        with contextlib.suppress(ConfigError):
            if pid := made.find(name).pid:
                os.kill(pid, signal.SIGKILL)
                eventually(lambda name=name: made.find(name).pid is None)


def test_a_broker_is_started_restarted_with_the_same_arguments_and_stopped(tmp_path: Path, places: Places) -> None:
    """By its server.ini; the store, the log and its sizes are the same after the restart; a wrong file leaves the one that runs."""
    server = OurServer(tmp_path / "server", None, {"test": {"numPartitions": 1}})

    def meta1(command: str, *words: str, code: int = 0):
        done = run_metaq("meta1", command, *words, "--run-dir", str(places.folder), "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else done.stderr

    assert "no broker was started" in meta1("restart", code=3)
    started = meta1(
        "start", "-f", str(server.ini), "--port", "0", "--as", "meta", "--log-size", "3", "--log-files", "2"
    )
    assert meta1("status")[0]["state"] == "ready"
    with TextConnection(server.text) as text:
        assert text.ask("put test 0 2 0 1", b"hi").code == 200
    again = meta1("restart")
    assert again["stopped"]["outcome"] == "stopped"
    assert again["started"]["pid"] != started["pid"]
    for key in ("name", "server", "arguments", "folder", "store", "log"):
        assert again["started"][key] == started[key]
    what = places.find("meta").description
    assert what is not None
    assert (what.log_bytes, what.log_files) == (3 << 20, 2)
    with TextConnection(server.text) as text:
        assert text.ask("get test g 0 0 100 2").body.endswith(b"hi")
    good = server.ini.read_text()
    server.ini.write_text(good.replace("brokerId=0", "brokerId=x"))
    assert "brokerId" in meta1("restart", "meta", code=2)
    assert places.find("meta").pid == again["started"]["pid"]
    server.ini.write_text(good)
    assert meta1("stop")[0]["outcome"] == "stopped"
    assert meta1("status", code=3)[0]["state"] == "stopped"
    assert meta1("restart", "meta")["stopped"]["outcome"] == "not running"
    assert meta1("status")[0]["state"] == "ready"
    assert "nope" in meta1("restart", "nope", code=3)
