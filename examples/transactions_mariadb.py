"""A payment and its message: both happen, or neither. With MariaDB, or MySQL.

The same as transactions_sqlite.py with a database that is a server of its own, so that its answer to a COMMIT may be lost:
then nobody knows whether the payment happened, and `tx.unknown()` leaves the message to the check.

metaq up &
MARIADB=user:password@localhost:3306 python examples/transactions_mariadb.py
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pymysql

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
SERVER = urlsplit("//" + os.environ.get("MARIADB", "root@localhost:3306"))
LIMIT = 1000
# A row with an amount is a payment; one without says that this transaction must not happen any more.
TABLE = "CREATE TABLE IF NOT EXISTS shop.payments (id VARCHAR(56) PRIMARY KEY, account TEXT, amount INT) ENGINE=InnoDB"


@contextlib.contextmanager
def connected() -> Iterator[pymysql.Connection]:
    connection = pymysql.connect(
        host=SERVER.hostname, port=SERVER.port or 3306, user=SERVER.username, password=SERVER.password or ""
    )
    try:
        yield connection
    finally:
        if connection.open:
            connection.close()


def was_paid(message: metaq.StoredMessage) -> bool:
    """A broker asks what became of a transaction. What is not there is forbidden, so that the answer stays true.

    A payment that is just being made holds its row: the INSERT waits for its end. One that is still to be made finds its
    id taken, and fails, instead of committing what was denied.
    """
    with connected() as db, db.cursor() as cursor:
        cursor.execute("INSERT IGNORE INTO shop.payments (id) VALUES (%s)", (message.message_id,))
        db.commit()
        cursor.execute("SELECT amount FROM shop.payments WHERE id = %s", (message.message_id,))
        row = cursor.fetchone()
    paid = row is not None and row[0] is not None
    print("asked about", message.body.decode(), "- paid" if paid else "- not paid", flush=True)
    return paid


def pay(producer: metaq.TransactionProducer, account: str, amount: int, *, dies: bool = False) -> None:
    body = json.dumps({"account": account, "amount": amount}).encode()
    with producer.transaction("payments-mariadb", body, keys=[account]) as tx, connected() as db, db.cursor() as cursor:
        cursor.execute("INSERT INTO shop.payments VALUES (%s, %s, %s)", (tx.id, account, amount))
        if amount > LIMIT:
            raise ValueError(f"{account} has no {amount}")  # closing the connection rolls the local transaction back
        try:
            db.commit()
        except pymysql.err.OperationalError:
            tx.unknown()  # Committed or not: the check will find out.
            raise
        if dies:
            os._exit(9)  # What a kill -9 makes of a payment in the worst moment.


def main() -> None:
    started = time.time()
    with connected() as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS shop")
        cursor.execute(TABLE)
    with metaq.TransactionProducer(NAMESRV, group="cashiers-mariadb", check=was_paid) as producer:
        if "dies" in sys.argv:
            pay(producer, "carl", 50, dies=True)
        pay(producer, "anna", 30)
        try:
            pay(producer, "bela", 3000)
        except ValueError as error:
            print("rolled back:", error)
        died = subprocess.run([sys.executable, __file__, "dies"], check=False)
        print("a cashier has died with exit code", died.returncode, "- waiting for the broker to ask")
        with metaq.Reader(NAMESRV, "payments-mariadb", start=started) as reader:
            for message in reader:
                print("paid:", message.body.decode())
                if b"carl" in message.body:
                    break


if __name__ == "__main__":
    main()
