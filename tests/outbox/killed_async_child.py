"""The sender of asyncio in a process that dies by kill -9 at a step of the caller's choice: a statement, a commit or a send.

It sends what is left of earlier orders; then it takes an order and sends it, each statement, commit and send of which is a step.
`deaths.py` runs it.
"""

import asyncio

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

import metaq
from metaq import aio
from metaq.outbox import AsyncOutboxSender, Outbox
from metaq.outbox.outlets import RocketmqOutlet
from tests.outbox.killed_child import TOPIC
from tests.outbox.steps import Steps, name_of


class Outlet(RocketmqOutlet):
    def __init__(self, producer, steps):
        super().__init__(producer)
        self._steps = steps

    async def submit(self, entry):
        with self._steps.around("send"):
            return await super().submit(entry)


def sessions_of(engine, steps):
    """A maker of sessions whose statements and commits are steps."""

    class Stepping(Session):
        def commit(self):
            with steps.around("commit"):
                super().commit()

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def before(connection, cursor, statement, *rest):
        steps.at(f"before {name_of(statement)}")

    @event.listens_for(engine.sync_engine, "after_cursor_execute")
    def behind(connection, cursor, statement, *rest):
        steps.at(f"behind {name_of(statement)}")

    return async_sessionmaker(engine, sync_session_class=Stepping)


def start(url, namesrv, step, order):
    """Die at this step, and say where. `url`: SQLAlchemy's, of an asynchronous driver."""
    asyncio.run(main(url, namesrv, step, order))


async def main(url, namesrv, step, order):
    steps, outbox = Steps(step), Outbox()
    engine = create_async_engine(url)
    session = sessions_of(engine, steps)
    async with aio.Producer(namesrv) as producer:
        sender = AsyncOutboxSender(outbox, session, Outlet(producer, steps))
        async with session() as opened:
            # What the dead have leased would be due after a minute.
            await opened.execute(sqlalchemy.text("UPDATE metaq_outbox SET lease_ms = 0"))
            await opened.commit()
        while await sender.run_once():
            pass
        with steps.counted():
            async with session() as opened:
                await opened.execute(sqlalchemy.text("INSERT INTO orders (name) VALUES (:name)"), {"name": order})
                await outbox.add_async(opened, metaq.Message(TOPIC, order.encode()), ordering_key="shop")
                await opened.commit()
            while await sender.run_once():
                pass
    await engine.dispose()
