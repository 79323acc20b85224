"""`metaq broker restart` on processes: the same process number and data, a new program, and what systemd is told of it."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest

from metaq.testing import free_port
from metaq.testing.embedded import SMALL
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from tests.app.test_service_manager import manager, until
from tests.servers.support import send_header
from tests.support import environment, eventually, exchange, metaq_command, process, read_line, run_metaq

pytestmark = pytest.mark.slow

OPTIONS = [word for pair in SMALL.items() for word in ("-o", "{}={}".format(*pair))]


def send(address: str) -> int:
    """Send a message. Returns its queue offset."""
    (answer,) = exchange(address, [request(RequestCode.SEND_MESSAGE_V2, send_header("orders", queue_id=0), b"x")])
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueOffset"])


def identity(address: str) -> str:
    (answer,) = exchange(address, [request(RequestCode.IDENTIFY)])
    return str(json.loads(bytes(answer.body))["instance"])


def option(address: str, name: str) -> str:
    (answer,) = exchange(address, [request(RequestCode.GET_BROKER_CONFIG)])
    return next(
        line.partition("=")[2] for line in bytes(answer.body).decode().splitlines() if line.startswith(f"{name}=")
    )


def test_a_broker_restarts_in_its_process(tmp_path):
    """With what it has stored, and the arguments and environment that it had. Signals are taken as before."""
    address, file = f"127.0.0.1:{free_port()}", tmp_path / "broker.conf"
    file.write_text("maxMessageSize=100000\n")
    with manager(tmp_path) as (received, notify):
        told = environment(NOTIFY_SOCKET=notify, WATCHDOG_USEC="600000000", LEFT_AS_IT_IS="1")
        words = ["--port", address.rpartition(":")[2], "--name", "b", "--data", str(tmp_path / "data"), "-c", str(file)]
        with process(*metaq_command("broker", *words, *OPTIONS), env=told) as child:
            ready = read_line(child, "ready")
            until(received, "READY")
            seen = {identity(address)}
            for number in range(2):
                assert send(address) == number
                done = run_metaq("broker", "restart", address, "--wait")
                assert done.returncode == 0, done.stderr
                assert "it is starting" in done.stderr
                assert f"the broker at {address} serves clients again" in done.stdout
                assert read_line(child, "ready") == ready
                reloading, before = until(received, "RELOADING")
                assert "STOPPING" not in before
                assert reloading["STATUS"].startswith("restarting: a restart request from 127.0.0.1")
                assert int(reloading["MONOTONIC_USEC"]) > 0
                found, before = until(received, "READY")
                assert (found["STATUS"], "STOPPING" in before) == (ready, False)
                seen.add(identity(address))
            assert len(seen) == 3
            assert send(address) == 2
            environ = pathlib.Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
            assert {b"LEFT_AS_IT_IS=1", f"NOTIFY_SOCKET={notify}".encode()} <= set(environ)
            # Closed in order, both times.
            assert not (tmp_path / "data" / "cut").exists()
            file.write_text("maxMessageSize=200000\n")
            child.send_signal(signal.SIGHUP)
            eventually(lambda: option(address, "maxMessageSize") == "200000", what="the file is read again")
            child.send_signal(signal.SIGTERM)
            until(received, "STOPPING")
            assert child.wait() == 0
            assert not (tmp_path / "data" / "abort").exists()


def test_a_broker_in_the_background_stays_known(tmp_path):
    """`metaq status` and `metaq stop` find it under its name."""
    address, place = f"127.0.0.1:{free_port()}", ["--run-dir", str(tmp_path / "run")]
    words = ["--port", address.rpartition(":")[2], "--name", "b", "--data", str(tmp_path / "data"), *OPTIONS]
    started = run_metaq("start", "broker", *words, *place, "--json")
    assert started.returncode == 0, started.stderr
    pid = json.loads(started.stdout)["pid"]
    try:
        before = identity(address)
        done = run_metaq("broker", "restart", address, "--wait", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["address"] == address
        assert identity(address) != before
        (one,) = json.loads(run_metaq("status", *place, "--json").stdout)
        assert (one["pid"], one["addresses"]["remoting"]) == (pid, address)
    finally:
        assert run_metaq("stop", "b", *place).returncode == 0


def test_what_shares_its_process_refuses(tmp_path):
    """And goes on."""
    port, names = free_port(), free_port()
    words = ["--port", str(port), "--namesrv-port", str(names), "--data", str(tmp_path / "data"), *OPTIONS]
    with process(*metaq_command("up", *words)) as child:
        read_line(child, "ready")
        done = run_metaq("broker", "restart", f"127.0.0.1:{port}")
        assert (done.returncode, "shares its process" in done.stderr) == (1, True)
        offset = headers.QueueHeader(topic="orders", queue_id=0)
        assert send(f"127.0.0.1:{port}") == 0
        (answer,) = exchange(f"127.0.0.1:{port}", [request(RequestCode.GET_MAX_OFFSET, offset)])
        assert answer.ext["offset"] == "1"
