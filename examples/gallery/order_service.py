"""An order service that loses no order: FastAPI, SQLAlchemy and an outbox.

    POST /orders ──► one transaction: order + outbox ──► sender ──► topic orders ──► order_mailer.py

The order and the message about it are committed together, so neither can be without the other. A thread sends what was committed,
however often the process is killed in between. A client that did not hear the answer asks again with the same Idempotency-Key,
and gets the same order. Any number of these processes may run beside each other over one PostgreSQL, MariaDB or MySQL.

pip install pymetaq fastapi uvicorn sqlalchemy
metaq up &
uvicorn --app-dir examples/gallery order_service:app &
python examples/gallery/order_mailer.py &
curl localhost:8000/orders -H 'idempotency-key: 4711' --json '{"item": "lamp", "count": 1, "email": "ann@example.org"}'

`DATABASE` is a URL of SQLAlchemy's, `NAMESRV_ADDR` and `ORDERS_TOPIC` say where orders are sent. order_drill.py kills both
programs under load, and compares.
"""

import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import String, create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import metaq
from metaq.outbox import Outbox, OutboxSender, Rules

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
RULES = Rules(poll=0.5, lease=10, timeout=4, pause_max=10, tries_max=None)
"""What a killed process had in hand is sent by the next one after `lease` seconds; and a broker that is away is no reason to give up."""
engine = create_engine(os.environ.get("DATABASE", "sqlite:///orders.db"))
open_session = sessionmaker(engine)
outbox = Outbox()


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    item: Mapped[str] = mapped_column(String(100))
    count: Mapped[int]
    email: Mapped[str] = mapped_column(String(200))


class NewOrder(BaseModel):
    item: str = Field(min_length=1, max_length=100)
    count: int = Field(ge=1, le=1000)
    email: str = Field(max_length=200, pattern="^[^@ ]+@[^@ ]+$")


@contextlib.asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    with open_session() as session:
        outbox.create_table(session)
    with metaq.Producer(NAMESRV) as producer, OutboxSender(outbox, open_session, producer, RULES):
        yield


app = FastAPI(title="Orders", lifespan=lifespan)


@app.post("/orders", status_code=201)  # type: ignore[untyped-decorator]  # FastAPI may be missing where types are checked
def take_order(new: NewOrder, idempotency_key: Annotated[str, Header(min_length=1, max_length=64)]) -> dict[str, int]:
    """Store an order, once for each key."""
    with open_session() as session:
        order = Order(key=idempotency_key, **new.model_dump())
        session.add(order)
        try:
            session.flush()  # it has its number now
        except IntegrityError:
            session.rollback()
            known = session.scalars(select(Order).where(Order.key == idempotency_key)).one()
            if (known.item, known.count, known.email) != (new.item, new.count, new.email):
                raise HTTPException(422, "this Idempotency-Key belongs to another order") from None
            return {"number": known.number}
        number = order.number
        body = json.dumps({"number": number, **new.model_dump()}).encode()
        outbox.add(session, metaq.Message(TOPIC, body, keys=(f"order-{number}",)), ordering_key=str(number))
        session.commit()
        return {"number": number}


@app.get("/orders/{number}")  # type: ignore[untyped-decorator]
def show_order(number: int) -> NewOrder:
    with open_session() as session:
        order = session.get(Order, number)
        if order is None:
            raise HTTPException(404, f"there is no order {number}")
        return NewOrder(item=order.item, count=order.count, email=order.email)
