"""`metaq dashboard`, and the dashboard of `metaq up`, as processes."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess

import httpx

from metaq.testing.ports import free_port
from tests.support import PATIENCE, eventually, metaq_command, process, read_line, run_metaq

UP = ("--port", "0", "--namesrv-port", "0", "-o", "diskMaxUsedSpaceRatio=95")


def test_it_says_where_it_is_and_ctrl_c_ends_it():
    address = f"127.0.0.1:{free_port()}"
    with process(*metaq_command("dashboard", "-n", address, "--port", "0")) as child:
        line = read_line(child, "ready dashboard")
        url = re.fullmatch(rf"ready dashboard (http://127\.0\.0\.1:\d+/) of {address}", line)[1]
        assert "Nobody answers" in httpx.get(url, timeout=PATIENCE).text
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 0
        assert "Traceback" not in child.stderr.read()


def test_what_it_cannot_start_with_is_said_in_a_line():
    done = run_metaq("dashboard", "--bind", "0.0.0.0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "add --insecure if that is meant" in done.stderr
    done = run_metaq("dashboard", "-n", "http://nowhere/")
    assert done.returncode == 2
    assert "is a URL or a path" in done.stderr
    assert run_metaq("dashboard", "--log-level", "loud").returncode == 2


def test_metaq_up_starts_one_beside_its_broker_and_ends_it(tmp_path: pathlib.Path):
    with process(*metaq_command("up", "--data", str(tmp_path / "data"), *UP, "-o", "dashboardPort=0")) as child:
        line = read_line(child, "ready up")
        url = re.search(r" dashboard=(\S+) data=", line)[1]
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            assert eventually(lambda: client.get("/brokers", params={"format": "json"}).json()["rows"]["total"] == 1)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0

    def is_gone() -> bool:
        try:
            httpx.get(url, timeout=PATIENCE)
        except httpx.ConnectError:
            return True
        return False

    assert eventually(is_gone)


def test_a_dashboard_ends_with_a_metaq_up_that_was_killed(tmp_path: pathlib.Path):
    with process(*metaq_command("up", "--data", str(tmp_path / "data"), *UP, "-o", "dashboardPort=0")) as child:
        url = re.search(r" dashboard=(\S+) data=", read_line(child, "ready up"))[1]
        os.kill(child.pid, signal.SIGKILL)

        def is_gone() -> bool:
            try:
                httpx.get(url, timeout=PATIENCE)
            except httpx.HTTPError:
                return True
            return False

        assert eventually(is_gone)


def test_a_port_that_is_taken_is_said(tmp_path: pathlib.Path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            metaq_command("up", "--data", str(tmp_path / "data"), *UP, "-o", f"dashboardPort={port}"),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"dashboardPort={port}: the dashboard has not started" in done.stderr
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
