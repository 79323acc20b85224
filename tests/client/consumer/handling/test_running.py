"""How consuming begins and ends: handlers that cannot work, signals, closing, what a forgotten consumer leaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
from unittest import mock

import pytest

import metaq
from metaq import Consumer, Producer, Reader, aio
from tests.support import PATIENCE, environment, eventually

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"running_test_{os.getpid()}_{next(_names)}"


@pytest.fixture
def filled(metaq_broker, topic):
    """A topic of 20 messages; returns (name server, topic)."""
    with Producer(metaq_broker.namesrv) as producer:
        for future in [producer.submit(topic, b"%d" % number) for number in range(20)]:
            future.result(PATIENCE)
    return metaq_broker.namesrv, topic


def consumer_of(filled, **options) -> Consumer:
    namesrv, topic = filled
    return Consumer(namesrv, group=topic, topics=topic, start="earliest", **options)


def aio_consumer_of(filled, **options) -> aio.Consumer:
    namesrv, topic = filled
    return aio.Consumer(namesrv, group=topic, topics=topic, start="earliest", **options)


def left_of(filled, count: int) -> list[metaq.ReceivedMessage]:
    """What the group has not finished, each acknowledged now: `count` messages and no more."""
    got = []
    with consumer_of(filled) as consumer:
        while len(got) < count and (message := consumer.receive(PATIENCE)) is not None:
            message.ack()
            got.append(message)
        assert consumer.receive(0.3) is None
    assert len(got) == count
    return got


# ---------------------------------------------------------------- handlers


async def asynchronous(message):
    pass


def plain(message):
    pass


class AsyncObject:
    async def __call__(self, message):
        pass

    async def method(self, message):
        pass


class PlainObject:
    def __call__(self, message):
        pass


def generator(message):
    yield message


async def async_generator(message):
    yield message


def of_nothing():
    pass


def of_two(message, other):
    pass


async def async_of_two(message, other):
    pass


WRONG_IN_BOTH = [
    None,
    5,
    "handler",
    generator,
    async_generator,
    of_two,
    of_nothing,
    async_of_two,
    functools.partial(of_two),
]
WRONG_IN_SYNC = [
    asynchronous, AsyncObject(), AsyncObject().method, functools.partial(async_of_two, other=1), mock.AsyncMock(),
]  # fmt: skip
WRONG_IN_AIO = [plain, PlainObject(), functools.partial(of_two, other=1), PlainObject().__call__]


def test_handler_that_cannot_work_is_refused_at_the_call(filled):
    """By both, before a message is touched: until now all of them went to the dead letters."""
    with consumer_of(filled) as consumer:
        for wrong in WRONG_IN_BOTH + WRONG_IN_SYNC:
            with pytest.raises(TypeError, match="the handler"):
                consumer.run(wrong)

    async def main():
        async with aio_consumer_of(filled) as consumer:
            for wrong in WRONG_IN_BOTH + WRONG_IN_AIO:
                with pytest.raises(TypeError, match="the handler"):
                    await consumer.run(wrong)

    asyncio.run(main())
    left = left_of(filled, 20)
    assert sorted(int(message.body) for message in left) == list(range(20))
    assert {message.reconsume_times for message in left} == {0}


def test_handler_whose_kind_shows_late_ends_run(filled):
    """A lambda tells what it is by its first result: `run` raises, and no message is settled by it."""
    with (
        consumer_of(filled) as consumer,
        pytest.raises(TypeError, match=r"aio\.Consumer"),
    ):
        consumer.run(lambda message: asynchronous(message), threads=3)

    async def main():
        async with aio_consumer_of(filled) as consumer:
            with pytest.raises(TypeError, match="async def"):
                await consumer.run(lambda message: None, tasks=3)

    asyncio.run(main())
    assert {message.reconsume_times for message in left_of(filled, 20)} == {0}


def test_every_handler_that_works_is_taken(filled):
    """Methods, partials, objects, decorated and native ones, and lambdas that return what is needed."""

    @functools.wraps(asynchronous)
    def runs_it(message):
        asyncio.run(asynchronous(message))

    @functools.wraps(plain)
    async def awaits_it(message):
        plain(message)

    @functools.wraps(asynchronous)
    def decorated(message):
        return asynchronous(message)

    def annotated(message) -> asyncio.Future[None]:
        return asyncio.ensure_future(asynchronous(message))

    got: list[metaq.ReceivedMessage] = []
    taken = 0
    for handler in (plain, PlainObject(), functools.partial(of_two, other=1), got.append, lambda message: None,
                    runs_it, mock.Mock(return_value=None), lambda *all_of_it: None):  # fmt: skip
        with consumer_of(filled, queue_messages_max=1, pull_count=1) as consumer:

            def once(message, handler=handler, consumer=consumer):
                handler(message)
                consumer.stop()

            consumer.run(functools.wraps(handler)(once) if callable(getattr(handler, "__name__", None)) else once)
            taken += 1
    for handler in (asynchronous, AsyncObject(), AsyncObject().method, functools.partial(async_of_two, other=1),
                    mock.AsyncMock(return_value=None), lambda message: asynchronous(message), awaits_it, decorated,
                    annotated):  # fmt: skip

        async def main(handler=handler):
            async with aio_consumer_of(filled) as consumer:
                asyncio.get_running_loop().call_later(0.05, consumer.stop)
                await consumer.run(handler)

        asyncio.run(main())
    assert taken == 8


def test_exit_in_a_handler_ends_run(filled):
    """`sys.exit()` in a worker thread is raised by `run`, after the messages in hand; the message stays unfinished."""

    done = []

    def handler(message):
        if message.body == b"7":
            sys.exit(3)
        done.append(message.body)

    with consumer_of(filled) as consumer, pytest.raises(SystemExit) as caught:
        consumer.run(handler, threads=2)
    assert caught.value.code == 3
    assert b"7" in {message.body for message in left_of(filled, 20 - len(done))}


def test_handler_that_awaits_something_cancelled_does_not_end_its_task(filled, caplog):
    """The message comes again; the others are handled. Nobody had cancelled `run`."""

    async def main():
        got = []

        async with aio_consumer_of(filled) as consumer:

            async def handler(message):
                if message.body == b"7" and not message.reconsume_times:
                    never = asyncio.get_running_loop().create_future()
                    never.cancel()
                    await never
                got.append(int(message.body))
                if len(got) == 19:
                    consumer.stop()

            await asyncio.wait_for(consumer.run(handler), PATIENCE)
        return got

    assert sorted(asyncio.run(main())) == sorted(set(range(20)) - {7})
    assert "cancelled from within" in caplog.text


# ---------------------------------------------------------------- closing


def test_closed_client_says_so(filled):
    """Every call of a closed consumer or reader that would wait for ever, or do nothing, raises ClientClosed."""
    namesrv, topic = filled
    with Consumer(namesrv, group=topic, topics=topic, instance_name="stays"):  # The shared core stays open.
        consumer = consumer_of(filled)
        reader = Reader(namesrv, topic, instance_name="stays")
        producer = Producer(namesrv, instance_name="stays")
        for client in (consumer, reader, producer):
            client.close()
            client.close()
        assert consumer.stopped
        for call in (
            consumer.receive, lambda: consumer.receive(0.01), lambda: iter(consumer), lambda: consumer.run(plain),
            consumer.commit, consumer.wait_assigned, reader.receive, lambda: reader.receive(0.01),
            lambda: iter(reader), reader.queues, reader.ranges, lambda: reader.seek(time=0), reader.__enter__,
            lambda: producer.send(topic, b"x"), lambda: producer.submit(topic, b"x"),
            lambda: producer.submit(topic, b"x", ordering_key="k"), lambda: producer.send_oneway(topic, b"x"),
            lambda: producer.send_batch([metaq.Message(topic, b"x")]), lambda: producer.queues(topic),
        ):  # fmt: skip
            with pytest.raises(metaq.ClientClosed, match="was closed"):
                call()

        async def main():
            consumer, reader = aio_consumer_of(filled), aio.Reader(namesrv, topic, instance_name="stays")
            producer = aio.Producer(namesrv, instance_name="stays")
            for client in (consumer, reader, producer):
                await client.close()
                await client.close()
            for call in (
                consumer.receive, lambda: consumer.receive(0.01), lambda: consumer.run(asynchronous), consumer.commit,
                consumer.wait_assigned, reader.receive, reader.queues, reader.ranges, lambda: reader.seek(time=0),
                reader.__aenter__, lambda: producer.send(topic, b"x"), lambda: producer.queues(topic),
                lambda: producer.send(topic, b"x", ordering_key="k"), lambda: producer.send_oneway(topic, b"x"),
                lambda: producer.send_batch([metaq.Message(topic, b"x")]),
            ):  # fmt: skip
                with pytest.raises(metaq.ClientClosed, match="was closed"):
                    await call()
            for client in (consumer, reader):
                with pytest.raises(metaq.ClientClosed, match="was closed"):
                    aiter(client)

        asyncio.run(main())


def test_who_waits_while_it_is_closed_gets_the_end(metaq_broker, topic):
    """Loops end, `receive` gives None, `run` returns: the next call raises."""
    consumer = Consumer(metaq_broker.namesrv, group=topic, topics=topic)
    got: list[object] = []
    threads = [
        threading.Thread(target=lambda: got.append(list(consumer))),
        threading.Thread(target=lambda: got.append(consumer.receive(PATIENCE))),
        threading.Thread(target=lambda: got.append(consumer.run(plain))),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(consumer._workers) == 1)
    consumer.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(got) == 3
    assert all(item in (None, []) for item in got)

    async def main():
        consumer = aio.Consumer(metaq_broker.namesrv, group=topic, topics=topic)

        async def iterate():
            return [message async for message in consumer]

        tasks = [
            asyncio.create_task(work) for work in (iterate(), consumer.receive(PATIENCE), consumer.run(asynchronous))
        ]
        await asyncio.sleep(0)
        await consumer.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE) == [[], None, None]

    asyncio.run(main())


def test_close_waits_for_the_handlers_and_commits_what_they_did(filled):
    """A handler that is busy while its consumer is closed finishes, and its message is not delivered again."""
    busy, go_on, done = threading.Semaphore(0), threading.Event(), []

    def handler(message):
        busy.release()
        assert go_on.wait(PATIENCE)
        done.append(message.body)

    consumer = consumer_of(filled)
    running = threading.Thread(target=consumer.run, args=(handler, 4))
    running.start()
    for _ in range(4):
        assert busy.acquire(timeout=PATIENCE)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(lambda: consumer.stopped)
    assert closing.is_alive()
    go_on.set()
    closing.join(PATIENCE)
    running.join(PATIENCE)
    assert len(done) == 4
    left_of(filled, 16)


def test_aio_close_waits_for_the_handlers_and_commits_what_they_did(filled):
    """As in threads; leaving `async with` while `run` is another task is enough."""
    done = []

    async def main():
        go_on, busy = asyncio.Event(), asyncio.Semaphore(0)

        async def handler(message):
            busy.release()
            await go_on.wait()
            await asyncio.sleep(0.01)
            done.append(message.body)

        async with aio_consumer_of(filled) as consumer:
            running = asyncio.create_task(consumer.run(handler, tasks=4))
            for _ in range(4):
                await asyncio.wait_for(busy.acquire(), PATIENCE)
            asyncio.get_running_loop().call_soon(go_on.set)
        await asyncio.wait_for(running, PATIENCE)

    asyncio.run(main())
    assert len(done) == 4
    left_of(filled, 16)


def test_handler_may_close_its_own_consumer(filled):
    """It does not wait for itself."""
    with consumer_of(filled) as consumer:
        consumer.run(lambda message: consumer.close(), threads=2)

    async def main():
        async with aio_consumer_of(filled) as consumer:

            async def handler(message):
                await consumer.close()

            await asyncio.wait_for(consumer.run(handler, tasks=2), PATIENCE)

    asyncio.run(main())


def test_handler_that_never_ends_does_not_hold_up_close_for_ever(filled, caplog):
    """After `timeout` it is left behind, said in the log; its message comes again."""
    go_on = threading.Event()
    consumer = consumer_of(filled)
    running = threading.Thread(target=consumer.run, args=(lambda message: go_on.wait(PATIENCE),), daemon=True)
    running.start()
    eventually(
        lambda: consumer._member.windows and any(window.unfinished for window in consumer._member.windows.values())
    )
    eventually(lambda: consumer._workers)
    consumer.close(timeout=0.2)
    assert "still busy" in caplog.text or not consumer._workers
    go_on.set()
    running.join(PATIENCE)


FORGETS = """
import os, sys, metaq
consumer = metaq.Consumer(sys.argv[1], group=sys.argv[2], topics=sys.argv[2], start="earliest")
for number, message in enumerate(consumer, 1):
    message.ack()
    if number == 12:
        break
print("done", flush=True)
"""


def test_forgotten_consumer_commits_at_exit(filled):
    """What it acknowledged is not delivered again: as a forgotten producer flushes."""
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", FORGETS, *filled],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "ResourceWarning: Consumer of group" in ended.stderr
    left_of(filled, 8)


LAST = """
import atexit, sys, threading
threads = lambda: [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
atexit.register(lambda: print("left:", *threads(), flush=True))  # before metaq's own hooks, so it runs after them
atexit.register(lambda: too_late())
import metaq
namesrv, topic = sys.argv[1:]
producer = metaq.Producer(namesrv)
producer.send(topic, b"x")
reader = metaq.Reader(namesrv, topic)
consumer = metaq.Consumer(namesrv, group=topic, topics=topic, start="earliest")
consumer.receive(30)
def too_late():
    try:
        producer.send(topic, b"y")
    except metaq.ClientClosed as error:
        print(type(error).__name__, flush=True)
print("at work:", *threads(), flush=True)
"""


def test_no_thread_of_ours_runs_when_the_interpreter_takes_itself_down(filled):
    """One that wakes up in that moment may crash the process, on a busy machine now and then."""
    ended = subprocess.run(
        [sys.executable, "-c", LAST, *filled], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["at work: metaq-client", "ClientClosed", "left:"]
    assert "Task was destroyed" not in ended.stderr
    assert "never awaited" not in ended.stderr


# ---------------------------------------------------------------- signals


@contextlib.contextmanager
def sigterm(handler):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def test_asyncio_code_leaves_signals_to_its_host(filled):
    """SIGTERM reaches the host's own handler while two consumers run side by side; it stops both; nothing is replaced."""
    namesrv, topic = filled

    async def main():
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, told.set)
        hosts = signal.getsignal(signal.SIGTERM)
        began = asyncio.Event()

        async def handler(message):
            began.set()

        async with (
            aio.Consumer(namesrv, group=topic, topics=topic, start="earliest") as one,
            aio.Consumer(namesrv, group=topic + "_2", topics=topic, start="earliest") as two,
        ):
            both = asyncio.gather(one.run(handler), two.run(handler))
            await asyncio.wait_for(began.wait(), PATIENCE)
            assert signal.getsignal(signal.SIGTERM) is hosts
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(told.wait(), PATIENCE)
            assert not both.done()
            one.stop()
            two.stop()
            await asyncio.wait_for(both, PATIENCE)
        assert signal.getsignal(signal.SIGTERM) is hosts
        loop.remove_signal_handler(signal.SIGTERM)

    with sigterm(signal.SIG_DFL):
        asyncio.run(main())


def test_run_takes_sigterm_only_from_the_default_and_gives_it_back(filled):
    """A handler of the program's own stays; the default one is there again after `run`."""
    seen = []

    def look(message):
        seen.append(main_thread_handler())
        consumer.stop()

    def main_thread_handler():
        return signal.getsignal(signal.SIGTERM)

    def own(number, frame):
        pass

    for before in (own, signal.SIG_IGN, signal.SIG_DFL):
        with sigterm(before), consumer_of(filled) as consumer:
            consumer.run(look)
            assert signal.getsignal(signal.SIGTERM) is before
    assert seen[:2] == [own, signal.SIG_IGN]
    assert callable(seen[-1])
    assert seen[-1] not in (own, signal.SIG_DFL, signal.SIG_IGN)


def test_run_in_another_thread_takes_no_signal(filled):
    """Only the main thread may."""
    seen = []
    with sigterm(signal.SIG_DFL), consumer_of(filled) as consumer:

        def look(message):
            seen.append(signal.getsignal(signal.SIGTERM))
            consumer.stop()

        thread = threading.Thread(target=consumer.run, args=(look,))
        thread.start()
        thread.join(PATIENCE)
    assert set(seen) == {signal.SIG_DFL}
