"""The programs of docs/xa.md and the examples of XA run as they stand, at real databases."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from tests.interop import mariadb, postgresql
from tests.interop.metaq1 import OurServer, Zookeeper
from tests.metaq1.stored import payloads
from tests.support import PATIENCE, ROOT, environment

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("xa-programs")]

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "xa.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """What psycopg connects by."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: it comes with the extra dev")
    with postgresql.running(max_prepared_transactions=10) as address:
        user, _, place = address.partition("@")
        host, _, port = place.partition(":")
        words = f"host={host} port={port} user={user} dbname=postgres"
        with psycopg.connect(words) as connection:
            connection.execute("CREATE TABLE orders (item TEXT)")
        yield words


@pytest.fixture(scope="module")
def maria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`user@host:port`, with a schema `shop`."""
    pymysql = pytest.importorskip("pymysql", reason="pymysql is not installed: it comes with the extra dev")
    with mariadb.running(tmp_path_factory.mktemp("mariadb"), mariadb.WITH_XA) as address:
        connection = pymysql.connect(host="127.0.0.1", port=int(address.rpartition(":")[2]), user="root")
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (item TEXT) ENGINE=InnoDB")
        connection.close()
        yield address


def run(program: Path, folder: Path, **more: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder, env=environment(XA_LOG=str(folder / "log"), **more),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def written(folder: Path, block: str, **exchanges: str) -> Path:
    for old, new in exchanges.items():
        assert old in block
        block = block.replace(old, new)
    (folder / "program.py").write_text(block)
    return folder / "program.py"


def rows(postgres: str) -> list[str]:
    import psycopg

    with psycopg.connect(postgres) as connection:
        found = [item for (item,) in connection.execute("DELETE FROM orders RETURNING item")]
        assert connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall() == []
    return found


def bodies(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    with metaq.Reader(broker.namesrv, topic, stop_at_end=True) as reader:
        return [message.body for message in reader]


def test_first_program_of_the_page(postgres: str, metaq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    block = BLOCKS[0].replace('send("orders"', 'send("xa-page-1"')
    program = written(
        tmp_path, block, **{"host=localhost dbname=shop": postgres, "localhost:9876": metaq_broker.namesrv}
    )
    assert run(program, tmp_path) == []
    assert rows(postgres) == ["lamp"]
    assert bodies(metaq_broker, "xa-page-1") == [b"lamp"]


def test_second_program_of_the_page(maria: str, zookeeper: Zookeeper, tmp_path: Path) -> None:
    import pymysql

    port = int(maria.rpartition(":")[2])
    with OurServer(tmp_path / "server", zookeeper, {"orders": {}}) as server:
        program = written(
            tmp_path, BLOCKS[1],
            **{'host="localhost", user="shop"': f'host="127.0.0.1", port={port}, user="root"', "localhost:2181": zookeeper.address},
        )  # fmt: skip
        assert run(program, tmp_path) == []
        assert payloads(server.text, "orders", 1) == [[b"lamp"]]
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", database="shop")
    with connection.cursor() as cursor:
        cursor.execute("SELECT item FROM orders")
        assert cursor.fetchall() == (("lamp",),)
    connection.close()


def test_third_program_of_the_page(postgres: str, metaq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    for package in ("sqlalchemy", "transaction"):
        pytest.importorskip(package, reason=f"{package} is not installed: it comes with the extra xa")
    found = dict(word.split("=") for word in postgres.split())
    url = f"postgresql+psycopg://{found['user']}@{found['host']}:{found['port']}/postgres"
    block = BLOCKS[2].replace('send("orders"', 'send("xa-page-3"')
    program = written(
        tmp_path, block, **{"postgresql+psycopg://localhost/shop": url, "localhost:9876": metaq_broker.namesrv}
    )
    assert run(program, tmp_path) == []
    assert rows(postgres) == ["lamp"]
    assert bodies(metaq_broker, "xa-page-3") == [b"lamp"]


def test_example_with_postgresql(postgres: str, metaq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A process dies between the preparation and the decision."""
    lines = run(
        ROOT / "examples" / "xa_postgresql.py", tmp_path, POSTGRESQL=postgres, NAMESRV_ADDR=metaq_broker.namesrv
    )
    assert lines == ["a process died with exit code 9; rolled back: 1", "ordered: lamp", "sent: lamp"]


def test_example_with_sqlalchemy(postgres: str, metaq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The third guest has the name of the first."""
    for package in ("sqlalchemy", "transaction"):
        pytest.importorskip(package, reason=f"{package} is not installed: it comes with the extra xa")
    lines = run(
        ROOT / "examples" / "xa_sqlalchemy.py", tmp_path, POSTGRESQL=postgres, NAMESRV_ADDR=metaq_broker.namesrv
    )
    assert lines == ["anna is here already: IntegrityError", "guests: anna bela", "greeted: anna bela"]
