"""The order service of the gallery: killed at any point, no order is lost and none is mailed twice."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import uuid

import pytest

import metaq
from metaq.admin import Admin
from metaq.testing import free_port
from tests.examples.gallery import PICTURE_BYTES_MAX, loaded
from tests.outbox.databases import until

pytestmark = pytest.mark.slow

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: it comes with the extra test")
pytest.importorskip("fastapi", reason="FastAPI is not installed: it comes with the extra test")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: it comes with the extra http")


@pytest.fixture
def topic(metaq_broker):
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


def stored(broker, topic):
    """Bodies in the topic."""
    with metaq.Reader(broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        return [message.body for message in reader]


def order(shop, key):
    """The number that the service answers, as soon as it runs."""

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return shop.order(key, "lamp", 2)

    return until(ask, "the service answers")


def test_an_order_is_taken_and_mailed_once(metaq_broker, topic, tmp_path, monkeypatch):
    """A key that comes again is the same order, unless it asks for something else; a message that comes again changes nothing."""
    pytest.importorskip("httpx", reason="httpx is not installed: it comes with the extra test")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("NAMESRV_ADDR", metaq_broker.namesrv)
    monkeypatch.setenv("ORDERS_TOPIC", topic)
    monkeypatch.setenv("DATABASE", f"sqlite:///{tmp_path / 'orders.db'}")
    monkeypatch.setenv("MAILER_DATABASE", f"sqlite:///{tmp_path / 'mailer.db'}")
    service, mailer = loaded("order_service", monkeypatch), loaded("order_mailer", monkeypatch)
    mailer.prepare()
    mailer.prepare()  # a second mailer
    wanted = {"item": "lamp", "count": 60, "email": "ann@example.org"}
    with TestClient(service.app) as client:

        def ask(key, **other):
            return client.post("/orders", json=wanted | other, headers={"idempotency-key": key})

        assert [ask("a").json(), ask("b").json(), ask("a").json()] == [{"number": 1}, {"number": 2}, {"number": 1}]
        assert (ask("a").status_code, ask("a", count=61).status_code) == (201, 422)
        assert (ask("c", count=0).status_code, client.post("/orders", json=wanted).status_code) == (422, 422)
        assert client.get("/orders/1").json() == wanted
        assert client.get("/orders/3").status_code == 404
        until(lambda: len(stored(metaq_broker, topic)) == 2, "both are sent")
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        messages = sorted(reader, key=lambda message: message.body)
    for message in [*messages, *messages]:
        mailer.handle(message)
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for body in (b"hello", b'{"id": 42}', b"[42]"):  # as they are in a topic `orders` after a first try of MetaQ
            producer.send(topic, body)
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        others = [message for message in reader if message.message_id not in {one.message_id for one in messages}]
    assert len(others) == 3
    for message in others:
        with pytest.raises(metaq.Reject):
            mailer.handle(message)
    with mailer.open_session() as session:
        mails = [(mail.order, mail.text) for mail in session.query(mailer.Mail)]
        left = session.get(mailer.Stock, "lamp").left
    assert mails == [(1, "60 x lamp is on its way"), (2, "60 x lamp is sold out")]
    assert left == 40
    service.engine.dispose()
    mailer.engine.dispose()


def test_what_was_committed_before_a_kill_is_sent_after_it(metaq_broker, topic, tmp_path, monkeypatch):
    """Killed between commit and send, which a broker that cannot be reached holds open; then the mailer is killed as well."""
    drill = loaded("order_drill", monkeypatch)
    with drill.Shop(tmp_path, metaq_broker.namesrv, topic) as shop:
        shop.start("service", NAMESRV_ADDR=f"127.0.0.1:{free_port()}")
        assert order(shop, "first") == 1
        shop.kill("service")
        assert shop.rows("orders.db", "SELECT state FROM metaq_outbox") == [("waiting",)]
        assert stored(metaq_broker, topic) == []
        with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", shop.port), 1):
            pass

        shop.start("service")
        assert order(shop, "first") == 1  # a client that did not hear the answer
        assert order(shop, "second") == 2
        until(lambda: len(stored(metaq_broker, topic)) == 2, "both are sent")
        shop.start("mailer")
        until(lambda: len(shop.rows("mailer.db", "SELECT * FROM mails")) == 2, "both are mailed")
        shop.kill("mailer")
        shop.kill("service")
        assert shop.rows("mailer.db", 'SELECT "order" FROM mails ORDER BY 1') == [(1,), (2,)]
        assert shop.rows("mailer.db", "SELECT \"left\" FROM stock WHERE item = 'lamp'") == [(96,)]


def test_the_drill_finds_everything_once(metaq_broker, tmp_path, capsys, monkeypatch):
    """Both are killed under load. Its picture has the figures."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    drill = loaded("order_drill", monkeypatch)
    moments, killed, found = drill.run(metaq_broker.namesrv, tmp_path, seconds=4, kills=3, seed=1, clients=2)
    assert all(found.values()), found
    assert {name for _, name in killed} == {"service", "mailer"}
    assert moments[-1].mailed == moments[-1].answered > 0
    assert re.match(
        r"3 kills; \d+ orders were asked for again, \d+ messages were sent again\n", capsys.readouterr().out
    )
    drill.draw(tmp_path / "orders.svg", moments, killed)
    drawn = (tmp_path / "orders.svg").read_text()
    assert f"{moments[-1].answered} orders, 3 times kill -9, {moments[-1].mailed} mails" in drawn
    assert len(drawn) < PICTURE_BYTES_MAX


@pytest.mark.parametrize(
    ("database", "damage"),
    [
        ("orders.db", "DELETE FROM orders WHERE number = 1"),
        ("orders.db", "INSERT INTO orders VALUES (3, 'c', 'lamp', 1)"),
        ("mailer.db", "DELETE FROM mails WHERE number = 1"),
        ("mailer.db", "INSERT INTO mails VALUES (3, 1, '2 x lamp is on its way')"),
        ("mailer.db", 'UPDATE stock SET "left" = 96'),
    ],
)
def test_the_drill_sees_what_is_wrong(tmp_path, database, damage, monkeypatch):
    """Its own oracle: a lost order, one too many, a mail that is missing or comes twice, goods that left twice."""
    import sqlite3

    drill = loaded("order_drill", monkeypatch)
    for name, script in {
        "orders.db": "CREATE TABLE orders (number, key, item, count); INSERT INTO orders VALUES (1, 'a', 'lamp', 2), (2, 'b', 'lamp', 99);",
        "mailer.db": 'CREATE TABLE mails (number, "order", text); CREATE TABLE stock (item, "left");'
        "INSERT INTO mails VALUES (1, 1, '2 x lamp is on its way'), (2, 2, '99 x lamp is sold out'); INSERT INTO stock VALUES ('lamp', 98);",
    }.items():
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as opened:
            opened.executescript(script)
    shop, answered = drill.Shop(tmp_path, "", "orders"), {"a": 1, "b": 2}
    assert all(drill.verdicts(shop, answered, {"lamp": 100}).values())
    with contextlib.closing(sqlite3.connect(tmp_path / database)) as opened:
        opened.execute(damage)
        opened.commit()
    assert not all(drill.verdicts(shop, answered, {"lamp": 100}).values())
