"""A program that puts orders into a database and sends them, in one transaction each, and is killed in the middle of one.

    python -m tests.xa.program '{"messages": {...}, "database": {...}, ...}'

As a module: what the test and the program both need, resources by a description that fits on a command line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import metaq
from metaq import xa
from metaq.metaq1 import Message, MetaClientConfig, XAMetaMessageSessionFactory, ZKConfig
from tests.support import PATIENCE

TOPICS = ("orders", "stock")
PACKAGE = str(Path(xa.__file__).parent)


def connector(database: dict[str, Any]) -> Callable[[], Any]:
    user, _, address = database["address"].partition("@")
    host, _, port = address.rpartition(":")
    if database["kind"].endswith("mariadb"):
        import pymysql

        return lambda: pymysql.connect(host=host, port=int(port), user=user, database=database.get("schema"))
    import psycopg

    return lambda: psycopg.connect(host=host, port=int(port), user=user, dbname="postgres")


def database_of(job: dict[str, Any], stack: contextlib.ExitStack) -> tuple[Any, Callable[[Any, int], None]]:
    """The resource, and what inserts a row."""
    database = job["database"]
    connect = connector(database)

    def insert(connection: Any, number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {job['table']} VALUES ({number})")

    if database["kind"] == "mariadb":
        return xa.MariaDb(connect), insert
    if database["kind"] == "postgresql":
        return xa.TpcDatabase(connect), insert
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import sessionmaker

    from metaq.xa.sessions import SqlAlchemySessions

    driver = "mysql+pymysql" if database["kind"].endswith("mariadb") else "postgresql+psycopg"
    engine = create_engine(f"{driver}://", creator=connect)
    stack.callback(engine.dispose)  # PostgreSQL stops when its clients have gone

    def insert_by_session(session: Any, number: int) -> None:
        session.execute(text(f"INSERT INTO {job['table']} VALUES ({number})"))

    return SqlAlchemySessions(sessionmaker(engine, twophase=True), engine), insert_by_session


@contextlib.contextmanager
def messages_of(job: dict[str, Any]) -> Iterator[tuple[Any, Callable[[Any, int], None]]]:
    """The resource, and what sends an order."""
    messages = job["messages"]
    if messages["kind"] == "atomic":

        def send_atomic(atomic: Any, number: int) -> None:
            for topic in TOPICS:
                atomic.send(f"{job['table']}-{topic}", str(number).encode())

        with metaq.Producer(messages["namesrv"]) as producer:
            yield xa.AtomicMessages(producer), send_atomic
        return

    def send(producer: Any, number: int) -> None:
        for topic in TOPICS:
            producer.send_message(Message(topic, f"{job['table']} {number}".encode()), timeout=PATIENCE)

    if "zookeeper" in messages:
        config = MetaClientConfig(zk_config=ZKConfig(zk_connect=messages["zookeeper"]))
    else:
        config = MetaClientConfig(server_url=messages["server"])
    qualifier = f"q-{job['table']}"
    with (
        XAMetaMessageSessionFactory(config) as factory,
        factory.create_xa_producer(unique_qualifier=qualifier) as producer,
    ):
        for topic in TOPICS:
            producer.publish(topic)
        yield xa.XaMessages(producer), send


@contextlib.contextmanager
def coordinated(job: dict[str, Any]) -> Iterator[Callable[[int], xa.GlobalTransaction]]:
    """After recovery: what makes a transaction with an order in it."""
    with coordinator_of(job) as (coordinator, order):
        recovered = coordinator.recover()
        assert not recovered.pending, recovered
        assert not recovered.otherwise, recovered
        yield order


@contextlib.contextmanager
def coordinator_of(job: dict[str, Any]) -> Iterator[tuple[xa.Coordinator, Callable[[int], xa.GlobalTransaction]]]:
    """A coordinator that has recovered nothing yet, and what makes a transaction with an order in it."""
    with messages_of(job) as (messages, send), contextlib.ExitStack() as stack:
        database, insert = database_of(job, stack)
        with xa.Coordinator(job["folder"], [messages, database]) as coordinator:

            def order(number: int) -> xa.GlobalTransaction:
                tx = xa.join(coordinator) if job.get("manager") == "transaction" else coordinator.transaction()
                insert(tx.enlist(database), number)
                send(tx.enlist(messages), number)
                return tx

            yield coordinator, order


class Lines:
    """Counts the lines of `metaq.xa` that this thread runs, and dies at one of them."""

    def __init__(self, last: int = -1) -> None:
        self.count, self._last = 0, last

    def __enter__(self) -> Self:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def ending(job: dict[str, Any], tx: xa.GlobalTransaction) -> None:
    if job.get("manager") == "transaction":
        import transaction

        transaction.commit()
    else:
        tx.commit()


def commit_on(job: dict[str, Any]) -> None:
    """Order after order, until somebody ends the process."""
    with coordinated(job) as order:
        for number in itertools.count(job["first"]):
            ending(job, order(number))
            print(number, flush=True)


def main() -> None:
    job = json.loads(sys.argv[1])
    first = job["first"]
    if job.get("goes_on"):
        commit_on(job)
    with coordinated(job) as order:
        tx = order(first)
        with Lines() as whole:
            ending(job, tx)
        print("committed", first, flush=True)
        if job.get("manager") == "transaction":
            import transaction

            order(first + 1)
            transaction.abort()
        else:
            order(first + 1).rollback()
        print("rolled back", first + 1, flush=True)
        tx = order(first + 2)
        line = random.Random(job["seed"]).randint(1, whole.count)
        print("dies", first + 2, line, whole.count, flush=True)
        with Lines(line):
            ending(job, tx)
        print("lives", first + 2, flush=True)


if __name__ == "__main__":
    main()
