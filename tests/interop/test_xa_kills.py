"""A process is killed at any line between the beginning of its commit and the end: database and topics agree after the next start."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metaq
from metaq import xa
from metaq.errors import TransactionFailed
from metaq.testing import EmbeddedBroker
from tests.effort import repeats
from tests.interop import mariadb, postgresql
from tests.interop.metaq1 import OriginalServer, OurServer, Zookeeper
from tests.metaq1.stored import payloads
from tests.support import ROOT, WHOLE_PATIENCE, environment, eventually
from tests.xa.program import TOPICS, connector, coordinated, coordinator_of

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("xa-kills")]

ROUNDS = 50 if repeats(4) == 4 else 5
"""All of them in the night."""
PARTITIONS = 2


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """Description by kind; each has the schema or database of its tables."""
    for driver in ("pymysql", "psycopg", "sqlalchemy"):
        pytest.importorskip(driver, reason=f"{driver} is not installed: it comes with the extras dev and xa")
    with (
        mariadb.running(tmp_path_factory.mktemp("mariadb"), mariadb.WITH_XA) as maria,
        postgresql.running(max_prepared_transactions=20) as postgres,
    ):
        connection = connector({"kind": "mariadb", "address": maria})()
        connection.cursor().execute("CREATE DATABASE shop")
        connection.close()
        yield {
            kind: {"kind": kind, "address": address, "schema": "shop"}
            for kind, address in {
                "mariadb": maria, "sessions-mariadb": maria, "postgresql": postgres, "sessions-postgresql": postgres,
            }.items()
        }  # fmt: skip


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with OurServer(tmp_path_factory.mktemp("ours"), None, topics) as server:
        yield server


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def table_of(database: dict[str, str], name: str) -> str:
    connection = connector(database)()
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {name} (n INT PRIMARY KEY)" + (" ENGINE=InnoDB" if "maria" in database["kind"] else "")
        )
    connection.commit()
    connection.close()
    return name


def rows(job: dict[str, Any]) -> set[int]:
    connection = connector(job["database"])()
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT n FROM {job['table']}")
            return {number for (number,) in cursor.fetchall()}
    finally:
        connection.close()


def sent(job: dict[str, Any], text: str) -> Counter[int]:
    """Order → how many messages there are of it. `text`: the server of MetaQ 1.x."""
    found: Counter[int] = Counter()
    for topic in TOPICS:
        if job["messages"]["kind"] == "atomic":
            with metaq.Reader(job["messages"]["namesrv"], f"{job['table']}-{topic}", stop_at_end=True) as reader:
                found.update(int(message.body) for message in reader)
            continue
        for bodies in payloads(text, topic, PARTITIONS):
            found.update(int(number) for name, number in map(bytes.split, bodies) if name.decode() == job["table"])
    return found


def agree(job: dict[str, Any], text: str, what: str) -> None:
    """In time: the original answers COMMIT before its messages can be read."""
    eventually(lambda: sent(job, text) == dict.fromkeys(rows(job), len(TOPICS)), what=what)


def run_rounds(job: dict[str, Any], text: str, rounds: int) -> None:
    """Each round: one committed, one rolled back, one in which the process dies; then the next start recovers."""
    fates: Counter[bool] = Counter()
    certain: set[int] = set()
    for number in range(rounds):
        job = job | {"first": number * 10, "seed": f"{job['table']}-{number}"}
        died = subprocess.run(
            [sys.executable, "-m", "tests.xa.program", json.dumps(job)],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
        )  # fmt: skip
        said = [line.split() for line in died.stdout.splitlines()]
        assert died.returncode == -9, (died.stdout, died.stderr)
        assert said[:2] == [["committed", str(number * 10)], ["rolled", "back", str(number * 10 + 1)]], died.stderr
        certain.add(number * 10)
        with coordinated(job):  # recovers
            pass

        agree(job, text, f"database and topics agree in round {number}: {said[-1]}")
        found = rows(job)
        assert certain <= found
        fates[number * 10 + 2 in found] += 1
        assert found <= certain | {one * 10 + 2 for one in range(number + 1)}
    if rounds >= 20:
        assert fates[True] > 0, "no death behind the decision"
        assert fates[False] > 0, "no death before the decision"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("database", "messages", "manager"),
    [
        ("mariadb", "metaq1", "plain"),
        ("postgresql", "metaq1", "plain"),
        ("mariadb", "atomic", "plain"),
        ("postgresql", "atomic", "plain"),
        ("postgresql", "metaq1", "transaction"),
        ("sessions-mariadb", "metaq1", "plain"),
        ("sessions-postgresql", "atomic", "transaction"),
    ],
)
def test_killed_anywhere_in_a_commit(
    database: str,
    messages: str,
    manager: str,
    databases: dict[str, dict[str, str]],
    ours: OurServer,
    broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    if manager == "transaction":
        pytest.importorskip("transaction", reason="transaction is not installed: it comes with the extra xa")
    description = {"kind": messages, "server": f"meta://{ours.text}", "namesrv": broker.namesrv}
    table = table_of(databases[database], f"{database}_{messages}_{manager}".replace("-", "_"))
    job = {
        "database": databases[database], "messages": description, "manager": manager, "table": table, "folder": str(tmp_path / "log"),
    }  # fmt: skip
    run_rounds(job, ours.text, ROUNDS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("database", "messages"), [("mariadb", "atomic"), ("postgresql", "metaq1")])
def test_killed_at_any_moment(
    database: str,
    messages: str,
    databases: dict[str, dict[str, str]],
    ours: OurServer,
    broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    """By the clock, so that requests are under way, too: a server may carry one out behind the first recovery."""
    table = table_of(databases[database], f"clock_{database}_{messages}")
    job = {
        "database": databases[database], "table": table, "folder": str(tmp_path / "log"), "goes_on": True,
        "messages": {"kind": messages, "server": f"meta://{ours.text}", "namesrv": broker.namesrv},
    }  # fmt: skip
    certain: set[int] = set()

    def agree_again() -> bool:
        with coordinated(job):  # recovers
            return sent(job, ours.text) == dict.fromkeys(rows(job), len(TOPICS))

    for number in range(ROUNDS):
        job |= {"first": number * 10_000}
        chance = random.Random(f"{table}-{number}")
        with subprocess.Popen(
            [sys.executable, "-m", "tests.xa.program", json.dumps(job)],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True,
        ) as program:  # fmt: skip
            assert program.stdout is not None
            first = program.stdout.readline()
            threading.Event().wait(chance.uniform(0, 0.1))
            program.kill()
            certain |= {int(line) for line in [first, *program.stdout] if line.endswith("\n")}
        eventually(agree_again, what=f"database and topics agree in round {number}")
        assert certain <= rows(job)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("database", ["mariadb", "postgresql"])
def test_the_server_is_killed_in_a_commit(database: str, databases: dict[str, dict[str, str]], tmp_path: Path) -> None:
    """At any moment of it, while the process lives: once the server is back, the process brings database and topics into agreement."""
    chance, fates = random.Random(database), Counter[bool]()
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with OurServer(tmp_path / "server", None, topics) as server:
        job = {
            "database": databases[database], "table": table_of(databases[database], f"server_{database}"), "folder": str(tmp_path / "log"),
            "messages": {"kind": "metaq1", "server": f"meta://{server.text}"},
        }  # fmt: skip
        with coordinator_of(job) as (coordinator, order):
            coordinator.recover()
            for number in range(repeats(20)):
                tx = order(number)
                killer = threading.Timer(chance.uniform(0, 0.04), server.kill)
                killer.start()
                committed = ended(tx)
                killer.join()
                server.start()
                eventually(lambda: not coordinator.recover().pending, what="the server is back, and told")
                agree(job, server.text, f"database and topics agree in round {number}")
                assert (number in rows(job)) == committed
                fates[committed] += 1
            assert coordinator.open == ()
    assert fates[True] > 0, "no death behind the decision"


def ended(tx: xa.GlobalTransaction) -> bool:
    """Return whether it is committed, everywhere or with something pending."""
    try:
        tx.commit()
    except TransactionFailed as error:
        assert error.state == "rolled back"
        return False
    return True


@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.all
def test_the_original_server_is_killed_behind_the_decision(
    databases: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """It has prepared, and is told to commit after its restart. Its defect (section 13 of the reference): the messages are there only after
    one restart more."""
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with Zookeeper(tmp_path) as zookeeper, OriginalServer(tmp_path / "original", zookeeper, topics) as server:

        def start() -> None:
            # It cannot register while ZooKeeper has the nodes of the dead.
            with zookeeper.nodes() as nodes:
                eventually(lambda: nodes.text("/meta/brokers/ids/0/master") is None)
            server.start()

        job = {
            "database": databases["postgresql"], "table": table_of(databases["postgresql"], "original_killed"), "folder": str(tmp_path / "log"),
            "messages": {"kind": "metaq1", "zookeeper": zookeeper.address},
        }  # fmt: skip
        with coordinator_of(job) as (coordinator, order):
            coordinator.recover()
            tx = order(1)
            tx.prepare()
            server.kill()
            assert tx.commit().pending
            assert coordinator.open == (tx.id,)
            assert rows(job) == {1}
            start()
            eventually(lambda: not coordinator.recover().pending, what="the server is back, and told")
            assert coordinator.open == ()
        server.kill()
        start()
        agree(job, server.text, "database and topics agree")
        assert rows(job) == {1}


@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.all
def test_killed_anywhere_in_a_commit_at_the_original_server(
    databases: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """It stays up: over a restart of its own it loses prepared branches (section 13 of the reference)."""
    topics = {topic: {"numPartitions": PARTITIONS} for topic in TOPICS}
    with Zookeeper(tmp_path) as zookeeper, OriginalServer(tmp_path / "original", zookeeper, topics) as server:
        for database in ("mariadb", "postgresql"):
            job = {
                "database": databases[database],
                "messages": {"kind": "metaq1", "zookeeper": zookeeper.address},
                "table": table_of(databases[database], f"original_{database}"),
                "folder": str(tmp_path / database),
            }
            run_rounds(job, server.text, ROUNDS)
