"""How to test a program that uses MetaQ: the fixture is a real broker (docs/testing.md).

pytest examples/test_your_program.py
"""

import metaq
from metaq.testing import EmbeddedBroker


def announce(namesrv: str, order: int) -> None:
    """The program under test."""
    with metaq.Producer(namesrv) as producer:
        producer.send("announcements", f"order {order}".encode(), keys=[str(order)])


def test_order_is_announced(metaq_broker: EmbeddedBroker) -> None:
    announce(metaq_broker.namesrv, 42)
    with metaq.Reader(metaq_broker.namesrv, "announcements", start="earliest", stop_at_end=True) as reader:
        assert [message.body for message in reader] == [b"order 42"]
