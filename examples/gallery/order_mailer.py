"""What happens to orders: goods are taken from the stock and a mail is written, once for each order.

It has a database of its own. The message's id, what is taken and the mail are committed together, so a message that comes again, because
this process was killed before it could acknowledge or the service's sender was, changes nothing. The table `mails` is what the mail
gateway sends from: a mail in it has the order's number, which makes its Message-ID.

python examples/gallery/order_mailer.py     # any number of them; see order_service.py
"""

import json
import os

from sqlalchemy import String, create_engine, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import metaq
from metaq.idempotence import Idempotence

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
GROUP = f"{TOPIC}-mailer"
STOCK = {"lamp": 100, "chair": 200, "desk": 300}
engine = create_engine(os.environ.get("MAILER_DATABASE", "sqlite:///mailer.db"))
open_session = sessionmaker(engine)
seen = Idempotence(GROUP)


class Base(DeclarativeBase): ...


class Stock(Base):
    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(String(100), primary_key=True)
    left: Mapped[int]


class Mail(Base):
    __tablename__ = "mails"
    number: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    email: Mapped[str] = mapped_column(String(200))
    text: Mapped[str] = mapped_column(String(500))


@seen.handler(open_session)
def handle(message: metaq.StoredMessage, session: Session) -> None:
    """Take the goods and write the mail. What is raised here rolls back all of it, and the message comes again."""
    try:
        order = json.loads(message.body)
        number, item, count, email = (order[name] for name in ("number", "item", "count", "email"))
    except (ValueError, LookupError, TypeError):
        raise metaq.Reject from None  # no order, and it will never be one: a dead letter at once
    enough = (Stock.item == item) & (Stock.left >= count)
    taken = session.connection().execute(update(Stock).where(enough).values(left=Stock.left - count))
    text = "is on its way" if taken.rowcount else "is sold out"
    session.add(Mail(order=number, email=email, text=f"{count} x {item} {text}"))


def prepare() -> None:
    """Make the tables, and fill the shelves the first time."""
    Base.metadata.create_all(engine)
    with open_session() as session:
        seen.create_table(session)
        for item, left in STOCK.items():
            try:
                session.execute(insert(Stock).values(item=item, left=left))
                session.commit()
            except IntegrityError:
                session.rollback()


def main() -> None:
    prepare()
    with metaq.Consumer(NAMESRV, group=GROUP, topics=TOPIC, start="earliest") as consumer:
        consumer.run(handle)  # until SIGTERM or Ctrl-C


if __name__ == "__main__":
    main()
