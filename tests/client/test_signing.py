"""Our clients against a broker of ours with access control: each kind signs all that it asks, and says what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading

import pyarrow as pa
import pytest

import metaq
from metaq import aio
from metaq.client.shared.direct_links import WISHES
from metaq.errors import AccessDenied
from metaq.testing import EmbeddedBroker
from tests.accounts import ACCOUNTS, ADMIN, SECRET, USER, WRITER, tools_yml
from tests.support import PATIENCE, eventually


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(accounts=ACCOUNTS) as running:
        yield running


@pytest.fixture
def topic(broker, request):
    name = re.sub(r"[^a-z_-]", "-", request.node.name)
    with metaq.admin.Admin(broker.namesrv, **ADMIN) as admin:
        admin.create_topic(name, queues=2)
    return name


def received(broker, topic: str, count: int) -> list[bytes]:
    """All of a topic, as a signed group gets it, sorted."""
    with metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **USER) as consumer:
        bodies = []
        for message in consumer:
            with message:
                bodies.append(message.body)
            if len(bodies) == count:
                return sorted(bodies)
    raise AssertionError(bodies)


def test_sends_of_every_kind(broker, topic):
    """Waiting, batched, as a batch, compressed, in order, from Arrow, with properties; those of the direct link, too."""
    sent = []
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer:

        def send(body: bytes, **how) -> None:
            producer.send(topic, body, **how)
            sent.append(body)

        links = producer._core.links
        for number in range(WISHES + 1):
            send(b"plain %d" % number)
        eventually(lambda: links.ready, what="a direct link")
        [link] = links.ready.values()
        before = link.opaque
        for tag in (None, "paid", "100 % \u00fc"):
            send(b"direct " + repr(tag).encode(), tag=tag)
            send(b"direct keys " + repr(tag).encode(), tag=tag, keys=["k\u00fc"], properties={"p": "50 %"}, flag=3)
        send(b"direct ordered", ordering_key="one")
        assert link.opaque - before == 7, "they went by the direct link"
        assert not link.retired
        send(b"x" * 100_000, properties={"compressed": "yes"})
        pending = [producer.submit(topic, b"batched %d" % number, tag="t") for number in range(50)]
        sent += [b"batched %d" % number for number, future in enumerate(pending) if future.result(PATIENCE)]
        messages = [metaq.Message(topic, b"one of a batch %d" % number) for number in range(3)]
        sent += [message.body for message, _ in zip(messages, producer.send_batch(messages), strict=True)]
        bodies = [b"arrow %d" % number for number in range(100)]
        assert producer.send_arrow(pa.table({"body": bodies, "tag": ["a"] * 100}), topic).rows == 100
        sent += bodies
    assert received(broker, topic, len(sent)) == sorted(sent)


def test_asyncio(broker, topic):
    """Producer, consumer, reader, pull consumer."""

    async def act() -> list[bytes]:
        async with aio.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer:
            await producer.send(topic, b"one")
            await producer.send_batch([metaq.Message(topic, b"two"), metaq.Message(topic, b"three")])
        found = []
        async with aio.Reader(broker.namesrv, topic, start="earliest", stop_at_end=True, **USER) as reader:
            found += [message.body async for message in reader]
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **USER) as consumer:
            for _ in range(3):
                async with await consumer.receive(PATIENCE) as message:
                    found.append(message.body)
        async with aio.PullConsumer(
            broker.namesrv, group=f"{topic}-p", topics=topic, start="earliest", **USER
        ) as puller:
            while len(found) < 9:
                found += [message.body for message in await puller.poll(PATIENCE)]
        return found

    assert sorted(asyncio.run(asyncio.wait_for(act(), PATIENCE))) == sorted([b"one", b"two", b"three"] * 3)


def test_a_group_with_retries(broker, topic):
    """A message that fails goes to the retry topic, and comes again; progress is kept."""
    with (
        metaq.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer,
        metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **USER) as consumer,
    ):
        producer.send(topic, b"again")
        for message in consumer:
            with message:
                if message.reconsume_times == 0:
                    raise metaq.Later(1)
                break
    with metaq.admin.Admin(broker.namesrv, **ADMIN) as admin:
        eventually(lambda: admin.group_progress(topic).lag == 0, what="the progress at the broker")


def test_readers_and_pulls_by_hand(broker, topic):
    """Offsets, times and positions are asked for, and committed."""
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer:
        queue = producer.send(topic, b"x").queue
    with metaq.Reader(broker.namesrv, topic, start="earliest", stop_at_end=True, **USER) as reader:
        assert [message.body for message in reader] == [b"x"]
    with metaq.PullConsumer(broker.namesrv, group=topic, topics=topic, start="earliest", **USER) as consumer:
        consumer.wait_assigned(PATIENCE)
        assert [message.body for message in consumer.pull(queue, 0).messages] == [b"x"]
        assert consumer.kept(queue) == range(1)
        assert consumer.search(queue, 0.0) == 0
        consumer.update(queue, 1)
        consumer.commit(PATIENCE)
        assert consumer.committed(queue) == 1


def test_transactions(broker, topic):
    """RocketMQ's with their one-way commit, and blocks of several messages."""
    producer = metaq.TransactionProducer(
        broker.namesrv, group=f"{topic}-g", check=lambda _: None, timeout=PATIENCE, **USER
    )
    with producer, producer.transaction(topic, b"committed"):
        pass
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer:
        with producer.atomic() as tx:
            tx.send(topic, b"staged one")
            tx.send(topic, b"staged two")
        assert tx.outcome is metaq.TransactionOutcome.COMMIT
        with contextlib.suppress(KeyError), producer.atomic() as tx:
            tx.send(topic, b"never")
            raise KeyError
    assert received(broker, topic, 3) == [b"committed", b"staged one", b"staged two"]


def test_request_and_reply(broker, topic):
    with (
        metaq.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **USER) as consumer,
        metaq.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer,
    ):
        thread = threading.Thread(
            target=consumer.run, args=(lambda message: message.reply(message.body[::-1]) and None,)
        )
        thread.start()
        try:
            assert producer.request(topic, b"abc", timeout=PATIENCE).body == b"cba"
        finally:
            consumer.stop()
            thread.join(PATIENCE)


def test_the_logging_handler(broker, topic):
    handler = metaq.MetaQHandler(broker.namesrv, topic=topic, producer_options=USER)
    logger = logging.getLogger("audited")
    logger.addHandler(handler)
    logger.warning("signed")
    handler.flush()
    assert (handler.sent, handler.dropped) == (1, {})
    handler.close()
    assert b"signed" in received(broker, topic, 1)[0]


def test_the_logging_handler_keeps_what_is_refused(broker, topic, caplog):
    """An account can be mended: records wait for it, as for a broker that is away, and the log says what to do."""
    wrong = {**USER, "secret_key": "another-secret"}
    with pytest.raises(metaq.ConfigError, match="secret_key is missing"):
        metaq.MetaQHandler(broker.namesrv, topic=topic, producer_options={"access_key": "account-user"})
    handler = metaq.MetaQHandler(broker.namesrv, topic=topic, producer_options=wrong, flush_seconds=0.1)
    logger = logging.getLogger("audited")
    logger.addHandler(handler)
    logger.warning("refused")
    eventually(lambda: "check its secret key" in caplog.text, what="the log")
    assert (handler.waiting, handler.dropped) == (1, {})
    handler.close()
    assert "another-secret" not in caplog.text


def test_the_environment_and_a_file(broker, topic, tmp_path, monkeypatch):
    """For clients that name no account."""
    path = tmp_path / "tools.yml"
    path.write_text(tools_yml(USER))
    monkeypatch.setenv("METAQ_ACL_FILE", str(path))
    with metaq.Producer(broker.namesrv, timeout=PATIENCE) as producer:
        producer.send(topic, b"x")
    with metaq.admin.Admin(broker.namesrv) as admin, pytest.raises(AccessDenied, match="have the right granted"):
        admin.create_topic(topic, queues=3)


# ---------------------------------------------------------------- refused

CASES = {
    "wrong secret": ({**USER, "secret_key": "another-secret"}, r"signed as account-user: check its secret key"),
    "unknown account": (
        {"access_key": "nobody-known", "secret_key": SECRET},
        r"signed as nobody-known: check the access",
    ),
    "unsigned": ({}, r"not signed: give access_key and secret_key, or acl_file, or set METAQ_ACL_FILE"),
}


@pytest.mark.parametrize(("account", "says"), CASES.values(), ids=CASES.keys())
def test_what_is_refused_is_said_at_once(broker, topic, account, says):
    """To whoever sends, reads or waits: the account, and what to do; no try is repeated, and no secret shown."""
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, retries=50, **account) as producer:
        calls = [
            lambda: producer.send(topic, b"x"),
            lambda: producer.submit(topic, b"x").result(PATIENCE),
            lambda: producer.send_batch([metaq.Message(topic, b"x")]),
        ]
        for call in calls:
            with pytest.raises(AccessDenied, match=says) as caught:
                call()
            assert not caught.value.retriable
            assert "another-secret" not in str(caught.value)
    reading = contextlib.closing(metaq.Reader(broker.namesrv, topic, stop_at_end=True, **account))
    with reading as reader, pytest.raises(AccessDenied, match=says):
        list(reader)
    with metaq.admin.Admin(broker.namesrv, **account) as admin, pytest.raises(AccessDenied, match=says):
        admin.describe_topic(topic)
    with metaq.admin.Admin(broker.namesrv, **ADMIN) as admin:
        assert admin.describe_topic(topic).messages == 0


@pytest.mark.parametrize(("account", "says"), CASES.values(), ids=CASES.keys())
def test_who_waits_for_messages_is_told(broker, topic, account, says):
    """As `for message in consumer`, `receive`, `run`, `poll`, and in asyncio."""

    async def wait() -> None:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, **account) as consumer:
            async for _ in consumer:
                pass

    with (
        metaq.Consumer(broker.namesrv, group=topic, topics=topic, **account) as consumer,
        pytest.raises(AccessDenied, match=says),
    ):
        next(iter(consumer))
    with (
        metaq.Consumer(broker.namesrv, group=topic, topics=topic, **account) as consumer,
        pytest.raises(AccessDenied, match=says),
    ):
        consumer.receive(PATIENCE)
    with (
        metaq.Consumer(broker.namesrv, group=topic, topics=topic, **account) as consumer,
        pytest.raises(AccessDenied, match=says),
    ):
        consumer.run(lambda _: None, threads=2)
    with (
        metaq.PullConsumer(broker.namesrv, group=topic, topics=topic, **account) as consumer,
        pytest.raises(AccessDenied, match=says),
    ):
        consumer.poll(PATIENCE)
    with pytest.raises(AccessDenied, match=says):
        asyncio.run(asyncio.wait_for(wait(), PATIENCE))


def test_a_right_that_is_missing(broker, topic):
    """An account that may only send: to it, at the direct link too; the group is told which right it lacks."""
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, **WRITER) as producer:
        producer.send(topic, b"x")
    with (
        metaq.Consumer(broker.namesrv, group=topic, topics=topic, **WRITER) as consumer,
        pytest.raises(AccessDenied, match=r"signed as account-writer: have the right granted"),
    ):
        consumer.receive(PATIENCE)


def test_a_group_that_is_refused_goes_on_when_it_may(fresh_metaq_broker_with_accounts):
    """The error ends the wait, not the member: with the right granted it gets its messages."""
    broker = fresh_metaq_broker_with_accounts
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, **WRITER) as producer:
        producer.send("orders", b"x")
        with metaq.Consumer(broker.namesrv, group="g", topics="orders", start="earliest", **WRITER) as consumer:
            with pytest.raises(AccessDenied):
                consumer.receive(PATIENCE)
            broker.write_accounts(
                ACCOUNTS.replace("defaultTopicPerm: PUB\n", "defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: SUB\n")
            )

            def comes() -> bool:
                with contextlib.suppress(AccessDenied):
                    if (message := consumer.receive(PATIENCE)) is not None:
                        message.ack()
                        return message.body == b"x"
                return False

            eventually(comes, what="the message")


def test_a_direct_link_tells_of_an_account_that_is_gone(fresh_metaq_broker_with_accounts):
    """Whose signature was right so far."""
    broker = fresh_metaq_broker_with_accounts
    with metaq.Producer(broker.namesrv, timeout=PATIENCE, **USER) as producer:
        for _ in range(WISHES + 1):
            producer.send("orders", b"x")
        eventually(lambda: producer._core.links.ready, what="a direct link")
        broker.write_accounts(ACCOUNTS.replace("account-user", "another-user"))

        def refused() -> AccessDenied | None:
            try:
                producer.send("orders", b"x")
            except AccessDenied as error:
                return error
            return None

        error = eventually(refused, what="a refusal")
        assert "signed as account-user: check the access key" in str(error)


@pytest.fixture
def fresh_metaq_broker_with_accounts():
    with EmbeddedBroker(accounts=ACCOUNTS) as running:
        yield running
