"""An account in MariaDB and messages at a server of MetaQ 1.x: committed together, or not at all.

MARIADB=user:password@localhost:3306 python examples/metaq1/xa_mariadb.py --zookeeper 127.0.0.1:2181

It needs `pip install 'pymetaq[xa,mysql]'`, MariaDB from 10.5 on, and the topic `payments`. An original server needs --zookeeper.
"""

import contextlib
import os
import tempfile
from typing import Any
from urllib.parse import urlsplit

import pymysql
from options import arguments

from metaq import xa
from metaq.metaq1 import Message, XAMetaMessageSessionFactory

DATABASE = urlsplit("//" + os.environ.get("MARIADB", "root@localhost:3306"))
FOLDER = os.environ.get("XA_LOG", f"{tempfile.gettempdir()}/xa-mariadb")


def connect() -> Any:
    return pymysql.connect(
        host=DATABASE.hostname, port=DATABASE.port or 3306, user=DATABASE.username, password=DATABASE.password or ""
    )


def main() -> None:
    config, options = arguments(__doc__, topic="payments")
    setup = connect()
    with contextlib.closing(setup), setup.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bank")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS bank.accounts (name CHAR(9) PRIMARY KEY, amount INT CHECK (amount >= 0))"
        )
        cursor.execute("REPLACE INTO bank.accounts VALUES ('anna', 100)")
        setup.commit()
    database = xa.MariaDb(connect)
    with XAMetaMessageSessionFactory(config) as factory:
        producer = factory.create_xa_producer(unique_qualifier="bank-1")  # the same at each start
        producer.publish(options.topic)
        messages = xa.XaMessages(producer)
        with xa.Coordinator(FOLDER, [database, messages]) as coordinator:
            print("recovered:", coordinator.recover())
            for amount in (30, 3000):
                try:
                    with coordinator.transaction() as tx, tx.enlist(database).cursor() as cursor:
                        sent = tx.enlist(messages).send_message(Message(options.topic, b"anna pays %d" % amount))
                        # What she has not got, the database refuses: then the message was never sent either.
                        cursor.execute("UPDATE bank.accounts SET amount = amount - %s WHERE name = 'anna'", (amount,))
                    print(f"paid {amount}: the message is in partition {sent.partition.partition}")
                except pymysql.MySQLError:
                    print(f"rolled back: anna has no {amount}")


if __name__ == "__main__":
    main()
