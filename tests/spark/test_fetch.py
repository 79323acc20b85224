"""Reading a slice: exactly its messages, whatever the broker does meanwhile."""

from __future__ import annotations

import pytest

from metaq.errors import ConnectionFailed, MessagesLost, NoRoute, OffsetOutOfRange
from metaq.model.queue import MessageQueue
from metaq.spark.cluster import Cluster
from metaq.spark.fetch import FetchSettings, read_slice
from metaq.spark.link import Link
from metaq.spark.offsets import Slice
from metaq.wire.codes import RequestCode
from tests.spark.fake_cluster import FakeCluster
from tests.support import PATIENCE

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster():
    with FakeCluster() as fake:
        fake.put("orders", 0, [b"%d" % i for i in range(1000)])
        yield fake


def fetch(fake: FakeCluster, start: int, end: int, **settings) -> list[bytes]:
    asking = Cluster(fake.address, retry_seconds=settings.get("retry_seconds", 5.0))
    try:
        batches = read_slice(asking, Slice(QUEUE, start, end), FetchSettings(**settings))
        return [body for decoded in batches for body in decoded.to_batch(("body",))["body"].to_pylist()]
    finally:
        asking.close()


@pytest.mark.parametrize("messages_max", [1, 7, 32, 100_000])
@pytest.mark.parametrize(("start", "end"), [(0, 1000), (0, 1), (999, 1000), (13, 988), (500, 500)])
def test_a_slice_is_read_exactly_and_in_order(cluster, messages_max, start, end):
    """Whatever the broker's cap, the rows are the slice's: none before, none behind, none twice."""
    cluster.messages_max = messages_max
    assert fetch(cluster, start, end) == [b"%d" % i for i in range(start, end)]


def test_two_pulls_are_under_way(cluster, monkeypatch):
    """While one answer is decoded, the broker works on the next."""
    cluster.messages_max = 100_000
    cluster.put("orders", 0, [b"more"] * 4000)
    under_way, most = set(), []
    post, answer = Link.post, Link.answer

    def noting_post(link, command):
        opaque = post(link, command)
        if command.code == RequestCode.PULL_MESSAGE:
            under_way.add(opaque)
            most.append(len(under_way))
        return opaque

    def noting_answer(link, opaque):
        got = answer(link, opaque)
        under_way.discard(opaque)
        return got

    monkeypatch.setattr(Link, "post", noting_post)
    monkeypatch.setattr(Link, "answer", noting_answer)
    assert len(fetch(cluster, 0, 5000, pull_bytes=40_000)) == 5000
    assert max(most) == 2
    assert len(most) < 50  # Of about 200 messages each, after what was learnt on the way.


def test_a_broken_connection_is_made_again_where_it_stood(cluster):
    """A broker that hangs up in the middle costs a new connection, no message and no copy."""

    def hang_up_at_times(number):
        if number % 5 == 3:
            raise ConnectionResetError

    cluster.on_pull = hang_up_at_times
    assert fetch(cluster, 0, 1000) == [b"%d" % i for i in range(1000)]


def test_a_broker_that_stays_away_fails_the_read_after_its_patience(cluster):
    """After `retrySeconds` without progress the last fault comes out."""

    def hang_up(number):
        raise ConnectionResetError

    cluster.on_pull = hang_up
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        fetch(cluster, 0, 1000, retry_seconds=0.5)


def test_messages_that_left_the_log_fail_the_read_and_are_counted(cluster):
    """The text says how many are gone and which offsets."""
    cluster.expire("orders", 0, 250)
    with pytest.raises(
        MessagesLost, match=r"150 messages of orders@broker-a:0 are gone: offsets \[100, 250\)"
    ) as caught:
        fetch(cluster, 100, 1000)
    assert "failOnDataLoss=false" in str(caught.value)


def test_without_fail_on_data_loss_the_rest_is_read_and_the_loss_is_logged(cluster, caplog):
    """failOnDataLoss=false goes on behind the gap, with a warning that counts."""
    cluster.expire("orders", 0, 250)
    assert fetch(cluster, 100, 1000, fail_on_data_loss=False) == [b"%d" % i for i in range(250, 1000)]
    assert fetch(cluster, 100, 200, fail_on_data_loss=False) == []
    assert "150 messages of orders@broker-a:0 are gone" in caplog.text


def test_messages_that_leave_while_they_are_read_are_noticed(cluster, caplog):
    """The log may move on in the middle of a slice."""

    def expire_later(number):
        if number == 4:
            kept = cluster.queues[QUEUE]
            del kept.records[:600], kept.times[:600]
            kept.first += 600

    cluster.on_pull = expire_later
    got = fetch(cluster, 0, 1000, fail_on_data_loss=False)
    assert got == [b"%d" % i for i in [*range(96), *range(600, 1000)]]
    assert caplog.text.count("are gone") == 1


@pytest.mark.parametrize("start", [900, 1000, 1200])
def test_a_queue_that_ends_before_the_slice_is_told_and_nothing_is_called_gone(cluster, caplog, start):
    """A range that was once there and is not any more: the queue was made anew, or its log lost its tail."""
    with pytest.raises(OffsetOutOfRange, match=r"orders@broker-a:0 keeps \[0, 1000\), wanted 1500. .* made anew"):
        fetch(cluster, start, 1500, retry_seconds=0.3)
    got = fetch(cluster, start, 1500, retry_seconds=0.3, fail_on_data_loss=False)
    assert len(got) == max(0, 1000 - start)
    assert "keeps [0, 1000), wanted 1500" in caplog.text
    assert "gone" not in caplog.text


def test_an_unknown_topic_says_how_to_make_one(cluster):
    """No route names topic, name server and command."""
    asking = Cluster(cluster.address, retry_seconds=0.1)
    with pytest.raises(
        NoRoute, match=f"topic nix at name servers {cluster.address}: create it with `metaq topic create nix`"
    ):
        asking.queues(["nix"])
    asking.close()


def test_a_name_server_that_is_down_is_passed_over(cluster):
    """The next one in the list is asked."""
    asking = Cluster(f"127.0.0.1:1;{cluster.address}", retry_seconds=PATIENCE)
    assert asking.queues(["orders"]) == [QUEUE]
    asking.close()


def test_a_pattern_is_a_glob_over_topic_names(cluster):
    """System and retry topics never match a pattern."""
    for topic in ("orders-old", "%RETRY%orders", "rmq_sys_TRACE", "DefaultCluster", "other"):
        cluster.put(topic, 0, [b"x"])
    asking = Cluster(cluster.address, retry_seconds=PATIENCE)
    assert asking.topics("orders*") == ["orders", "orders-old"]
    assert asking.topics("*") == ["orders", "orders-old", "other"]
    asking.close()
