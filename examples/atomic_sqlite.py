"""An order in a database and its messages in two topics: all of it happens, or nothing. With SQLite.

The order's messages are stored at the broker, unseen (`prepare`), the database commits the order under the transaction's id, and
leaving the block delivers. One order fails, so nobody sees its messages. One process dies right behind its database's commit,
another right before it: the next start settles both, as the database says.

metaq up &
python examples/atomic_sqlite.py
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
DATABASE = os.environ.get("DATABASE", str(Path(tempfile.gettempdir(), "metaq-orders.db")))
IN_STOCK = 10


@contextlib.contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A local transaction: committed when the block is left, rolled back when it raises."""
    connection = sqlite3.connect(DATABASE, timeout=30)
    try:
        with connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS orders (transaction_id TEXT PRIMARY KEY, item TEXT, count INTEGER)"
            )
            # What is written here before `prepare` is what a crash may leave undecided.
            connection.execute("CREATE TABLE IF NOT EXISTS undecided (transaction_id TEXT PRIMARY KEY)")
            yield connection
    finally:
        connection.close()


def settle(producer: metaq.Producer) -> None:
    """At the start: what a crash has left is committed if the database has the order, else rolled back."""
    with database() as db:
        left = db.execute(
            "SELECT transaction_id, item FROM undecided LEFT JOIN orders USING (transaction_id) ORDER BY undecided.rowid"
        ).fetchall()
    for transaction_id, item in left:
        outcome = producer.settle(transaction_id, commit=item is not None)
        print(
            "settled:", outcome.name, f"the order of a {item}" if item else "an order that the database does not have"
        )
        forget(transaction_id)


def forget(transaction_id: str) -> None:
    with database() as db:
        db.execute("DELETE FROM undecided WHERE transaction_id = ?", (transaction_id,))


def order(producer: metaq.Producer, item: str, count: int, dies: str = "") -> None:
    body = json.dumps({"item": item, "count": count}).encode()
    with producer.atomic() as tx:
        tx.send("orders", body, keys=[item])
        tx.send("stock", body, ordering_key=item)
        with database() as db:
            db.execute("INSERT INTO undecided VALUES (?)", (tx.id,))
        tx.prepare()
        if dies == "before":
            os._exit(9)  # what a kill -9, or a power cut, does
        with database() as db:
            db.execute("INSERT INTO orders VALUES (?, ?, ?)", (tx.id, item, count))
            if count > IN_STOCK:
                raise ValueError(f"there are no {count} of {item}")
        if dies == "behind":
            os._exit(9)
    forget(tx.id)


def main() -> None:
    started = time.time()
    with metaq.Producer(NAMESRV) as producer:
        if len(sys.argv) > 1:
            order(producer, sys.argv[1], 1, dies=sys.argv[2])
        settle(producer)
        order(producer, "lamp", 3)
        try:
            order(producer, "desk", 3000)
        except ValueError as error:
            print("rolled back:", error)
        for item, moment in (("chair", "behind"), ("shelf", "before")):
            died = subprocess.run([sys.executable, __file__, item, moment], check=False)
            print(f"ordering a {item}, a process has died {moment} its commit, with exit code {died.returncode}")
        settle(producer)
    for topic in ("orders", "stock"):
        missing = {"lamp", "chair"}  # in no order: they may be in different queues
        with metaq.Reader(NAMESRV, topic, start=started) as reader:
            for message in reader:
                print(f"{topic}:", message.body.decode())
                missing.discard(json.loads(message.body)["item"])
                if not missing:
                    break


if __name__ == "__main__":
    main()
