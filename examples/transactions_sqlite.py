"""A payment and its message: both happen, or neither. With SQLite.

The message is stored unseen, the block writes the payment under the transaction's id, and leaving the block commits the
message. One payment fails, so its message is never seen. One process dies right behind its commit: the broker asks another
of the group, whose `was_paid` finds the payment, and the message appears after all.

metaq up &
python examples/transactions_sqlite.py    # the broker asks within a minute; within a second with -o transactionCheckInterval=500
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
DATABASE = os.environ.get("DATABASE", str(Path(tempfile.gettempdir(), "metaq-payments.db")))
LIMIT = 1000


@contextlib.contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A local transaction: committed when the block is left, rolled back when it raises."""
    connection = sqlite3.connect(DATABASE, timeout=30)
    try:
        with connection:
            # A row with an amount is a payment; one without says that this transaction must not happen any more.
            connection.execute(
                "CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, account TEXT, amount INTEGER)"
            )
            yield connection
    finally:
        connection.close()


def was_paid(message: metaq.StoredMessage) -> bool:
    """A broker asks what became of a transaction. What is not there is forbidden, so that the answer stays true.

    A transaction that is only slow then finds its id taken, and fails, instead of committing what was denied.
    """
    with database() as db:
        db.execute("INSERT OR IGNORE INTO payments (id) VALUES (?)", (message.message_id,))
        [amount] = db.execute("SELECT amount FROM payments WHERE id = ?", (message.message_id,)).fetchone()
    print("asked about", message.body.decode(), "- paid" if amount is not None else "- not paid", flush=True)
    return amount is not None


def pay(producer: metaq.TransactionProducer, account: str, amount: int) -> None:
    body = json.dumps({"account": account, "amount": amount}).encode()
    # The database's block is the inner one: it has committed before the message is.
    with producer.transaction("payments", body, keys=[account]) as tx, database() as db:
        db.execute("INSERT INTO payments VALUES (?, ?, ?)", (tx.id, account, amount))
        if amount > LIMIT:
            raise ValueError(f"{account} has no {amount}")


def pay_and_die(producer: metaq.TransactionProducer, account: str, amount: int) -> None:
    """What a kill -9, or a power cut, makes of a payment in the worst moment."""
    body = json.dumps({"account": account, "amount": amount}).encode()
    with producer.transaction("payments", body, keys=[account]) as tx:
        with database() as db:
            db.execute("INSERT INTO payments VALUES (?, ?, ?)", (tx.id, account, amount))
        os._exit(9)


def main() -> None:
    started = time.time()
    with metaq.TransactionProducer(NAMESRV, group="cashiers", check=was_paid) as producer:
        if "dies" in sys.argv:
            pay_and_die(producer, "carl", 50)
        pay(producer, "anna", 30)
        try:
            pay(producer, "bela", 3000)
        except ValueError as error:
            print("rolled back:", error)
        died = subprocess.run([sys.executable, __file__, "dies"], check=False)
        print("a cashier has died with exit code", died.returncode, "- waiting for the broker to ask")
        with metaq.Reader(NAMESRV, "payments", start=started) as reader:
            for message in reader:
                print("paid:", message.body.decode())
                if b"carl" in message.body:
                    break


if __name__ == "__main__":
    main()
