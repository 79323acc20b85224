"""The one way into the log: whoever hangs on its growth is told of every append, of whichever path."""

from __future__ import annotations

import pytest

from metaq.broker.requests import Send
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused, StoreError, StoreFull
from metaq.wire import hot
from metaq.wire.codes import RequestCode
from tests.broker.support import BORN_HOST, open_broker
from tests.servers.support import Client, open_server, send_header


def test_growth_is_told_once_for_each_append_with_its_place_in_the_log(tmp_path) -> None:
    """A single send, a run of rows and a delivery: ranges follow each other without a gap. Watched queues are named, and
    those that a single send has made."""
    clock = FakeClock()
    with open_server(tmp_path, clock) as (broker, server):
        client, told = Client(server), []
        broker.appender.when_grown(
            lambda queues, messages, size, start, end: told.append(
                ([(tail.topic, tail.queue_id) for tail in queues], messages, size, start, end)
            )
        )
        client.send("orders")
        broker.store.reader.queue("orders", 1).tail.watched = True
        frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_header("orders", n), b"x") for n in (0, 1, 1)]
        client.feed(b"".join(frames))
        client.received()
        broker.store.reader.queue(
            "orders", 1
        ).tail.watched = True  # nobody waits there, so that it was told of for the last time
        client.send("orders", queue_id=1, properties={"DELAY": "1"})
        clock.advance(1)
        broker.schedule.step()
        assert [(queues, messages) for queues, messages, *_ in told] == [
            ([(b"orders", 0)], 1), ([(b"orders", 1)], 3), ([(b"SCHEDULE_TOPIC_XXXX", 0)], 1), ([(b"orders", 1)], 1),
        ]  # fmt: skip
        assert all(size == end - start for _, _, size, start, end in told)
        assert [start for *_, start, _ in told[1:]] == [end for *_, end in told[:-1]]
        assert told[-1][-1] == broker.store.log.end
        assert broker.stats.put_messages == 6
        assert broker.stats.put_bytes == sum(size for _, _, size, _, _ in told)


def test_a_store_that_takes_nothing_refuses_every_path_alike(tmp_path) -> None:
    """Nothing of a row is stored, and the slow path tells why."""
    with open_broker(tmp_path) as broker:
        broker.sends.send(Send(topic="orders", body=b"x", born_ms=1, born_host=BORN_HOST))
        broker.store.state.fail(OSError(5, "the disk is gone"))
        table, outcome, replies = hot.FrameTable(1 << 20), hot.AppendOutcome(), hot.Replies(b"r", True)
        assert broker.appender.rows(table, 0, 0, {}, BORN_HOST, replies, outcome)
        assert (outcome.row, outcome.messages, len(replies)) == (0, 0, 0)
        with pytest.raises(Refused, match="the disk is gone") as caught:
            broker.sends.send(Send(topic="orders", body=b"x", born_ms=1, born_host=BORN_HOST))
        assert caught.value.reason is Reason.NOT_STORED


@pytest.mark.parametrize(
    "error", [StoreFull("no room"), StoreError("no more files"), OSError(24, "no more files"), MemoryError()]
)
def test_whatever_a_store_cannot_do_is_a_refusal(tmp_path, monkeypatch, error) -> None:
    """Sends, deliveries and op records meet it in one place; a tick of the broker must not end there."""
    clock = FakeClock()
    with open_broker(tmp_path, clock) as broker:
        broker.sends.send(Send(topic="orders", body=b"x", born_ms=1, born_host=BORN_HOST, properties="DELAY\x011\x02"))

        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(broker.store.writer, "put", fail)
        monkeypatch.setattr(hot, "deliver", fail)
        clock.advance(2)
        broker.tick()
        with pytest.raises(Refused) as caught:
            broker.sends.send(Send(topic="orders", body=b"x", born_ms=1, born_host=BORN_HOST))
        assert caught.value.reason is Reason.NOT_STORED
        assert str(caught.value)
        assert broker.stats.put_failures > 1
