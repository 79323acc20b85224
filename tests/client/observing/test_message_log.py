"""`message_log=True`: a line for each send and delivery, and no more lines a second than wanted."""

from __future__ import annotations

import logging

import pytest

import metaq
from metaq.client.observing.message_log import MessageLog
from metaq.clock import FakeClock
from metaq.model import MessageQueue, StoredMessage
from metaq.model.trace import Result
from tests.support import eventually


@pytest.fixture(autouse=True)
def info(caplog):
    caplog.set_level(logging.INFO, "metaq.messages")


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "metaq.messages"]


def test_sends_and_deliveries_are_lines_with_key_id_result_and_duration(metaq_broker, caplog):
    """Of a send its key and result, of a delivery key, id, attempt and duration."""
    namesrv = metaq_broker.namesrv
    with metaq.Producer(namesrv, message_log=True) as producer:
        receipt = producer.send("logged", b"x", keys=["k1", "k2"])
        producer.submit("logged", b"without a key").result()
        with pytest.raises(metaq.MetaqError):
            producer.send("logged", b"x", queue=MessageQueue("logged", "nobody", 0), timeout=0.2)
    with metaq.Consumer(namesrv, group="log-g", topics="logged", start="earliest", message_log=True) as consumer:
        for _ in range(2):
            with consumer.receive() as message:
                if message.message_id == receipt.message_id:
                    raise metaq.Later(18)
    found = eventually(lambda: len(lines(caplog)) >= 5 and lines(caplog))
    sent = [line for line in found if "sent:" in line]
    assert sent[0].startswith(f"sent: topic logged, key k1 k2, id {receipt.message_id}, SEND_OK in ")
    assert f"{receipt.queue} offset {receipt.offset}" in sent[0]
    assert "key -," in sent[1]
    assert sent[2].startswith("not sent: topic logged, key -, id ")
    delivered = [line for line in found if line.startswith("delivered: group log-g, topic logged, ")]
    [failed] = [line for line in delivered if receipt.message_id in line]
    assert "key k1 k2" in failed
    assert "attempt 1, failed in " in failed
    assert len(delivered) == 2


class Core:
    def __init__(self):
        self.clock = FakeClock()


def test_lines_are_bounded_and_what_is_left_out_is_told(caplog):
    """So many a second; then a line with the number of the others."""
    core = Core()
    log = MessageLog(core, "g", 3)
    message = StoredMessage(topic="t", body=b"x", reconsume_times=2)
    for _ in range(10):
        log.ended(message, None, Result.SUCCESS, 5)
    assert len(lines(caplog)) == 3
    assert "attempt 3, ok in 5 ms" in lines(caplog)[0]
    log._tell_left_out()
    assert lines(caplog)[-1] == "7 more messages of group g: message_log_rate is 3 lines a second"
    core.clock.advance(1.0)
    log.ended(message, None, Result.TIMEOUT, 5)
    assert "timed out" in lines(caplog)[-1]


def test_a_logger_that_is_off_costs_nothing(caplog):
    """Nothing is counted either: nobody asked."""
    caplog.set_level(logging.WARNING, "metaq.messages")
    log = MessageLog(Core(), "g", 1)
    for _ in range(5):
        log.ended(StoredMessage(topic="t", body=b"x"), None, Result.SUCCESS, 5)
    log._tell_left_out()
    assert lines(caplog) == []
