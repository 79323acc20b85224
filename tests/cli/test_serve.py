"""The commands that become servers: ready line, signals, exit codes, configuration."""

from __future__ import annotations

import signal

import pytest

from metaq.testing import free_port
from tests.support import PATIENCE, environment, metaq_command, process, read_line, run_metaq

pytestmark = pytest.mark.slow

SMALL = ("-o", "mappedFileSizeCommitLog=1048576", "-o", "maxHashSlotNum=1000", "-o", "maxIndexNum=4000")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_is_ready_and_stops_cleanly(tmp_path, number):
    """One line on standard output when connections are accepted; exit 0 after a signal, and no abort file left."""
    command = metaq_command("up", "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path / "data"), *SMALL)
    with process(*command) as child:
        line = read_line(child, "ready up namesrv=127.0.0.1:")
        assert (tmp_path / "data" / "abort").exists()
        child.send_signal(number)
        assert child.wait(PATIENCE) == 0
        assert child.stdout.read() == ""
        assert "compiled extension:" in child.stderr.read()
    assert f"data={tmp_path / 'data'}" in line
    assert not (tmp_path / "data" / "abort").exists()


def test_namesrv_and_broker_run_apart(tmp_path):
    """The broker is ready once it is registered; -c, -n and flags work together."""
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=conf-broker\nbrokerClusterName=conf-cluster\nbindAddress=127.0.0.1\nunknownKey=1\n")
    with process(*metaq_command("namesrv", "--port", "0", "--data", str(tmp_path / "n"))) as namesrv:
        address = read_line(namesrv, "ready namesrv").split()[-1]
        command = metaq_command(
            "broker", "-c", str(conf), "-n", address, "--port", "0", "--data", str(tmp_path / "b"), *SMALL
        )
        with process(*command) as broker:
            assert read_line(broker, "ready broker").split()[2] == "conf-broker"
            listed = run_metaq("cluster", "-n", address).stdout
            assert "conf-broker" in listed
            assert "conf-cluster" in listed
            broker.terminate()
            assert broker.wait(PATIENCE) == 0
            assert "unknownKey is unknown and passed over" in broker.stderr.read()
        assert "conf-broker" not in run_metaq("cluster", "-n", address).stdout  # it said good-bye


def test_broker_waits_for_its_name_server(tmp_path):
    """Without a name server there is no ready line; it comes as soon as one answers."""
    port = free_port()
    command = metaq_command("broker", "-n", f"127.0.0.1:{port}", "--port", "0", "--data", str(tmp_path / "b"), *SMALL)
    with process(*command) as broker:
        for line in broker.stderr:
            if "cannot register" in line:
                break
        with process(*metaq_command("namesrv", "--port", str(port), "--data", str(tmp_path / "n"))) as namesrv:
            read_line(namesrv, "ready namesrv")
            read_line(broker, "ready broker")


def test_broker_that_waits_for_a_name_server_can_be_stopped(tmp_path):
    """SIGTERM before it is ready: a clean stop all the same."""
    command = metaq_command("broker", "-n", "127.0.0.1:1", "--port", "0", "--data", str(tmp_path / "b"), *SMALL)
    with process(*command) as broker:
        for line in broker.stderr:
            if "cannot register" in line:
                break
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
    assert not (tmp_path / "b" / "abort").exists()


def test_second_process_on_a_folder_is_refused(tmp_path):
    """The folder's lock is named, exit 1, and the first process goes on."""
    command = metaq_command("up", "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path / "data"), *SMALL)
    with process(*command) as first:
        read_line(first, "ready up")
        second = run_metaq(*command[3:])
        assert second.returncode == 1
        assert str(tmp_path / "data") in second.stderr
        assert "Traceback" not in second.stderr
        assert first.poll() is None


def test_taken_port_is_named(tmp_path):
    """A port that somebody has stops the start before the store is touched."""
    with process(*metaq_command("namesrv", "--port", "0", "--data", str(tmp_path))) as first:
        port = read_line(first, "ready namesrv").rpartition(":")[2]
        second = run_metaq("broker", "--port", port, "--data", str(tmp_path / "b"))
        assert second.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
        assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("flag", ["--print-config", "-p", "-m"])
def test_printed_configuration_is_loaded_back_unchanged(tmp_path, flag):
    """`broker --print-config > metaq.toml; broker -c metaq.toml --print-config` prints the same."""
    first = run_metaq("broker", "-n", "1.2.3.4:9876", "-o", "fileReservedTime=7", flag)
    file = tmp_path / "metaq.toml"
    file.write_text(first.stdout)
    second = run_metaq("broker", "-c", str(file), flag)
    assert first.returncode == second.returncode == 0
    assert second.stdout == first.stdout
    assert "fileReservedTime = 7" in first.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "--host", "0.0.0.0"), "--insecure"),
        (("broker", "-c", "/nowhere.toml"), "cannot read"),
        (("broker", "-o", "listenPrt=1"), "the nearest is listenPort"),
        (("namesrv", "-o", "fileReservedTime=1"), "no option 'fileReservedTime'"),
        (("broker", "--port", "x"), "valid integer"),
    ],
)
def test_wrong_configuration_stops_the_start(arguments, says):
    """Exit 2 and one sentence."""
    done = run_metaq(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_foreign_folder_is_refused_and_left_alone(tmp_path):
    """A folder with somebody else's files is named, and nothing in it changes."""
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    done = run_metaq("up", "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path), *SMALL)
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("server", ["up", "broker", "namesrv"])
def test_data_folder_that_is_a_file_is_named(tmp_path, server):
    """One sentence and an exit code, whichever part comes across it first; the file stays as it is."""
    file = tmp_path / "file"
    file.write_text("mine")
    ports = ("--port", "0") if server != "up" else ("--port", "0", "--namesrv-port", "0")
    done = run_metaq(server, *ports, "--data", str(file))
    assert done.returncode in {1, 2}
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text() == "mine"


def test_other_loop_and_fallback_can_be_chosen(tmp_path):
    """METAQ_UVLOOP=0 and METAQ_HOT=0 run the standard library's loop and the pure-Python fallback, and the log says so."""
    command = metaq_command("up", "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path / "d"), *SMALL)
    with process(*command, env=environment(METAQ_UVLOOP="0", METAQ_HOT="0")) as child:
        read_line(child, "ready up")
        child.terminate()
        assert child.wait(PATIENCE) == 0
        log = child.stderr.read()
    assert "asyncio's own, because METAQ_UVLOOP=0" in log
    assert "plain" in log


def test_up_keeps_small_files_and_a_broker_opens_them(tmp_path):
    """`metaq up` is for laptops: it says what its first message takes, and takes no more. `metaq broker` goes on there."""
    data = tmp_path / "data"
    with process(*metaq_command("up", "--port", "0", "--namesrv-port", "0", "--data", str(data))) as child:
        namesrv = read_line(child, "ready up").split("namesrv=")[1].split()[0]
        assert run_metaq("send", "orders", "hello", "--namesrv", namesrv).returncode == 0
        child.terminate()
        assert child.wait(PATIENCE) == 0
        assert "takes 83 MiB of the disk at its first message" in child.stderr.read()
    taken = sum(path.stat().st_blocks * 512 for path in data.rglob("*") if path.is_file())
    assert taken < 90 << 20
    with process(*metaq_command("broker", "--port", "0", "--data", str(data))) as child:
        read_line(child, "ready broker")
        child.terminate()
        assert child.wait(PATIENCE) == 0


def test_a_broker_without_a_name_server_says_that_nobody_will_find_it(tmp_path):
    """It starts all the same, for whoever knows its address."""
    command = metaq_command("broker", "--port", "0", "--data", str(tmp_path / "d"), *SMALL)
    env = {key: value for key, value in environment().items() if key != "NAMESRV_ADDR"}
    with process(*command, env=env) as child:
        read_line(child, "ready broker")
        child.terminate()
        assert child.wait(PATIENCE) == 0
        assert "no client will find this broker" in child.stderr.read()
