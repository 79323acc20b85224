"""kill -9 of producers, and of the broker, at any moment of a transaction: what the database has is delivered, nothing else is."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys

import pytest

import metaq
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, environment, eventually, process, read_line

pytestmark = pytest.mark.slow

TOPIC, GROUP = "payments", "cashiers"
QUICK = {"transactionCheckInterval": 200, "transactionTimeOut": 1000, "transactionCheckMax": 100_000}

WORKER = """
import itertools, os, sqlite3, sys
import metaq

namesrv, path, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)

def check(message):
    return None  # The other one decides.

with metaq.TransactionProducer(namesrv, group="cashiers", check=check, timeout=60, retries=1000) as producer:
    for number in itertools.count():
        try:
            with producer.transaction("payments", b"%d-%d" % (seed, number)) as tx:
                database.execute("INSERT INTO done VALUES (?, 1)", (tx.id,))
                print("did", number, flush=True)
                if number % 5 == 4:
                    database.execute("DELETE FROM done WHERE id = ?", (tx.id,))
                    raise KeyError
        except (KeyError, sqlite3.IntegrityError):
            pass
"""


def forbid_or_confirm(path: str):
    """The check of the one that lives: what is not in the database is forbidden."""

    def check(message: metaq.StoredMessage) -> bool:
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as database:
            database.execute("INSERT OR IGNORE INTO done VALUES (?, 0)", (message.message_id,))
            [done] = database.execute("SELECT paid FROM done WHERE id = ?", (message.message_id,)).fetchone()
        return bool(done)

    return check


@pytest.mark.parametrize("kill_broker", [False, True], ids=["producers", "producers-and-broker"])
def test_whatever_is_killed_database_and_topic_agree(tmp_path, kill_broker):
    """Six producers die somewhere in their transactions, one after the other; the broker dies in between."""
    path, chance = str(tmp_path / "local.db"), random.Random(8)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE done (id TEXT PRIMARY KEY, paid INTEGER)")

    def paid() -> set[str]:
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as database:
            return {row[0] for row in database.execute("SELECT id FROM done WHERE paid")}

    with (
        EmbeddedBroker(options=QUICK) as broker,
        metaq.TransactionProducer(
            broker.namesrv, group=GROUP, check=forbid_or_confirm(path), timeout=PATIENCE, instance_name="heir"
        ) as heir,
    ):
        heir.send(TOPIC, b"first")
        for seed in range(6):
            command = [sys.executable, "-c", WORKER, broker.namesrv, path, str(seed)]
            with process(*command, stderr=subprocess.DEVNULL, env=environment()) as worker:
                read_line(worker, f"did {chance.randrange(3, 40)}")
                if kill_broker and seed % 2:
                    broker.kill()
                    broker.start()
                    read_line(worker, "did")
                worker.kill()
                worker.wait(PATIENCE)

        def delivered() -> list[str]:
            with metaq.Reader(broker.namesrv, TOPIC, stop_at_end=True) as reader:
                return [message.message_id for message in reader if message.body != b"first"]

        eventually(lambda: set(delivered()) >= paid(), what="all that was paid is delivered")
        # A transaction that begins now is asked about behind all that were open: then the killed ones are settled.
        last = heir.transaction(TOPIC, b"last").begin()
        place = last._begun.half
        eventually(lambda: last._begun.half != place, what="a round of checks")
        last.rollback()
        ids = delivered()
        assert set(ids) == paid()
        assert len(paid()) > 20
        if not kill_broker:
            assert len(ids) == len(set(ids)), "once"
