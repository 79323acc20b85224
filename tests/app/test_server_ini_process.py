"""`metaq broker -c server.ini`: a file of the shape that 1.x comes with starts a whole broker as it stands."""

from __future__ import annotations

import socket

import pytest

from metaq.testing import free_port
from tests.app.config_files.test_server_ini import SERVER_INI
from tests.support import PATIENCE, environment, metaq_command, process, read_line, run_metaq

pytestmark = pytest.mark.slow


def ask(port, line, body=b""):
    """The whole answer to one command at the MetaQ 1.x server."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(line.encode() + b"\r\n" + body)
        stream = connection.makefile("rb")
        head = stream.readline()
        return head, stream.read(int(head.split()[-2]))


@pytest.mark.parametrize(("flag", "name"), [("-f", "server.ini"), ("-c", "server.properties")])
def test_a_file_as_it_stands_starts_the_broker_though_its_zookeeper_is_away(tmp_path, flag, name):
    """Data under `~/meta`, the MetaQ 1.x server at serverPort, topics of the file; the log says what it registers later."""
    pytest.importorskip("kazoo")
    port, zookeeper = free_port(), free_port()
    file = tmp_path / "conf" / name
    file.parent.mkdir()
    file.write_text(
        SERVER_INI.replace("=8123", f"={port}")
        .replace("=8120", "=0")
        .replace("localhost:2181", f"localhost:{zookeeper}")
    )
    flags = ("--port", "0", "--host", "127.0.0.1", "-o", "maxHashSlotNum=1000", "-o", "maxIndexNum=4000")
    command = metaq_command("broker", flag, str(file), *flags)
    with process(*command, env=environment() | {"HOME": str(tmp_path)}) as broker:
        assert "broker-7" in read_line(broker, "ready broker")
        code, text = ask(port, "put test 0 5 0 1", b"hello")
        assert code.startswith(b"result 200 ")
        assert text.endswith(b" 0 0")
        assert ask(port, "get meta-test g 0 0 100 1")[0].startswith(b"result 404 ")
        assert ask(port, "get test g 0 0 100 1")[1][20:] == b"hello"
        assert ask(port, "put other 0 5 0 1", b"hello")[0].startswith(b"result 500 ")
        assert ask(port, "stats config 1")[1] == file.read_bytes()
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
        said = broker.stderr.read()
    assert (tmp_path / "meta" / "commitlog").is_dir()
    assert f"localhost:{zookeeper}" in said
    assert "Traceback" not in said


def test_a_wrong_key_stops_the_start_in_one_line(tmp_path):
    """With the number of the line and the nearest name, and exit code 2."""
    file = tmp_path / "server.ini"
    file.write_text(SERVER_INI.replace("numPartitions=1", "numPartition=1"))
    done = run_metaq("broker", "-c", str(file))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{file}, line 10: there is no option 'numPartition'; the nearest is numPartitions" in done.stderr


def test_the_printed_configuration_is_taken_back(tmp_path):
    """`--print-config` writes the whole as a metaq.toml, topics included."""
    file, toml = tmp_path / "server.ini", tmp_path / "metaq.toml"
    file.write_text(SERVER_INI + "[topic=grown]\nnumPartitions=4\n")
    first = run_metaq("broker", "-c", str(file), "--print-config")
    assert first.returncode == 0, first.stderr
    assert "[metaq1.topics.grown]\nnumPartitions = 4\n" in first.stdout
    toml.write_text(first.stdout)
    again = run_metaq("broker", "-c", str(toml), "--insecure", "--print-config")
    assert again.stdout == first.stdout
