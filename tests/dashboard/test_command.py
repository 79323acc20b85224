"""`metaq dashboard` as a process; that of `metaq up` is tested in tests/cli/test_up_dashboard.py."""

from __future__ import annotations

import pathlib
import re
import signal

import httpx

from metaq.testing.ports import free_port
from tests.support import PATIENCE, metaq_command, process, read_line, run_metaq


def test_it_says_where_it_is_and_ctrl_c_ends_it():
    address = f"127.0.0.1:{free_port()}"
    with process(*metaq_command("dashboard", "-n", address, "--port", "0")) as child:
        line = read_line(child, "ready dashboard")
        url = re.fullmatch(rf"ready dashboard (http://127\.0\.0\.1:\d+/) of {address}", line)[1]
        assert "Nobody answers" in httpx.get(url, timeout=PATIENCE).text
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 0
        assert "Traceback" not in child.stderr.read()


def test_folders_of_pipelines_are_named_by_flags(tmp_path: pathlib.Path):
    folders = [str(tmp_path / name) for name in ("one", "two, and more")]
    words = [word for folder in folders for word in ("--pipelines", folder)]
    with process(*metaq_command("dashboard", "-n", f"127.0.0.1:{free_port()}", "--port", "0", *words)) as child:
        url = read_line(child, "ready dashboard").split()[2]
        found = httpx.get(f"{url}pipelines", params={"format": "json"}, timeout=PATIENCE).json()
        assert found["places"] == folders


def test_what_it_cannot_start_with_is_said_in_a_line():
    done = run_metaq("dashboard", "--bind", "0.0.0.0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "add --insecure if that is meant" in done.stderr
    done = run_metaq("dashboard", "-n", "http://nowhere/")
    assert done.returncode == 2
    assert "is a URL or a path" in done.stderr
    assert run_metaq("dashboard", "--log-level", "loud").returncode == 2
