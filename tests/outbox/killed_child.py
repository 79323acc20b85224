"""A shop that dies by kill -9 at a step of the caller's choice: a statement, a commit or a send.

It does what is left of earlier orders; then it takes an order, sends it, and handles it, each statement, commit and send of which is a
step. `deaths.py` runs it.
"""

import contextlib

import metaq
from metaq.idempotence import Idempotence
from metaq.outbox import Outbox, OutboxSender
from metaq.outbox.outlets import RocketmqOutlet
from tests.outbox.databases import connect, place, run
from tests.outbox.steps import Connection, Steps

TOPIC = "orders-killed"
outbox, seen = Outbox(), Idempotence("billing")


class Outlet(RocketmqOutlet):
    def __init__(self, producer, steps):
        super().__init__(producer)
        self._steps = steps

    def submit(self, entry):
        with self._steps.around("send"):
            future = super().submit(entry)
            future.result()
        return future


def handled(opened, namesrv, orders=None):
    """Bill all that has ever come, or these orders, whether or not they are: redeliveries of the worst kind."""

    @seen.handler(opened)
    def bill(message, connection):
        sql = f"INSERT INTO bills (name) VALUES ({place(connect_of(connection))})"
        connection.cursor().execute(sql, (message.body.decode(),))

    with metaq.Reader(namesrv, TOPIC, start="earliest", stop_at_end=True) as reader:
        for message in reader:
            if orders is None or message.body.decode() in orders:
                bill(message)


def before(order):
    """The last orders before this one: a connection for each that there ever was would be most of what this does."""
    name, number = order.split("-")
    return {f"{name}-{int(number) - back:03}" for back in range(1, 6)}


def connect_of(connection):
    return getattr(connection, "dbapi_connection", connection)


def sent(sender, url):
    with contextlib.closing(connect(url)) as other:
        # What the dead have leased would be due after a minute.
        run(other, "UPDATE metaq_outbox SET lease_ms = 0")
        other.commit()
    while sender.run_once():
        pass


def start(url, namesrv, step, order):
    """Die at this step, and say where."""
    steps = Steps(step)

    def opened():
        return Connection(url, steps)

    with metaq.Producer(namesrv) as producer:
        sender = OutboxSender(outbox, opened, Outlet(producer, steps))
        sent(sender, url)
        handled(opened, namesrv, before(order))
        with steps.counted():
            with contextlib.closing(opened()) as connection:
                sql = f"INSERT INTO orders (name) VALUES ({place(connection.dbapi_connection)})"
                connection.cursor().execute(sql, (order,))
                outbox.add(connection, metaq.Message(TOPIC, order.encode()), ordering_key="shop")
                connection.commit()
            while sender.run_once():
                pass
            handled(opened, namesrv, {order})
