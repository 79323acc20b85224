"""A shop that dies by kill -9 at a step of the caller's choice: a statement, a commit or a send.

python killed_child.py URL NAMESRV STEP ORDER: takes an order, sends what is in the outbox, and handles what has come; each statement,
commit and send is a step, and the process dies before or behind number STEP. It prints `ended` if it got through.
"""

import contextlib
import os
import signal
import sys

import metaq
from metaq.idempotence import Idempotence
from metaq.outbox import Outbox, OutboxSender, Rules
from metaq.outbox.outlets import RocketmqOutlet
from tests.outbox.databases import connect, run

URL, NAMESRV, STEP, ORDER = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
steps = 0


def step():
    global steps
    steps += 1
    if steps == STEP:
        os.kill(os.getpid(), signal.SIGKILL)


class Cursor:
    def __init__(self, cursor):
        self._cursor = cursor

    def execute(self, *args):
        step()
        self._cursor.execute(*args)
        step()

    def __getattr__(self, name):
        return getattr(self._cursor, name)


class Connection:
    """A connection that counts; `dbapi_connection` as in a pool of SQLAlchemy."""

    def __init__(self):
        self.dbapi_connection = connect(URL)

    def cursor(self):
        return Cursor(self.dbapi_connection.cursor())

    def commit(self):
        step()
        self.dbapi_connection.commit()
        step()

    def __getattr__(self, name):
        return getattr(self.dbapi_connection, name)


class Outlet(RocketmqOutlet):
    def submit(self, entry):
        step()
        future = super().submit(entry)
        future.result()
        step()
        return future


outbox, seen = Outbox(), Idempotence("billing")


@seen.handler(Connection)
def bill(message, connection):
    step()
    run(connection.dbapi_connection, "INSERT INTO bills (name) VALUES (?)", message.body.decode())
    step()


def main():
    connection = Connection()
    run(connection.dbapi_connection, "INSERT INTO orders (name) VALUES (?)", ORDER)
    outbox.add(connection, metaq.Message("orders-killed", ORDER.encode()), ordering_key="shop")
    connection.commit()
    connection.close()
    with metaq.Producer(NAMESRV) as producer:
        # What the dead have leased would be due after a minute.
        with contextlib.closing(connect(URL)) as other:
            run(other, "UPDATE metaq_outbox SET lease_ms = 0")
            other.commit()
        rules = Rules(batch=10)
        sender = OutboxSender(outbox, Connection, Outlet(producer), rules)
        while sender.run_once():
            pass
    with metaq.Reader(NAMESRV, "orders-killed", start="earliest", stop_at_end=True) as reader:
        for message in reader:  # all of them, each time: redeliveries of the worst kind
            bill(message)
    print("ended")


if __name__ == "__main__":
    main()
