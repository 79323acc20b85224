"""A store folder moves between RocketMQ's broker and ours."""

from pathlib import Path

import pytest

import metaq
from metaq.clock import SystemClock
from metaq.options import StoreOptions
from metaq.store.message_store import MessageStore
from tests.interop import maven
from tests.interop.driver import ForeignClient
from tests.interop.remoting_client import RemotingClient
from tests.interop.servers import CLUSTER, MetaqServer, RocketmqServer, end
from tests.store.support import HOST, copy_running, dumped, log_file, overwrite, put
from tests.support import PATIENCE

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize(
    ("origin", "heir"),
    [
        pytest.param(MetaqServer, RocketmqServer, id="ours-to-rocketmq"),
        pytest.param(RocketmqServer, MetaqServer, id="rocketmq-to-ours"),
        pytest.param(RocketmqServer, RocketmqServer, id="rocketmq-to-rocketmq", marks=pytest.mark.all),
    ],
)
def test_the_heir_goes_on(
    java: ForeignClient,
    tmp_path: Path,
    origin: type[MetaqServer | RocketmqServer],
    heir: type[MetaqServer | RocketmqServer],
    ending: str,
) -> None:
    """Messages, index, topics and a group's offsets are all there for the other broker, which appends behind them.

    Also when the first one was killed: what it acknowledged is in its files.
    """
    data = tmp_path / "store"
    for part in ("origin", "heir"):
        (tmp_path / part).mkdir()
    first = origin(tmp_path / "origin", data)
    first.start()
    try:
        java.producer("p", first.namesrv)
        java.call("create_topic", producer="p", cluster=CLUSTER, topic="moves", queues=2)
        java.send("p", "moves", [f"read-{i}" for i in range(10)], tag="a")
        java.consumer("c", first.namesrv, "movers", {"moves": "*"})
        java.wait("c", 10)
        java.shutdown("c")
        (kept,) = java.send("p", "moves", ["unread-0"], tag="a", keys="needle")
        java.send("p", "moves", [f"unread-{i}" for i in range(1, 5)], "batch", tag="b")
        java.shutdown("p")
    finally:
        end(first, data, ending)

    second = heir(tmp_path / "heir", data)
    second.start()
    try:
        java.producer("p", second.namesrv)
        (found,) = java.call("query", producer="p", topic="moves", key="needle")
        assert (found["body"], found["id"], found["queue_offset"]) == ("unread-0", kept["id"], kept["queue_offset"])
        java.consumer("c", second.namesrv, "movers", {"moves": "*"})
        if ending == "stop":
            events = java.wait("c", 5)
            assert sorted(event["body"] for event in events) == [f"unread-{i}" for i in range(5)]
            assert {event["tag"] for event in events} == {"a", "b"}
        java.send("p", "moves", ["after"])
        unread = {*(f"unread-{i}" for i in range(5)), "after"}
        # A killed broker had not saved the group's offsets yet: what was read comes once more, what was not must come.
        java.wait("c", lambda events: unread <= {event["body"] for event in events})
        rows = java.call("queues", producer="p", topic="moves")
        assert sum(row["max_offset"] for row in rows) == 16
        java.shutdown_all()
    finally:
        second.kill()


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize(
    ("origin", "heir"),
    [
        pytest.param(MetaqServer, RocketmqServer, id="ours-to-rocketmq"),
        pytest.param(RocketmqServer, MetaqServer, id="rocketmq-to-ours"),
    ],
)
def test_delayed_messages_wait_on(
    java: ForeignClient,
    tmp_path: Path,
    origin: type[MetaqServer | RocketmqServer],
    heir: type[MetaqServer | RocketmqServer],
    ending: str,
) -> None:
    """What was delivered is not delivered again by the other broker, if the first one ended in order; what waits comes."""
    data = tmp_path / "store"
    for part in ("origin", "heir"):
        (tmp_path / part).mkdir()
    first = origin(tmp_path / "origin", data)
    first.start()
    try:
        java.producer("p", first.namesrv)
        java.call("create_topic", producer="p", cluster=CLUSTER, topic="later", queues=1)
        java.consumer("c", first.namesrv, "waiters", {"later": "*"})
        java.send("p", "later", ["early-0", "early-1"], delay_level=1)
        java.wait("c", 2)
        java.send("p", "later", ["late"], delay_level=3)
        java.shutdown_all()
    finally:
        end(first, data, ending)

    second = heir(tmp_path / "heir", data)
    second.start()
    try:
        java.producer("p", second.namesrv)
        java.consumer("d", second.namesrv, "others", {"later": "*"})
        java.send("p", "later", ["new"], delay_level=1)
        java.wait("d", lambda events: {"late", "new"} <= {event["body"] for event in events})
        (row,) = java.call("queues", producer="p", topic="later")
        # A killed broker has not saved its positions yet. Ours finds its own copies in the log; a RocketMQ cannot.
        assert row["max_offset"] == 4 if ending == "stop" else row["max_offset"] in {4, 6}
        java.shutdown_all()
    finally:
        second.kill()


SOON = ("transactionTimeOut=1000", "transactionCheckInterval=1000")


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize(
    ("origin", "heir"),
    [
        pytest.param(MetaqServer, RocketmqServer, id="ours-to-rocketmq"),
        pytest.param(RocketmqServer, MetaqServer, id="rocketmq-to-ours"),
        pytest.param(RocketmqServer, RocketmqServer, id="rocketmq-to-rocketmq", marks=pytest.mark.all),
        pytest.param(MetaqServer, MetaqServer, id="ours-to-ours", marks=pytest.mark.all),
    ],
)
def test_open_transactions_are_ended_by_the_other_broker(
    tmp_path: Path,
    origin: type[MetaqServer | RocketmqServer],
    heir: type[MetaqServer | RocketmqServer],
    ending: str,
) -> None:
    """Those that were ended stay so, those that were not can be ended there by the offsets of their sends, the rest are asked about."""
    maven.jars(*maven.SERVER)
    data = tmp_path / "store"
    for part in ("origin", "heir", "again"):
        (tmp_path / part).mkdir()
    first = origin(tmp_path / "origin", data)  # it asks nobody in its first minute
    first.start()
    try:
        with RemotingClient(first.broker) as client:
            sent = {name: client.half("orders", name, f"{number:032X}") for number, name in enumerate(NAMES)}
            client.end_sent(sent["committed"], commit=True)
            client.end_sent(sent["rolled back"], commit=False)
            assert client.wait_for("orders", {"committed"}) == [
                "committed"
            ]  # a RocketMQ has it in the queue a little later
    finally:
        end(first, data, ending)

    second = heir(tmp_path / "heir", data, options=SOON)
    second.start()
    try:
        with RemotingClient(second.broker) as client:
            client.end_sent(sent["ended there"], commit=True)
            client.end_sent(sent["rolled back there"], commit=False)
            client.produce()
            client.answer_checks({"asked about"}, commit=True)  # as are others that a RocketMQ asks about meanwhile
            found = client.wait_for("orders", {"committed", "ended there", "asked about"})
            # A RocketMQ whose first round of checks was faster than the ends asks about what they ended, once more.
            assert heir is RocketmqServer or sorted(found) == ["asked about", "committed", "ended there"]
    finally:
        second.stop()

    third = origin(tmp_path / "again", data, options=SOON)  # and back: nothing is left to ask about
    third.start()
    try:
        with RemotingClient(third.broker) as client:
            client.produce()
            last = client.half("orders", "last", f"{99:032X}")
            client.answer_checks({"last"}, commit=True)
            bodies = client.wait_for(
                "orders", {*found, "last"}
            )  # as above: a RocketMQ has it in the queue a little later
            assert heir is RocketmqServer or bodies == [*found, "last"]
            assert last.queue_offset >= len(NAMES)
    finally:
        third.kill()


NAMES = ("committed", "rolled back", "ended there", "rolled back there", "asked about")


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize(
    ("origin", "heir"),
    [
        pytest.param(MetaqServer, RocketmqServer, id="ours-to-rocketmq"),
        pytest.param(RocketmqServer, MetaqServer, id="rocketmq-to-ours"),
    ],
)
def test_transaction_that_was_asked_about_goes_on_at_the_other_broker(
    tmp_path: Path,
    origin: type[MetaqServer | RocketmqServer],
    heir: type[MetaqServer | RocketmqServer],
    ending: str,
) -> None:
    """The check has written it anew; the other broker asks about that one, and its commit makes one message."""
    maven.jars(*maven.SERVER)
    data = tmp_path / "store"
    for part in ("origin", "heir"):
        (tmp_path / part).mkdir()
    first = origin(tmp_path / "origin", data, options=SOON)
    first.start()
    try:
        with RemotingClient(first.broker) as client:
            client.produce()
            client.half("orders", "slow", f"{1:032X}")
            client.wait_for_check()
    finally:
        end(first, data, ending)

    second = heir(tmp_path / "heir", data, options=SOON)
    second.start()
    try:
        with RemotingClient(second.broker) as client:
            client.produce()
            client.answer_checks({"slow"}, commit=True)
            fresh = client.half("orders", "fresh", f"{2:032X}")
            client.answer_checks(
                {"fresh"}, commit=True
            )  # a round later: the slow one would have been asked about again
            assert fresh.queue_offset >= 2
            # RocketMQ that finds positions from before the check asks about both generations, and so about both of its own.
            found = client.wait_for("orders", {"slow", "fresh"})
            assert set(found) == {"slow", "fresh"}
            if heir is MetaqServer or ending == "stop":
                assert len(found) == 2
    finally:
        second.kill()


@pytest.mark.all
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_rocketmq_ends_a_damaged_log_where_ours_steps_over(tmp_path: Path, ending: str) -> None:
    """What docs/formats/commitlog.md says of it: its next message takes the place and the queue offset of the damaged one.
    What it has not overwritten is there again for us."""

    def opened(root: Path) -> MessageStore:
        options = StoreOptions(store_path_root_dir=str(root), mapped_file_size_commit_log=67108864)
        return MessageStore(options, SystemClock(), HOST, CLUSTER)

    with opened(tmp_path / "first") as store:
        places = [put(store, "T", 0, b"%d" % number * 40) for number in range(60)]
        copy_running(tmp_path / "first", tmp_path / "killed")
    overwrite(log_file(tmp_path / "killed"), places[20].log_offset + 95, b"!")
    with opened(tmp_path / "killed") as store:
        assert store.reader.queue("T", 0).max_offset == 60
        copy_running(tmp_path / "killed", tmp_path / "killed again")
    data = tmp_path / ("killed" if ending == "stop" else "killed again")
    server = RocketmqServer(tmp_path / "heir", data)
    server.start()
    try:
        with metaq.Producer(server.namesrv, timeout=PATIENCE) as producer:
            sent = [producer.send(metaq.Message("T", b"new")) for _ in range(4)]
    finally:
        server.stop()
    assert sorted((receipt.queue.queue_id, receipt.offset) for receipt in sent) == [(0, 20), (1, 0), (2, 0), (3, 0)]
    assert min(int(receipt.offset_id[16:], 16) for receipt in sent) == places[20].log_offset
    with opened(data) as store:
        assert store.reader.queue("T", 0).max_offset == 60
        bodies = {record[3] for record in dumped(data)}
    assert {b"new", b"0" * 40, b"59" * 40} <= bodies
