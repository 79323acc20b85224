"""Our Python client's SQL filters on RocketMQ's own broker, and consumerFilter.json from one broker to the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import metaq
from metaq.wire.files import CONSUMER_FILTERS
from tests.interop.servers import MetaqServer, RocketmqServer
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop
ON = ("enablePropertyFilter=true",)


def fill(namesrv: str, topic: str) -> None:
    with metaq.Producer(namesrv, timeout=PATIENCE) as producer:
        for number in range(10):
            producer.send(
                topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd", properties={"a": str(number)}
            )


def taken(consumer: metaq.Consumer, count: int) -> list[bytes]:
    bodies = []
    while len(bodies) < count:
        message = consumer.receive(PATIENCE)
        assert message is not None, f"{len(bodies)} of {count} came"
        with message:
            bodies.append(message.body)
    return sorted(bodies)


@pytest.mark.parametrize(
    ("origin", "heir"),
    [
        pytest.param(RocketmqServer, MetaqServer, id="rocketmq-to-ours"),
        pytest.param(MetaqServer, RocketmqServer, id="ours-to-rocketmq", marks=pytest.mark.all),
    ],
)
def test_conditions_work_on_both_and_are_remembered_by_the_other(
    tmp_path: Path, origin: type[MetaqServer | RocketmqServer], heir: type[MetaqServer | RocketmqServer]
) -> None:
    """A group's consumer and a reader get the same; the other broker opens the folder, finds the filter and goes on."""
    data, wanted = tmp_path / "store", metaq.Sql("a > 6 AND TAGS = 'odd'")
    for part in ("origin", "heir"):
        (tmp_path / part).mkdir()
    first = origin(tmp_path / "origin", data, options=ON)
    first.start()
    try:
        fill(first.namesrv, "filtered")
        with metaq.Reader(first.namesrv, "filtered", tags=wanted, stop_at_end=True) as reader:
            assert sorted(message.body for message in reader) == [b"7", b"9"]
        with metaq.Consumer(first.namesrv, group="odds", topics={"filtered": wanted}, start="first") as consumer:
            assert taken(consumer, 2) == [b"7", b"9"]
    finally:
        first.stop()
    file = data / "config" / "consumerFilter.json"
    kept = CONSUMER_FILTERS.parse(file.read_text())
    one = kept["filtered", "odds"]
    assert (one.expression, one.expression_type) == (wanted.expression, "SQL92")
    assert one.born_ms < one.dead_ms
    assert one.version > 0
    # What we would write of it is what is there: the bits of the Bloom filter too.
    assert json.loads(CONSUMER_FILTERS.text(kept)) == json.loads(file.read_text())

    second = heir(tmp_path / "heir", data, options=ON)
    second.start()
    try:
        fill(second.namesrv, "filtered")
        with metaq.Consumer(second.namesrv, group="odds", topics={"filtered": wanted}, start="first") as consumer:
            assert taken(consumer, 2) == [b"7", b"9"]
            if heir is MetaqServer:
                text = eventually(lambda: _alive(file), what="the filter is alive in the file")
                assert '"expression":"a > 6 AND TAGS = \'odd\'"' in text
    finally:
        second.stop()


def _alive(file: Path) -> str:
    text = file.read_text()
    return text if CONSUMER_FILTERS.parse(text)["filtered", "odds"].dead_ms == 0 else ""
