"""The programs of examples/metaq1 run as they stand, at the original server 1.4.6.2 and at ours."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.metaq1 import MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from metaq.testing import eventually
from metaq.wire.metaq1.frame import HEAD_BYTES
from tests.interop import mariadb
from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper
from tests.metaq1.stored import payloads, read
from tests.support import PATIENCE, ROOT, environment

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("metaq1-examples")]

FOLDER = ROOT / "examples" / "metaq1"
HELPER = "options.py"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != HELPER)
SERVERS = {"original": OriginalServer, "ours": OurServer}
TOPICS = (
    "sent",
    "futures",
    "lines",
    "transfers",
    "payments",
    "logs",
    "consumed",
    "alone",
    "cached",
    "batches",
    "pulled",
)
PARTITIONS = 2


@pytest.fixture(scope="module")
def maria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`user@host:port`."""
    pytest.importorskip("pymysql", reason="pymysql is not installed: it comes with the extra dev")
    with mariadb.running(tmp_path_factory.mktemp("mariadb"), mariadb.WITH_XA) as address:
        yield address


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TextServer]:
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    root = f"/examples-{request.param}"
    folder = tmp_path_factory.mktemp(request.param)
    with SERVERS[request.param](folder, zookeeper, topics, registry={"zk.zkRoot": root}) as running:
        config = MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root))
        with MetaMessageSessionFactory(config) as factory:
            for topic in TOPICS:
                eventually(
                    lambda topic=topic: len(factory.get_partitions(topic)) == PARTITIONS, what="it is registered"
                )
        yield running


@pytest.fixture
def place(server: TextServer, zookeeper: Zookeeper) -> list[str]:
    """How a program finds the server."""
    return ["--zookeeper", zookeeper.address, "--root", str(server.registry["zk.zkRoot"])]


def command(name: str, topic: str, *arguments: str) -> list[str]:
    return [sys.executable, str(FOLDER / name), "--topic", topic, *arguments]


def run(name: str, home: Path, topic: str, *arguments: str, **more: str) -> list[str]:
    """The lines that it has printed. What it keeps in its home folder is in `home`."""
    done = subprocess.run(
        command(name, topic, *arguments),
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(HOME=str(home), **more),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def everything(server: TextServer, topic: str) -> list[bytes]:
    return sorted(payload for some in payloads(server.text, topic, PARTITIONS) for payload in some)


def numbered(text: bytes, count: int) -> list[bytes]:
    return sorted(text % number for number in range(count))


def put(server: TextServer, place: list[str], home: Path, topic: str, count: int) -> None:
    """Messages to be consumed, as many in each partition."""
    run("send.py", home, topic, *place, "--count", str(count))
    eventually(lambda: len(everything(server, topic)) == count, what="the original has written them")


def test_there_are_ten_and_each_is_short() -> None:
    assert len(PROGRAMS) == 10
    for name in (*PROGRAMS, HELPER):
        text = (FOLDER / name).read_text()
        assert len(text.splitlines()) < 60, name
        assert name == HELPER or f"python examples/metaq1/{name} --zookeeper 127.0.0.1:2181" in text
        assert f"`{name}`" in (ROOT / "examples" / "README.md").read_text()


def test_send(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """By ZooKeeper, and to the server itself."""
    lines = run("send.py", tmp_path, "sent", *place, "--count", "3")
    assert [line.partition(", offset")[0] for line in lines] == [
        "message 0: partition 0-1", "message 1: partition 0-0", "message 2: partition 0-1",
    ]  # fmt: skip
    assert read(server.text, "sent", 0)[0][1:] == (b"odd", b"message 1")
    [line] = run("send.py", tmp_path, "sent", "--server", f"meta://{server.text}", "--count", "1")
    assert re.fullmatch(r"message 0: partition -1-[01], offset \d+", line)
    assert everything(server, "sent") == sorted([b"message 0", *numbered(b"message %d", 3)])


def test_what_is_not_sent_is_told(server: TextServer, place: list[str], tmp_path: Path) -> None:
    [line] = run("send.py", tmp_path, "nobody-has-this", *place, "--count", "1")
    assert line.startswith("message 0 is not sent: there is no available partition for topic nobody-has-this")


def test_async_send(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """Futures, and callbacks."""
    lines = run("async_send.py", tmp_path, "futures", *place)
    assert lines[0] == "10 messages are stored, in 2 partitions"
    assert sorted(lines[1:]) == [f"stored in partition 0-{number}" for number in (0, 1) for _ in range(5)]
    assert everything(server, "futures") == numbered(b"callback %d", 10) + numbered(b"future %d", 10)


def test_one_way(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """The end of the program waits for what is under way."""
    lines = run("one_way.py", tmp_path, "lines", *place)
    assert lines == [
        "1000 messages are handed over; the last one is for partition 0-0", "0 wait in files, 0 are lost",
    ]  # fmt: skip
    eventually(lambda: everything(server, "lines") == numbered(b"line %d", 1000), what="all are stored, each once")


def test_local_transaction(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """The second one is rolled back by an exception."""
    lines = run("local_transaction.py", tmp_path, "transfers", *place)
    assert lines == [
        "transferred 30: messages in partitions 0-1 and 0-0",
        "rolled back: account 1 has no 3000",
        "transferred 50: messages in partitions 0-1 and 0-0",
    ]
    wanted = [
        [b"30 given to account 2", b"50 given to account 2"], [b"30 taken from account 1", b"50 taken from account 1"],
    ]  # fmt: skip
    # The original answers a commit before it has written what is in it.
    eventually(lambda: payloads(server.text, "transfers", PARTITIONS) == wanted)


def test_xa(server: TextServer, place: list[str], tmp_path: Path, maria: str) -> None:
    """The row and the message of the first payment, and neither of the second one."""
    import pymysql

    lines = run("xa_mariadb.py", tmp_path, "payments", *place, MARIADB=maria, XA_LOG=str(tmp_path / "log"))
    assert lines[0].startswith("recovered: Recovered(")
    assert re.fullmatch(r"paid 30: the message is in partition [01]", lines[1])
    assert lines[2:] == ["rolled back: anna has no 3000"]
    eventually(lambda: everything(server, "payments") == [b"anna pays 30"])
    connection = pymysql.connect(host="127.0.0.1", port=int(maria.rpartition(":")[2]), user="root")
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT amount FROM bank.accounts WHERE name = 'anna'")
        assert cursor.fetchone() == (70,)


def test_logging_handler(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """Records with their level as attribute, and what was raised."""
    lines = run("logging_handler.py", tmp_path, "logs", *place, "--count", "4")
    assert lines == ["all records are stored", "5 sent, 0 dropped"]
    found = [one for number in range(PARTITIONS) for one in read(server.text, "logs", number)]
    records = {json.loads(body)["message"]: (attribute, json.loads(body)) for _, attribute, body in found}
    assert sorted(records) == ["order 0", "order 1", "order 2", "order 3", "the order has no items"]
    attribute, record = records["the order has no items"]
    assert (attribute, record["level"], record["service"]) == (b"ERROR", "ERROR", "checkout")
    assert "ZeroDivisionError" in record["exception"]
    assert records["order 3"][0] == b"INFO"
    assert records["order 3"][1]["extra"] == {"order": 3}


def test_consume(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """It begins at the start, ends after as many as it was told, and goes on behind them; Ctrl-C ends it, too."""
    put(server, place, tmp_path, "consumed", 8)
    lines = run("consume.py", tmp_path, "consumed", *place, "--count", "8")
    assert lines[0] == "group example-consume consumes; Ctrl-C ends"
    assert lines[-1] == "stopped: offsets are saved, and the partitions are given back"
    kinds = ("even", "odd")
    assert sorted(line.partition(": ")[2] for line in lines[1:-1]) == [
        f"message {number} ({kinds[number % 2]})" for number in range(8)
    ]
    run("send.py", tmp_path, "consumed", *place, "--count", "1")
    with subprocess.Popen(
        command("consume.py", "consumed", *place, "--count", "100"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(HOME=str(tmp_path)),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        begun = [process.stdout.readline(), process.stdout.readline()]
        assert begun[1].endswith(": message 0 (even)\n")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert out == lines[-1] + "\n"


def test_consume_from_one_server(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """Without ZooKeeper, which Java's client cannot."""
    put(server, place, tmp_path, "alone", 4)
    lines = run("consume.py", tmp_path, "alone", "--server", f"meta://{server.text}", "--count", "4")
    assert sorted(line.partition(": ")[2] for line in lines[1:-1]) == [
        "message 0 (even)", "message 1 (odd)", "message 2 (even)", "message 3 (odd)",
    ]  # fmt: skip


def test_broadcast(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """Two machines, which is two files of offsets here, get all messages each."""
    put(server, place, tmp_path, "cached", 6)
    for machine in ("one", "other"):
        (tmp_path / machine).mkdir()
        first, last = run("broadcast.py", tmp_path / machine, "cached", *place, "--count", "6")
        assert re.fullmatch(r"group example-broadcast-[\d-]+ gets all partitions on this machine; Ctrl-C ends", first)
        assert last == "the cache of this machine has 6 entries"
        group = first.split()[1]
        [offsets] = json.loads((tmp_path / machine / ".meta_offsets").read_text()).items()
        assert offsets[0] == group
        assert len(offsets[1]) == PARTITIONS


def test_batch_transactions(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """What was rolled back comes again, before all others of its partition."""
    put(server, place, tmp_path, "batches", 10)
    lines = run("batch_transactions.py", tmp_path, "batches", *place)
    [(index, failed)] = [
        (index, line.split()[-3]) for index, line in enumerate(lines) if line.endswith("fails: rollback")
    ]
    written = [line.split()[4] for line in lines if line.endswith("written: ack")]
    assert sorted(written) == ["0-0", "0-1"]
    assert index < lines.index(f"5 messages of partition {failed.removesuffix(':')} are written: ack")
    assert lines[-1] == "10 messages are written"


def test_pull(server: TextServer, place: list[str], tmp_path: Path) -> None:
    """Each partition from its begin to its end, and how far that is."""
    put(server, place, tmp_path, "pulled", 6)
    lines = run("pull.py", tmp_path, "pulled", *place)
    ends = [line for line in lines if line.startswith("partition ")]
    sizes = [
        sum(
            HEAD_BYTES + 4 + len(attribute or b"") + len(body)
            for _, attribute, body in read(server.text, "pulled", number)
        )
        for number in (0, 1)
    ]
    assert ends == [f"partition 0-{number}: 3 messages, the next one will be at {sizes[number]}" for number in (0, 1)]
    assert sorted(line.partition(": ")[2] for line in lines if line.startswith("0-")) == [
        f"message {number}" for number in range(6)
    ]
