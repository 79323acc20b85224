"""A table of a database, followed by a table in a data lake: SQLAlchemy, an outbox, a topic, the pipeline `changes`, Parquet.

    sessions insert, update, delete ──► one transaction: rows + outbox ──► topic ──► metaq pipeline run changes ──► Parquet

`follow` is all that a service needs: whatever its sessions do to rows of these models is a message in the same transaction. So the lake's
table is the source's a moment later, without a Debezium or Canal beside the database (docs/changes.md reads theirs, too). Rows have a
version, by which SQLAlchemy finds writers that overtake each other and the pipeline a change that is missing.

This program is such a service for some seconds, with a pipeline that is stopped and started again meanwhile. Then it compares the tables,
row by row. The exit status is 1 if they differ.

pip install 'pymetaq[spark,plots]' sqlalchemy
metaq up &
python examples/gallery/table_to_lake.py --picture lake.svg

Elsewhere the pipeline is a process of its own:
metaq pipeline run changes --topics subscriptions --folder /data/lake --dense
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Engine, String, create_engine, event, func, inspect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, ORMExecuteState, Session, mapped_column, sessionmaker

import metaq
from metaq.admin import Admin
from metaq.outbox import Outbox, OutboxSender, Rules
from metaq.spark.pipelines import changes

PATIENCE_SECONDS = 300.0
PLANS = {"basic": 900, "team": 4900, "company": 19900}


class Base(DeclarativeBase): ...


class Subscription(Base):
    __tablename__ = "subscriptions"
    number: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(100))
    plan: Mapped[str] = mapped_column(String(20))
    cents: Mapped[int]
    version: Mapped[int] = mapped_column()

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  SQLAlchemy's way
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012  a number that is used again would have its versions again


# ------------------------------------------------------------------ what a service needs


def follow(sessions: "sessionmaker[Session]", outbox: Outbox, topic: str, *models: Any) -> None:
    """Let every flush of these sessions add a message for each row of the models, one that `metaq pipeline run changes` reads.

    A model has a `version_id_col`. Bulk statements (`session.execute(update(Model))`) do not go through the rows; they raise here.
    """

    @event.listens_for(sessions, "after_flush")
    def add(session: Session, _context: Any) -> None:
        for op, rows in (("insert", session.new), ("update", session.dirty), ("delete", session.deleted)):
            for row in rows:
                if isinstance(row, models) and (op != "update" or session.is_modified(row)):
                    change, key = change_of(op, row)
                    outbox.add(session, metaq.Message(topic, change, tag=op, keys=(key,)), ordering_key=key)

    @event.listens_for(sessions, "do_orm_execute")
    def refuse(state: ORMExecuteState) -> None:
        if not state.is_select and state.bind_mapper is not None and issubclass(state.bind_mapper.class_, models):
            raise TypeError(
                f"a bulk statement on {state.bind_mapper.class_.__name__} would not reach {topic}: change its rows"
            )


def change_of(op: str, row: Any) -> tuple[bytes, str]:
    """A change of a row as a message's body, and the row's name."""
    mapper = inspect(type(row))
    values = {attribute.key: getattr(row, attribute.key) for attribute in mapper.column_attrs}
    key = {mapper.get_property_by_column(column).key: None for column in mapper.primary_key}
    key |= {name: values.pop(name) for name in key}
    version = values[mapper.get_property_by_column(mapper.version_id_col).key]
    change: dict[str, Any] = {"table": mapper.local_table.name, "op": op, "key": key, "seq": version + (op == "delete")}
    if op != "delete":
        change["row"] = values
    # Days and decimals are written as texts.
    return json.dumps(change, default=str).encode(), "-".join([mapper.local_table.name, *map(str, key.values())])


# ------------------------------------------------------------------ as if it were a business


def trade(sessions: "sessionmaker[Session]", seconds: float, chance: random.Random) -> int:
    """Subscribe, change plans and cancel for so long, a transaction each. Returns how many rows were changed."""
    end, changed = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with sessions.begin() as session:
            known = session.scalars(select(Subscription.number)).all()
            if len(known) < 10 or chance.random() < 0.5:
                plan = chance.choice(list(PLANS))
                session.add(Subscription(customer=f"customer {chance.randrange(10_000)}", plan=plan, cents=PLANS[plan]))
                changed += 1
            else:
                for number in chance.sample(known, chance.randint(1, 3)):
                    one = session.get_one(Subscription, number)
                    if chance.random() < 0.25:
                        session.delete(one)
                    else:
                        one.cents += 100
                    changed += 1
        time.sleep(0.05)
    return changed


class Moment(NamedTuple):
    """Rows and monthly cents on both sides, so many seconds after the start."""

    at: float
    rows: int
    cents: int
    lake_rows: int
    lake_cents: int


def of_source(engine: Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [
            dict(row)
            for row in connection.execute(select(Subscription.__table__).order_by(Subscription.number)).mappings()
        ]


def of_lake(folder: Path) -> list[dict[str, Any]]:
    """The same from the newest generation of the snapshot; none while there is none."""
    try:
        found = metaq.spark.snapshot(folder)
    except metaq.ConfigError:
        return []
    names = [column.name for column in Subscription.__table__.columns]
    return list(found.dataset(Subscription.__tablename__).to_table(columns=names).sort_by("number").to_pylist())


def run(
    spark: Any, namesrv: str, folder: Path, *, seconds: float, seed: int = 1
) -> tuple[list[Moment], list[tuple[float, str]], bool]:
    """All of it, in an empty folder. Returns what there was when, what was done to the pipeline, and whether the tables are the same.

    Raises what the pipeline failed with, or TimeoutError.
    """
    topic, lake = f"{Subscription.__tablename__}-{uuid.uuid4().hex[:8]}", folder / "lake"
    engine = create_engine(f"sqlite:///{folder / 'shop.db'}", connect_args={"timeout": 30})
    sessions, outbox = sessionmaker(engine), Outbox()
    Base.metadata.create_all(engine)
    with sessions() as session:
        outbox.create_table(session)
    follow(sessions, outbox, topic, Subscription)
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queues=4)
        admin.set_topic_order(topic)  # the changes of a row stay in their queue, whatever is down

    def pipeline() -> Any:
        options = {
            "nameServers": namesrv,
            "topics": topic,
            "folder": lake,
            "dense": True,
            "buckets": 2,
            "triggerSeconds": 1,
        }
        return changes(spark, options)

    moments: list[Moment] = []
    done: list[tuple[float, str]] = []
    changed: list[int] = []
    over, begun = threading.Event(), time.monotonic()

    def look() -> None:
        while not over.wait(0.2):
            with engine.connect() as connection:
                [(rows, cents)] = connection.execute(
                    select(func.count(), func.coalesce(func.sum(Subscription.cents), 0))
                )
            there = of_lake(lake)
            moments.append(
                Moment(time.monotonic() - begun, rows, cents, len(there), sum(row["cents"] for row in there))
            )

    def wait_for(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds + PATIENCE_SECONDS
        while not holds():
            if not query.isActive:
                raise query.exception()
            if time.monotonic() > end:
                raise TimeoutError(f"the lake does not have all of {topic}")
            time.sleep(0.2)

    business = threading.Thread(target=lambda: changed.append(trade(sessions, seconds, random.Random(seed))))
    watcher = threading.Thread(target=look)
    with metaq.Producer(namesrv) as producer, OutboxSender(outbox, sessions, producer, Rules(poll=0.2)):
        query = pipeline()
        try:
            with sessions.begin() as session:
                session.add_all(
                    Subscription(customer=f"founder {one}", plan="team", cents=PLANS["team"]) for one in range(10)
                )
            wait_for(lambda: of_lake(lake) == of_source(engine))
            begun = time.monotonic()
            watcher.start()
            business.start()
            business.join(seconds * 0.4)
            while query.status["isTriggerActive"] and time.monotonic() < begun + seconds * 0.6:
                time.sleep(0.01)  # stopped within a batch, Spark says so with a long stack trace; it goes on as well
            done.append((time.monotonic() - begun, "pipeline stops"))
            query.stop()
            business.join(max(0.0, seconds * 0.7 - (time.monotonic() - begun)))
            done.append((time.monotonic() - begun, "it starts again"))
            query = pipeline()
            business.join()
            wait_for(lambda: of_lake(lake) == of_source(engine))
            time.sleep(0.5)  # for the watcher
        finally:
            over.set()
            for thread in (business, watcher):
                if thread.ident is not None:
                    thread.join()
            query.stop()
            with Admin(namesrv) as admin:
                admin.delete_topic(topic, force=True)
    there = of_lake(lake)
    print(f"{sum(changed)} rows were changed; {len(there)} are in the lake")
    same = of_source(engine) == there
    engine.dispose()
    return moments, done, same


def draw(path: Path, moments: list[Moment], done: list[tuple[float, str]]) -> None:
    """Both tables over time."""
    from picture import BLUE, COLOURS, mark, picture

    with picture(path, "A table, and its copy in the lake", "rows", "monthly revenue, in thousands") as (rows, revenue):
        at = [one.at for one in moments]
        for axes, source, lake in (
            (rows, [one.rows for one in moments], [one.lake_rows for one in moments]),
            (revenue, [one.cents / 100_000 for one in moments], [one.lake_cents / 100_000 for one in moments]),
        ):
            axes.plot(at, source, color=BLUE, linewidth=3.5, label="source: a database")
            axes.step(at, lake, where="post", color=COLOURS[1], label="lake: Parquet")
            axes.set_ylim(bottom=0)
            mark(axes, done)
        rows.legend(loc="upper left", bbox_to_anchor=(0, 1.02))
        revenue.set_xlabel("seconds")


def main() -> int:
    arguments = argparse.ArgumentParser(description="A table and its copy in a data lake.")
    arguments.add_argument("--namesrv", default=os.environ.get("NAMESRV_ADDR", "localhost:9876"))
    arguments.add_argument("--seconds", type=float, default=30.0, help="how long rows are changed")
    arguments.add_argument(
        "--folder", type=Path, help="an empty folder for the database and the lake; by default a temporary one"
    )
    arguments.add_argument("--picture", type=Path, help="draw both tables over time into this SVG file")
    given = arguments.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="lake-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        arguments.error(f"{folder} is not empty")
    spark = metaq.spark.session("table_to_lake")
    try:
        moments, done, same = run(spark, given.namesrv, folder, seconds=given.seconds)
    finally:
        spark.stop()
    print("the tables are the same, row by row" if same else f"the tables DIFFER; both are in {folder}")
    if given.picture:
        draw(given.picture, moments, done)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
