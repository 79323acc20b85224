"""`metaq start`, `metaq stop` and `metaq status`: servers in the background, as real processes in a run dir of the test's."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from metaq.app.background.places import Places
from metaq.errors import ConfigError
from metaq.testing import free_port
from tests.support import PATIENCE, environment, eventually, read_line, run_metaq

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("background")]

SMALL = ("-o", "mappedFileSizeCommitLog=1048576", "-o", "maxHashSlotNum=1000", "-o", "maxIndexNum=4000")
FREE = ("--port", "0", "--namesrv-port", "0")
HOLD = """
import pathlib, signal, sys
from metaq.app.background.places import PidFile
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = PidFile.take(pathlib.Path(sys.argv[1]))
print("held" if held else "taken", flush=True)
sys.stdin.read()
"""
"""A process that has the lock of a pid file until its input ends."""


_LOADED = """
import os
from metaq.cli.servers import child
sys.argv[3] = str(os.open("/dev/null", os.O_WRONLY))
assert child.main() == 1  # the name is taken
from metaq.cli.servers import serve
print(*sorted(sys.modules))
"""
"""Has all the modules loaded that a server's process loads before it starts."""


class Run:
    """`metaq` with a run dir of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.places = Places(folder / "run")

    def __call__(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        return run_metaq(command, *words, "--run-dir", str(self.places.folder))

    def status(self, *names: str) -> list[dict]:
        return json.loads(self("status", *names, "--json").stdout)

    def end(self) -> None:
        """No process of a test stays."""
        for name in self.places.names():
            pid = None
            with contextlib.suppress(ConfigError):  # a pid file that is none
                pid = self.places.find(name).pid
            if pid:
                os.kill(pid, signal.SIGKILL)
                eventually(lambda name=name: self.places.find(name).pid is None)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    made.places.make()
    yield made
    made.end()


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A name server and broker that all tests look at, and none ends."""
    made = Run(tmp_path_factory.mktemp("up"))
    made.started = made("start", "up", *FREE, "--data", str(made.folder / "data"), *SMALL)
    yield made
    made.end()


def test_a_start_returns_when_clients_are_accepted_and_says_where(up):
    """One line of addresses, one of the log; the process has a session of its own, and nothing of the terminal."""
    assert up.started.returncode == 0, up.started.stderr
    ready, log = up.started.stdout.splitlines()
    pid = int(re.match(r"up is ready \(process (\d+)\): ", ready)[1])
    addresses = dict(part.rsplit(" ", 1) for part in ready.partition("): ")[2].split(", "))
    assert set(addresses) == {"namesrv remoting", "broker remoting", "broker replication"}
    sent = run_metaq("send", "orders", "hello", "-n", addresses["namesrv remoting"])
    assert sent.returncode == 0, sent.stderr
    assert log == f"its log is {up.places.log('up')}; `metaq stop up` ends it"
    assert "compiled extension: " in up.places.log("up").read_text().partition("\n")[0]
    assert up.places.pid_file("up").read_text() == f"{pid}\n"
    assert os.getsid(pid) == pid
    assert [str(pathlib.Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)] == [
        "/dev/null",
        str(up.places.log("up")),
        str(up.places.log("up")),
    ]


def test_status_of_one_that_runs(up):
    """Exit code 0; pid, since when, addresses, store, log."""
    (found,) = up.status("up")
    assert (found["state"], found["server"], found["store"]) == ("ready", "up", str(up.folder / "data"))
    assert found["since"] <= found["ready"]
    assert found["no_answer"] == []
    assert found["ended"] is None
    shown = up("status")
    assert shown.returncode == 0
    header, row = shown.stdout.splitlines()
    assert header.split() == ["name", "server", "state", "pid", "since", "addresses", "store", "log"]
    for word in ("up", "ready", str(found["pid"]), found["addresses"]["namesrv remoting"], str(up.places.log("up"))):
        assert word in row


def test_a_second_start_of_the_same_is_refused(up):
    """By name, before anything is touched; and by its store, which the log of the second says."""
    before = up.places.log("up").read_bytes()
    again = up("start", "up", *FREE, "--data", str(up.folder / "other"), *SMALL)
    assert again.returncode == 1
    assert f"up runs already (metaq up, process {up.places.find('up').pid}, namesrv remoting 127" in again.stderr
    assert "--as starts this one by another name" in again.stderr
    assert not (up.folder / "other").exists()
    assert up.places.log("up").read_bytes() == before
    second = up("start", "up", *FREE, "--data", str(up.folder / "data"), "--as", "second", *SMALL)
    assert second.returncode == 1
    assert "second has ended before it was ready (exit code 1). The last lines of its log" in second.stderr
    assert "is open in another process" in second.stderr.splitlines()[-1]
    (found,) = up.status("second")
    assert (found["state"], found["pid"], found["ended"]["exit_code"]) == ("stopped", None, 1)
    assert up("status", "second").returncode == 3
    assert up("status", "up").returncode == 0


def test_of_starts_at_the_same_time_one_is_taken(run):
    """The others are told so, and what they would have served is not touched."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        started = threads.map(
            lambda number: run("start", "namesrv", "--port", "0", "--data", str(run.folder / number)), "123"
        )
        done = sorted(started, key=lambda one: one.returncode)
    assert [one.returncode for one in done] == [0, 1, 1]
    assert all("namesrv runs already" in one.stderr for one in done[1:]), done
    assert run.places.log("namesrv").read_text().count("ready namesrv") == 1
    assert run("stop").returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("start", "broker", "-o", "listenPrt=1"), "the nearest is listenPort"),
        (("start", "broker", "-c", "/nowhere"), "cannot read"),
        (("start", "broker", "--name", "a/b"), "cannot name a server in the background"),
        (("start", "up", "--as", ".."), "cannot name a server in the background"),
        (("start", "up", "--print-config"), "No such option"),
        (("start", "local"), "metaq start broker -f server.ini"),
        (("start", "nonsense"), "No such command"),
        (("stop", "--timeout", "-1"), "greater than or equal to 0"),
    ],
)
def test_wrong_usage_is_one_sentence(run, words, says):
    """Exit code 2, and no file is made."""
    done = run_metaq(*words) if words[1] in {"local", "nonsense"} else run(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(run.places.folder.iterdir()) == []


def test_a_run_dir_that_others_may_write_into_is_refused(run):
    """They would choose which process a stop ends."""
    run.places.folder.chmod(0o777)
    done = run("start", "namesrv", "--port", "0", "--data", str(run.folder / "kv"))
    assert (done.returncode, "others than you may write into" in done.stderr) == (2, True)
    assert list(run.places.folder.iterdir()) == []


def test_there_is_none_of_that_name(run):
    """Exit code 3 of both; without names nothing to stop is no failure."""
    for command in ("stop", "status"):
        done = run(command, "nobody")
        assert (done.returncode, "no server was started as nobody" in done.stderr) == (3, True)
    assert (run("stop").returncode, run("stop").stdout) == (
        0,
        f"no server that was started in {run.places.folder} is running\n",
    )
    assert (run("status").returncode, run("status", "--json").stdout) == (3, "[]\n")


def test_life_of_name_server_and_broker(run):
    """Started, listed, which of several?, killed and started again, stopped in order; logs are appended to."""
    namesrv = json.loads(run("start", "namesrv", "--port", "0", "--data", str(run.folder / "kv"), "--json").stdout)
    address = namesrv["addresses"]["remoting"]
    log = run.folder / "logs" / "a.log"
    broker = (
        "start",
        "broker",
        "-n",
        address,
        "--port",
        "0",
        "--name",
        "a",
        "--data",
        str(run.folder / "a"),
        "--log",
        str(log),
        *SMALL,
    )
    first = run(*broker)
    assert first.returncode == 0, first.stderr
    assert "a" in run_metaq("cluster", "-n", address).stdout
    assert [(one["name"], one["server"]) for one in run.status()] == [("a", "broker"), ("namesrv", "namesrv")]
    which = run("stop")
    assert (which.returncode, "several run: a, namesrv" in which.stderr) == (2, True)
    killed = run.places.find("a").pid
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: run.places.find("a").pid is None)
    died = run("status", "a")
    assert (died.returncode, "died" in died.stdout) == (1, True)
    again = run(*broker)
    assert again.returncode == 0, again.stderr
    assert "recovered: " in log.read_text()
    assert log.read_text().count("ready broker a") == 2
    stopped = json.loads(run("stop", "--all", "--json").stdout)
    assert [(one["name"], one["outcome"]) for one in stopped] == [("a", "stopped"), ("namesrv", "stopped")]
    assert not (run.folder / "a" / "abort").exists()
    assert [(one["state"], one["ended"]["exit_code"]) for one in run.status()] == [("stopped", 0)] * 2
    assert not list(run.places.folder.glob("*.pid"))
    idle = run("stop", "a")
    assert (idle.returncode, idle.stdout) == (0, "a does not run\n")


def test_a_server_that_is_not_ready_in_time_goes_on_starting(run):
    """A broker that waits for its name server: the command says so; status has it as starting, and stop ends it cleanly."""
    namesrv = f"127.0.0.1:{free_port()}"
    done = run(
        "start", "broker", "-n", namesrv, "--port", "0", "--name", "b", "--data", str(run.folder / "b"),
        "--timeout", "3", *SMALL,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is not ready after 3 s and goes on starting" in done.stderr
    # After two seconds, and at the end.
    assert done.stderr.count(f"it waits until name server {namesrv} has registered it") >= 1
    log = run.places.log("b")
    eventually(lambda: log.exists() and "cannot register" in log.read_text())
    (found,) = run.status("b")
    assert (found["state"], run("status", "b").returncode) == ("starting", 0)
    early = run("start", "broker", "--name", "b", "--port", "0", "--data", str(run.folder / "b2"))
    assert (early.returncode, "not ready yet" in early.stderr) == (1, True)
    assert run("stop", "b").stdout.startswith("b has stopped (process")
    assert not (run.folder / "b" / "abort").exists()


def test_a_server_ini_of_1x_starts_as_its_users_type_it(run, monkeypatch):
    """`-f`, a path relative to the working directory, the topics of the file, and clients of both generations."""
    port = free_port()
    (run.folder / "conf").mkdir()
    (run.folder / "conf" / "server.ini").write_text(
        f"[system]\nbrokerId=3\nserverPort={port}\ndashboardHttpPort=0\nnumPartitions=1\ndataPath={run.folder / 'meta'}\n"
        "[zookeeper]\nzk.zkEnable=false\n[topic=test]\n"
    )
    monkeypatch.chdir(run.folder)
    done = run("start", "up", "-f", "conf/server.ini", "--host", "127.0.0.1", *FREE, "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    started = json.loads(done.stdout)
    assert started["store"] == str(run.folder / "meta")
    assert started["addresses"]["broker metaq1"] == f"127.0.0.1:{port}"
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(b"put test 0 5 0 1\r\nhello")
        assert client.recv(100).startswith(b"result 200 ")
    found = run_metaq("consume", "test", "--json", "-n", started["addresses"]["namesrv remoting"])
    assert json.loads(found.stdout.splitlines()[0])["body"] == "hello"
    assert run("stop").returncode == 0


def test_a_port_that_is_taken_is_the_reason_it_says(run, up):
    """Exit code 2 as in the foreground, with the log's last lines; nothing is left but the log and the description."""
    address = up.status("up")[0]["addresses"]["namesrv remoting"]
    done = run("start", "namesrv", "--port", address.rpartition(":")[2], "--data", str(run.folder / "kv"))
    assert done.returncode == 2
    assert f"cannot listen on {address}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in run.places.folder.iterdir()) == ["namesrv.json", "namesrv.log"]


def test_files_that_cannot_be_written_are_the_reason_it_says(run):
    """A description, or a log, where a folder is in its way."""
    (run.places.folder / "namesrv.json").mkdir()
    (run.folder / "log").mkdir()
    done = run("start", "namesrv", "--port", "0", "--data", str(run.folder / "kv"))
    assert done.returncode == 1
    assert f"the files of namesrv in {run.places.folder} cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("start", "namesrv", "--as", "n", "--log", str(run.folder / "log"), "--port", "0")
    assert (done.returncode, f"the log file {run.folder / 'log'} cannot be written" in done.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_pid_file_that_is_none_is_named(run, kind):
    """Nothing is followed, waited for or ended."""
    path = run.places.pid_file("a")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/null")
    else:
        os.mkfifo(path)
    for words in (("status",), ("stop", "a"), ("start", "namesrv", "--as", "a", "--port", "0")):
        done = run(*words)
        assert (done.returncode, f"the pid file {path} cannot be read" in done.stderr) == (2, True), done
        assert len(done.stderr.splitlines()) == 1


def test_a_pid_file_with_anything_in_it_is_one_of_a_server_that_has_died(run):
    """What is in it counts for nothing."""
    for text in (b"", b"-1\n", b"0\n", b"1\n", b"99999999999999999999\n", b"\0" * 10_000):
        run.places.pid_file("a").write_bytes(text)
        assert run("status", "a").returncode == 1
        assert run("stop", "a", "--force").stdout == "a does not run\n"


@pytest.fixture
def stranger():
    """A process that has nothing to do with us."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_pid_that_another_process_has_now_is_never_ended(run, stranger):
    """A pid file that a crash left, with the number of a process that came later: its lock is free, so no server runs."""
    run.places.pid_file("old").write_text(f"{stranger.pid}\n")
    assert (run("status", "old").returncode, run.status("old")[0]["state"]) == (1, "died")
    done = run("stop", "old", "--force", "--timeout", "0")
    assert (done.returncode, done.stdout) == (0, "old does not run\n")
    assert stranger.poll() is None
    assert not run.places.pid_file("old").exists()


def test_the_lock_says_which_process_it_is_and_not_the_number_in_the_file(run, stranger):
    """Whatever somebody has written into the pid file of one that runs."""
    with holder(run, "h", "") as process:
        run.places.pid_file("h").write_text(f"{stranger.pid}\n")
        assert run("status", "h").returncode == 0
        done = run("stop", "h")
        assert done.returncode == 0, done.stderr
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert stranger.poll() is None


def test_one_that_does_not_end_is_killed_by_force_alone(run):
    """Exit code 1 and what to do; --force ends it. One that is halted goes on to end."""
    with holder(run, "deaf", "deaf") as process:
        done = run("stop", "deaf", "--timeout", "0.2")
        assert done.returncode == 1
        assert f"deaf (process {process.pid}) still runs 0 s after it was told to stop" in done.stderr
        assert "--force kills it" in done.stderr
        assert process.poll() is None
        done = run("stop", "deaf", "--timeout", "0", "--force")
        assert (done.returncode, "was killed" in done.stdout) == (0, True)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    with holder(run, "halted", "") as process:
        process.send_signal(signal.SIGSTOP)
        assert run("stop", "halted").returncode == 0


def test_a_long_stop_tells_how_far_it_is(run):
    """After two seconds, with the last line of its log."""
    run.places.log("slow").write_text("once\nit flushes\n")
    with holder(run, "slow", "deaf"):
        done = run("stop", "slow", "--timeout", "2.2")
    assert re.search(r"^slow is stopping \(2 s\): it flushes$", done.stderr, re.MULTILINE)


def holder(run: Run, name: str, kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.places.pid_file(name)), kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert read_line(process, "") == "held"
    return process


def test_a_server_in_the_background_keeps_no_typer(up):
    """Its process is as small as one in the foreground."""
    pid = up.places.find("up").pid
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert words[words.index("-m") + 1] == "metaq.cli.servers.child"
    program = f"import sys; sys.argv = ['x', *{words[words.index('-m') + 2 :]!r}]; " + _LOADED
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=True, timeout=PATIENCE
    )
    assert not set(done.stdout.split()) & {"typer", "click", "argparse", "rich", "metaq.cli.commands"}
