"""`metrics=`: what producers and consumers do is counted in the object that they are given, and nowhere else."""

from __future__ import annotations

import asyncio
import itertools
import threading

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import metaq
from metaq import aio
from metaq.client.observing.metrics import NAMES_MAX, ClientMetrics
from metaq.metrics import table
from metaq.metrics.metric import Of
from metaq.metrics.reference import PREFIX
from metaq.metrics.top import OTHERS
from metaq.model import MessageQueue, StoredMessage
from metaq.model.trace import Result
from tests.support import PATIENCE, eventually

_numbers = itertools.count()


@pytest.fixture
def topic():
    return f"measured-{next(_numbers)}"


def scrape(metrics):
    """Return what a registry with these metrics tells: (name, values of labels) → value."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics)
    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_sends_and_their_failures_are_counted(metaq_broker, topic):
    metrics = metaq.ClientMetrics()
    with metaq.Producer(metaq_broker.namesrv, metrics=metrics, timeout=PATIENCE) as producer:
        producer.send(topic, b"12345")
        for future in [producer.submit(topic, b"x") for _ in range(50)]:
            future.result(PATIENCE)
        with pytest.raises(metaq.MetaqError):
            producer.send(topic, b"x", queue=MessageQueue(topic, "nobody", 0), timeout=0.2)
    told = eventually(
        lambda: (found := scrape(metrics)).get(("metaq_producer_messages_total", ("failed", topic))) and found
    )
    assert told[("metaq_producer_messages_total", ("ok", topic))] == 51
    assert told[("metaq_producer_messages_total", ("failed", topic))] == 1
    assert told[("metaq_producer_bytes_total", (topic,))] >= 5 + 50
    requests = told[("metaq_producer_request_seconds_count", ())]
    assert 3 <= requests <= 52
    assert told[("metaq_producer_request_seconds_bucket", ("+Inf",))] == requests


def test_deliveries_their_age_and_their_lag(metaq_broker, topic):
    metrics = metaq.ClientMetrics()
    with metaq.Producer(metaq_broker.namesrv, timeout=PATIENCE) as producer:
        receipt = producer.send(topic, b"0")
        for number in range(1, 4):
            producer.send(topic, b"%d" % number, queue=receipt.queue)
    consumer = metaq.Consumer(metaq_broker.namesrv, group=f"g-{topic}", topics=topic, start="earliest", metrics=metrics)
    with consumer:
        first, second = consumer.receive(PATIENCE), consumer.receive(PATIENCE)
        assert first is not None
        assert second is not None
        group = consumer.group
        assert scrape(metrics)[("metaq_consumer_in_flight", (group,))] == 2
        assert scrape(metrics)[("metaq_consumer_lag_messages", (group, topic))] == 2
        first.ack()
        with second:
            raise metaq.Later(1)
        for _ in range(3):
            with consumer.receive(PATIENCE):  # the second one again
                pass
        told = scrape(metrics)
    assert told[("metaq_consumer_in_flight", (group,))] == 0
    assert told[("metaq_consumer_messages_total", (group, "success", topic))] == 4
    assert told[("metaq_consumer_messages_total", (group, "failed", topic))] == 1
    assert told[("metaq_consumer_messages_repeated_total", (group, topic))] == 1
    assert told[("metaq_consumer_lag_messages", (group, topic))] == 0
    assert told[("metaq_consumer_handling_seconds_count", (group,))] == 5
    assert told[("metaq_consumer_age_seconds_count", (group,))] == 5


def test_of_asyncio_and_of_one_object_for_several_clients(metaq_broker, topic):
    metrics = metaq.ClientMetrics()

    async def main():
        async with (
            aio.Producer(metaq_broker.namesrv, metrics=metrics, timeout=PATIENCE) as one,
            aio.Producer(metaq_broker.namesrv, metrics=metrics, timeout=PATIENCE, instance_name="other") as other,
        ):
            await asyncio.gather(one.send(topic, b"a"), other.send(topic, b"b"))

    asyncio.run(main())
    eventually(lambda: scrape(metrics).get(("metaq_producer_messages_total", ("ok", topic))) == 2)


def test_all_that_the_table_names_is_counted_and_nothing_else(metaq_broker, topic):
    metrics = metaq.ClientMetrics()
    with metaq.Producer(metaq_broker.namesrv, metrics=metrics, timeout=PATIENCE) as producer:
        producer.send(topic, b"0")
        with metaq.Consumer(
            metaq_broker.namesrv, group=f"g-{topic}", topics=topic, start="earliest", metrics=metrics
        ) as consumer:
            with consumer.receive(PATIENCE):
                raise metaq.Later(1)
            with consumer.receive(PATIENCE):
                pass
    wanted = {PREFIX + metric.name for metric in (*table.of(Of.PRODUCER), *table.of(Of.CONSUMER))}
    found = eventually(lambda: {family.name for family in metrics.collect()} == wanted and wanted)
    assert found == wanted


def test_topics_are_bounded():
    metrics = ClientMetrics()
    meter = metrics._meter("g")
    for number in range(NAMES_MAX + 10):
        meter.begun(StoredMessage(topic=f"t{number}", body=b"", reconsume_times=1))
    told = scrape(metrics)
    repeated = {key[1][1]: value for key, value in told.items() if key[0] == "metaq_consumer_messages_repeated_total"}
    assert len(repeated) == NAMES_MAX + 1
    assert repeated[OTHERS] == 10


def test_many_threads_lose_no_count():
    metrics, message = ClientMetrics(), StoredMessage(topic="t", body=b"")

    def work():
        meter = metrics._meter("g")
        for _ in range(1000):
            meter.ended(message, meter.begun(message), Result.SUCCESS, 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        scrape(metrics)
    told = scrape(metrics)
    assert told[("metaq_consumer_messages_total", ("g", "success", "t"))] == 4000
    assert told[("metaq_consumer_in_flight", ("g",))] == 0


@pytest.mark.parametrize("wrong", ["yes", True, 1])
def test_what_is_no_metrics_is_refused(metaq_broker, wrong):
    with pytest.raises(TypeError, match="ClientMetrics"):
        metaq.Producer(metaq_broker.namesrv, metrics=wrong)


def test_a_client_without_metrics_has_no_observer(metaq_broker):
    with metaq.Producer(metaq_broker.namesrv) as producer:
        assert producer._accumulator.observers == ()
