"""A web service with an outbox and an idempotent consumer: FastAPI and SQLAlchemy.

POST /orders stores an order and, in the same transaction, the message about it. A thread sends what was committed. The consumer, which
might as well be another service with another database, writes one bill for each order, however often the message comes.

    pip install fastapi uvicorn sqlalchemy
    metaq up &
    uvicorn --app-dir examples order_service:app
    curl -X POST 'localhost:8000/orders?item=lamp'
"""

import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator

from fastapi import FastAPI
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import metaq
from metaq.idempotence import Idempotence
from metaq.outbox import Outbox, OutboxSender

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
engine = create_engine(os.environ.get("DATABASE", "sqlite:///orders.db"))
open_session = sessionmaker(engine)
outbox, seen = Outbox(), Idempotence("billing")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Bill(Base):
    __tablename__ = "bills"
    number: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]


@seen.handler(open_session)
def bill(message: metaq.StoredMessage, session: Session) -> None:
    session.add(Bill(order=json.loads(message.body)["number"]))


@contextlib.asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    with open_session() as session:
        outbox.create_table(session)
        seen.create_table(session)
    with metaq.Producer(NAMESRV) as producer, OutboxSender(outbox, open_session, producer):
        consumer = metaq.Consumer(NAMESRV, group="billing", topics="orders", start="earliest")
        worker = threading.Thread(target=consumer.run, args=(bill,))
        worker.start()
        try:
            yield
        finally:
            consumer.stop()
            worker.join()


app = FastAPI(lifespan=lifespan)


@app.post("/orders")  # type: ignore[untyped-decorator]  # FastAPI may be missing where types are checked
def take_order(item: str) -> dict[str, int]:
    with open_session() as session:
        order = Order(item=item)
        session.add(order)
        session.flush()  # it has its number now
        body = json.dumps({"number": order.number, "item": item}).encode()
        outbox.add(session, metaq.Message("orders", body), ordering_key=str(order.number))
        session.commit()
        return {"number": order.number}


@app.get("/orders/{number}/bills")  # type: ignore[untyped-decorator]
def count_bills(number: int) -> int:
    with open_session() as session:
        return session.scalar(select(func.count()).where(Bill.order == number)) or 0
