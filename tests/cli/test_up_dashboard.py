"""`metaq up` with a dashboard beside it: found, ended with it however it ends, and never in its way."""

from __future__ import annotations

import pathlib
import re
import signal
import socket

import httpx
import pytest

from metaq.cli.servers import dashboard_beside
from metaq.cli.servers.dashboard_beside import DashboardBeside
from metaq.dashboard_options import DashboardOptions
from tests.support import PATIENCE, eventually, metaq_command, process, read_line

pytestmark = pytest.mark.slow

SMALL = ("-o", "mappedFileSizeCommitLog=1048576", "-o", "maxHashSlotNum=1000", "-o", "maxIndexNum=4000")


def up(folder: pathlib.Path, *options: str) -> list[str]:
    return metaq_command("up", "--port", "0", "--namesrv-port", "0", "--data", str(folder / "data"), *SMALL, *options)


def url_in(line: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found, line
    return found.group()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_dashboard_shows_the_cluster_and_ends_with_it(tmp_path: pathlib.Path, number: signal.Signals):
    folder = tmp_path / "pipelines"
    folder.mkdir()
    options = ("-o", "dashboardPort=0", "-o", f"dashboardPipelines={folder}")
    with process(*up(tmp_path, *options)) as child:
        read_line(child, "ready up namesrv=127.0.0.1:")
        url = url_in(read_line(child, "ready dashboard "))

        def seen() -> bool:
            found = httpx.get(url, params={"format": "json"}, timeout=PATIENCE).json()
            return [one["state"] for one in found["brokers"]] == ["up"]

        eventually(seen, what="the dashboard sees its broker")
        child.send_signal(number)
        assert child.wait(PATIENCE) == (-number if number == signal.SIGKILL else 0)
        eventually(lambda: not answers(url), what="the dashboard has ended")
        assert child.stdout.read() == "", "nobody holds it open any more"
        assert "the dashboard has ended" not in child.stderr.read()


def test_a_taken_port_keeps_nothing_from_starting(tmp_path: pathlib.Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("-o", "dashboardEnable=true", "-o", f"dashboardPort={port}")
        with process(*up(tmp_path, *options)) as child:
            read_line(child, "ready up ")
            said = ""
            for line in child.stderr:
                said += line
                if "the dashboard has ended with exit code 1" in line:
                    break
            assert f"127.0.0.1:{port}" in said
            child.terminate()
            assert child.wait(PATIENCE) == 0


def test_a_reload_says_that_its_options_need_a_restart(tmp_path: pathlib.Path):
    file = tmp_path / "metaq.toml"
    file.write_text("[dashboard]\ndashboardEnable = false\n")
    with process(*up(tmp_path, "-c", str(file))) as child:
        read_line(child, "ready up ")
        file.write_text("[dashboard]\ndashboardEnable = false\ndashboardPort = 8999\n")
        child.send_signal(signal.SIGHUP)
        assert any("not in force: dashboard.dashboardPort=8999" in line for line in child.stderr)
        child.terminate()
        assert child.wait(PATIENCE) == 0


def test_elsewhere_than_in_a_terminal_there_is_none(tmp_path: pathlib.Path):
    with process(*up(tmp_path)) as child:
        read_line(child, "ready up ")
        child.terminate()
        assert child.wait(PATIENCE) == 0
        assert child.stdout.read() == ""


@pytest.mark.parametrize(
    ("enable", "port", "terminal", "wanted"),
    [
        (None, None, True, True), (None, None, False, False), (None, 0, False, True), (True, None, False, True),
        (False, 0, True, False), (False, None, True, False),
    ],
)  # fmt: skip
def test_there_is_one_where_somebody_asks_or_reads(
    monkeypatch: pytest.MonkeyPatch, enable: bool | None, port: int | None, terminal: bool, wanted: bool
):
    class Output:
        @staticmethod
        def isatty() -> bool:
            return terminal

    monkeypatch.setattr(dashboard_beside.sys, "stdout", Output)
    assert DashboardBeside(DashboardOptions(dashboard_enable=enable, dashboard_port=port)).wanted() is wanted


def test_without_its_packages_it_is_told_and_not_started(monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(dashboard_beside.importlib.util, "find_spec", lambda name: None if name == "jinja2" else name)
    beside = DashboardBeside(DashboardOptions(dashboard_enable=True))
    beside.start({"namesrv remoting": "127.0.0.1:1"})
    assert beside.pid is None
    assert "needs jinja2: pip install 'pymetaq[dashboard]'" in caplog.text
    beside.end()
