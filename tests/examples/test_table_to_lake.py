"""The lake of the gallery: what sessions do to rows is in the outbox with them, and the lake's table becomes the source's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from metaq.outbox import Outbox
from metaq.outbox.entry import rocketmq_message
from metaq.spark.engine.slow_start import run_through
from tests.examples.gallery import PICTURE_BYTES_MAX, loaded

pytestmark = pytest.mark.slow

sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: it comes with the extra test")
pytest.importorskip("pyspark", reason="PySpark is not installed: it comes with the extra spark")
pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")


@pytest.fixture
def example(monkeypatch):
    return loaded("table_to_lake", monkeypatch)


def followed(example, folder):
    """Sessions over a database with an empty table, and a function that takes the changes out of the outbox."""
    from sqlalchemy.orm import sessionmaker

    engine = sqlalchemy.create_engine(f"sqlite:///{folder / 'shop.db'}")
    sessions, outbox = sessionmaker(engine), Outbox()
    example.Base.metadata.create_all(engine)
    with sessions() as session:
        outbox.create_table(session)
    example.follow(sessions, outbox, "changes", example.Subscription)

    def taken():
        with sessions() as session:
            entries = outbox.listed(session)
            outbox.drop(session, [entry.message_id for entry in entries])
            session.commit()
        messages = [rocketmq_message(entry) for entry in entries]
        changes = [json.loads(message.body) for message, _ in messages]
        assert [key for _, key in messages] == [f"subscriptions-{change['key']['number']}" for change in changes]
        return [(change["op"], change["key"]["number"], change["seq"], change.get("row")) for change in changes]

    return sessions, taken


def test_each_change_is_a_message_of_its_transaction(example, tmp_path):
    """Versions grow by one and end with the deletion; what is rolled back, or changes nothing, sends nothing; numbers do not come again."""
    sessions, taken = followed(example, tmp_path)
    row = {"customer": "ann", "plan": "team", "cents": 4900}
    with sessions.begin() as session:
        one = example.Subscription(**row)
        session.add_all([one, example.Subscription(**row)])
        session.flush()
        one.cents = 5000
    assert taken() == [
        ("insert", 1, 1, row | {"version": 1}),
        ("insert", 2, 1, row | {"version": 1}),
        ("update", 1, 2, row | {"version": 2, "cents": 5000}),
    ]
    with sessions() as session:
        session.get(example.Subscription, 1).cents = 1
        session.flush()
        session.rollback()
    with sessions.begin() as session:
        session.get(example.Subscription, 1).cents = 5000
    assert taken() == []
    with sessions.begin() as session:
        one, other = (session.get(example.Subscription, number) for number in (1, 2))
        session.delete(other)
        one.plan = "basic"
    with sessions.begin() as session:
        session.add(example.Subscription(**row))
    assert taken() == [
        ("update", 1, 3, row | {"version": 3, "cents": 5000, "plan": "basic"}),
        ("delete", 2, 2, None),
        ("insert", 3, 1, row | {"version": 1}),
    ]


@pytest.mark.parametrize("make", ["update", "delete", "insert"])
def test_bulk_statements_are_refused(example, tmp_path, make):
    """They would change rows of which nobody hears; of other tables they are none of our business."""
    sessions, taken = followed(example, tmp_path)
    values = {"customer": "ann", "plan": "team", "cents": 1, "version": 1}
    statement = getattr(sqlalchemy, make)(example.Subscription)
    with sessions() as session:
        with pytest.raises(TypeError, match="bulk statement on Subscription"):
            session.execute(statement if make == "delete" else statement.values(**values))
        session.execute(sqlalchemy.text("DELETE FROM metaq_outbox"))
    assert taken() == []


@pytest.mark.spark
def test_the_lake_has_what_the_table_has(example, spark, metaq_broker, tmp_path, capsys):
    """Row by row, after inserts, updates, deletions, and a pipeline that was stopped and started again."""

    def run():
        return example.run(spark, metaq_broker.namesrv, Path(tempfile.mkdtemp(dir=tmp_path)), seconds=3)

    moments, done, same = run_through(run, lambda found: found)
    assert same
    assert [what for _, what in done] == ["pipeline stops", "it starts again"]
    last, printed = moments[-1], capsys.readouterr().out
    assert last.rows == last.lake_rows > 0
    assert last.cents == last.lake_cents > 0
    assert printed.endswith(f"rows were changed; {last.rows} are in the lake\n")
    assert any(one.rows != one.lake_rows for one in moments)
    example.draw(tmp_path / "lake.svg", moments, done)
    assert len((tmp_path / "lake.svg").read_bytes()) < PICTURE_BYTES_MAX
