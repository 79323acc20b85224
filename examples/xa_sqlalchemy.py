"""SQLAlchemy's sessions and messages in transactions of the package `transaction`, as Pyramid and Zope have them.

POSTGRESQL="host=localhost user=me dbname=shop" python examples/xa_sqlalchemy.py  # beside `metaq up`
"""

import os
import tempfile
import time

import psycopg
import transaction
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import metaq
from metaq import xa
from metaq.xa.sessions import SqlAlchemySessions

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
DATABASE = os.environ.get("POSTGRESQL", "host=localhost dbname=postgres")
FOLDER = os.environ.get("XA_LOG", f"{tempfile.gettempdir()}/xa-sqlalchemy")
TOPIC = "xa-sqlalchemy"


class Base(DeclarativeBase):
    pass


class Guest(Base):
    __tablename__ = "xa_guests"
    name: Mapped[str] = mapped_column(primary_key=True)


def main() -> None:
    started = time.time()
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(DATABASE))
    Base.metadata.create_all(engine)
    sessions = SqlAlchemySessions(sessionmaker(engine, twophase=True), engine)
    with metaq.Producer(NAMESRV) as producer:
        messages = xa.AtomicMessages(producer)
        with xa.Coordinator(FOLDER, [sessions, messages]) as coordinator:
            coordinator.recover()
            for name in ("anna", "bela", "anna"):
                try:
                    with transaction.manager:  # in Pyramid: the request
                        tx = xa.join(coordinator)
                        tx.enlist(messages).send(TOPIC, name.encode())
                        tx.enlist(sessions).add(Guest(name=name))
                except metaq.TransactionFailed as error:
                    print(f"{name} is here already:", type(error.__cause__).__name__)
    with Session(engine) as session:
        print("guests:", *session.scalars(select(Guest.name).order_by(Guest.name)))
    engine.dispose()
    with metaq.Reader(NAMESRV, TOPIC, start=started, stop_at_end=True) as reader:
        print("greeted:", *sorted(message.body.decode() for message in reader))


if __name__ == "__main__":
    main()
