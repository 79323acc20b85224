"""An account in MariaDB and messages at a server of MetaQ 1.x: committed together, or not at all.

METAQ1=meta://localhost:8123 MARIADB=user:password@localhost:3306 python examples/xa_metaq1_mariadb.py

The server has the topic `payments`; an original one needs zk_config. MariaDB from 10.5 on.
"""

import contextlib
import os
import tempfile
from typing import Any
from urllib.parse import urlsplit

import pymysql

from metaq import xa
from metaq.metaq1 import Message, MetaClientConfig, XAMetaMessageSessionFactory

SERVER = os.environ.get("METAQ1", "meta://localhost:8123")
DATABASE = urlsplit("//" + os.environ.get("MARIADB", "root@localhost:3306"))
FOLDER = os.environ.get("XA_LOG", f"{tempfile.gettempdir()}/xa-mariadb")


def connect() -> Any:
    return pymysql.connect(
        host=DATABASE.hostname, port=DATABASE.port or 3306, user=DATABASE.username, password=DATABASE.password or ""
    )


def main() -> None:
    setup = connect()
    with contextlib.closing(setup), setup.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bank")
        cursor.execute("CREATE TABLE IF NOT EXISTS bank.accounts (name CHAR(9) PRIMARY KEY, amount INT) ENGINE=InnoDB")
        cursor.execute("REPLACE INTO bank.accounts VALUES ('anna', 100)")
        setup.commit()
    database = xa.MariaDb(connect)
    with XAMetaMessageSessionFactory(MetaClientConfig(server_url=SERVER)) as factory:
        producer = factory.create_xa_producer(unique_qualifier="bank-1")  # the same at each start
        producer.publish("payments")
        messages = xa.XaMessages(producer)
        with xa.Coordinator(FOLDER, [database, messages]) as coordinator:
            print("recovered:", coordinator.recover())
            for amount in (30, 3000):
                try:
                    with coordinator.transaction() as tx, tx.enlist(database).cursor() as cursor:
                        cursor.execute("UPDATE bank.accounts SET amount = amount - %s WHERE name = 'anna'", (amount,))
                        sent = tx.enlist(messages).send_message(Message("payments", b"anna pays %d" % amount))
                        cursor.execute("SELECT amount FROM bank.accounts WHERE name = 'anna'")
                        (left,) = cursor.fetchone()
                        assert left >= 0, f"anna has no {amount}"
                    print(f"paid {amount}: anna has {left}, the message is in partition {sent.partition.partition}")
                except AssertionError as error:
                    print("rolled back:", error)


if __name__ == "__main__":
    main()
