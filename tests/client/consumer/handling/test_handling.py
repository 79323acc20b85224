"""What `run` can do with a handler: batches, processes, pauses, time-outs; and a consumer that is suspended."""

from __future__ import annotations

import asyncio
import collections
import itertools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import metaq
from metaq import Consumer, Later, Pause, Producer, Reader, Reject, aio
from metaq.client.consumer.delivery.window import Window
from metaq.client.consumer.handling.processes import Worker, pickled
from metaq.client.consumer.handling.watch import Watch
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.clock import FakeClock
from metaq.model import MessageQueue
from metaq.testing import EmbeddedBroker
from tests.client.consumer.handling import process_handlers
from tests.support import PATIENCE, environment, eventually

_names = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(options={"messageDelayLevel": " ".join(["1s"] * 18)}) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"handling_test_{os.getpid()}_{next(_names)}"


def fill(broker, topic: str, *contents: bytes, **options: object) -> None:
    with Producer(broker.namesrv) as producer:
        for content in contents:
            producer.send(topic, content, **options)


def consumer_of(broker, topic: str, **options: object) -> Consumer:
    return Consumer(broker.namesrv, group=topic, topics=topic, start="earliest", **options)


def nothing_left(broker, topic: str) -> None:
    with consumer_of(broker, topic) as consumer:
        consumer.wait_assigned(PATIENCE)
        assert consumer.receive(0.5) is None


def dead_letters(broker, topic: str, count: int) -> list[bytes]:
    with Reader(broker.namesrv, f"%DLQ%{topic}", start="earliest") as reader:
        return [reader.receive(PATIENCE).body for _ in range(count)]


def received(*offsets: int) -> list[ReceivedMessage]:
    """Messages of a window, as a consumer has them."""
    messages = [ReceivedMessage(topic="t", body=b"x", queue_offset=offset) for offset in offsets]
    window: Window[ReceivedMessage] = Window(MessageQueue("t", "b", 0), offsets[0], _Failed())
    chunk = window.add(messages, offsets[-1] + 1)
    for message in messages:
        message._chunk = chunk
    return messages


class _Failed(list):
    def __call__(self, chunk, message, delay_level) -> None:
        self.append((message.queue_offset, delay_level))


# ---------------------------------------------------------------- batches


def test_batch_handler_gets_lists_of_one_queue_and_its_result_is_for_all(broker, topic):
    """Up to so many; those that it settled itself keep what it said."""
    fill(broker, topic, *(b"%d" % number for number in range(30)), ordering_key="k")
    sizes, seen = [], collections.Counter()
    with consumer_of(broker, topic) as consumer:

        def handler(messages):
            assert isinstance(messages, list)
            assert len({message.queue for message in messages}) == 1
            sizes.append(len(messages))
            for message in messages:
                seen[message.body] += 1
                if message.body == b"3" and not message.reconsume_times:
                    message.retry(1)
                elif message.body == b"4":
                    message.reject()
            if sum(seen.values()) == 31:
                consumer.stop()

        consumer.run(handler, threads=2, batch=8)
    assert max(sizes) == 8
    assert seen == {b"%d" % number: 1 + (number == 3) for number in range(30)}
    assert dead_letters(broker, topic, 1) == [b"4"]
    nothing_left(broker, topic)


def test_batch_that_fails_comes_again_except_for_what_was_acknowledged(broker, topic, caplog):
    """One line in the log for the batch."""
    fill(broker, topic, *(b"%d" % number for number in range(4)), ordering_key="k")
    seen = collections.Counter()

    async def main() -> None:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:

            async def handler(messages):
                for message in messages:
                    seen[message.body] += 1
                if sum(seen.values()) >= 6:
                    consumer.stop()
                if not messages[0].reconsume_times:
                    for message in messages:
                        if message.body in {b"0", b"1"}:
                            message.ack()
                    raise ValueError("not yet")

            await consumer.run(handler, batch=32)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert seen == {b"0": 1, b"1": 1, b"2": 2, b"3": 2}
    assert "they will be delivered again" in caplog.text


@pytest.mark.parametrize("verdict", [Later(1), Reject(), Pause(1), Reject])
def test_verdict_on_a_batch_is_for_each_of_it(broker, topic, verdict):
    """Returned or raised."""
    fill(broker, topic, b"0", b"1", b"2", ordering_key="k")
    seen = []
    with consumer_of(broker, topic) as consumer:

        def handler(messages):
            first = not seen
            seen.extend((message.body, message.reconsume_times) for message in messages)
            if len(seen) >= (3 if "Reject" in repr(verdict) else 6):
                consumer.stop()
            return verdict if first else None

        consumer.run(handler, batch=3)
    again = 1 if isinstance(verdict, Later) else 0
    bodies = [b"0", b"1", b"2"]
    if "Reject" in repr(verdict):
        assert sorted(dead_letters(broker, topic, 3)) == bodies
        assert seen == [(body, 0) for body in bodies]
    else:
        assert sorted(seen) == sorted([*((body, 0) for body in bodies), *((body, again) for body in bodies)])
    nothing_left(broker, topic)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": -1}, {"processes": -1}, {"threads": 2, "processes": 2}])
def test_wrong_numbers_are_refused(broker, topic, wrong):
    """ConfigError, at the call."""
    with consumer_of(broker, topic) as consumer, pytest.raises(metaq.ConfigError):
        consumer.run(process_handlers.handler, **wrong)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5"])
def test_wrong_consume_timeout_is_refused(wrong):
    """Before anything is connected."""
    with pytest.raises((metaq.ConfigError, TypeError), match="consume_timeout"):
        Consumer("127.0.0.1:1", group="g", topics="t", consume_timeout=wrong)


# ---------------------------------------------------------------- Pause, suspend


@pytest.mark.parametrize("how", ["returned", "raised", "by hand", "in a block"])
def test_pause_stops_the_queue_and_the_message_comes_first_without_a_retry(broker, topic, how):
    """B11: no retry is spent, even where there is none to spend; others of the queue wait."""
    fill(broker, topic, b"0", b"1", b"2", ordering_key="k")
    seen = []
    with consumer_of(broker, topic, max_reconsume_times=0) as consumer:

        def handler(message):
            seen.append((message.body, message.reconsume_times, time.monotonic()))
            if len(seen) == 4:
                consumer.stop()
            if len(seen) > 1:
                return None
            if how == "raised":
                raise Pause(0.4)
            if how == "by hand":
                message.pause(0.4)
                return None
            return Pause(0.4)

        if how == "in a block":
            for message in consumer:
                with message:
                    if (verdict := handler(message)) is not None:
                        raise verdict
        else:
            consumer.run(handler)
    assert [one[:2] for one in seen] == [(b"0", 0), (b"0", 0), (b"1", 0), (b"2", 0)]
    assert seen[1][2] - seen[0][2] > 0.39, "event loops keep time by the millisecond"
    nothing_left(broker, topic)


def test_pause_of_one_queue_leaves_the_others_at_work(broker, topic):
    """And what other threads have of the queue in hand is finished."""
    with Producer(broker.namesrv) as producer:
        producer.send(topic, b"x")
        first, second, *_ = producer.queues(topic)
        for queue in (first, second):
            for number in range(5):
                producer.send(topic, b"%d %d" % (queue.queue_id, number), queue=queue)
    seen = []
    with consumer_of(broker, topic) as consumer:

        def handler(message):
            seen.append(message.queue_id)
            if len(seen) == 12:
                consumer.stop()
            if message.queue_id == first.queue_id and seen.count(first.queue_id) == 1:
                return Pause(0.5)
            return None

        consumer.run(handler)
    last = max(index for index, queue_id in enumerate(seen) if queue_id != first.queue_id)
    assert seen[last + 1 :].count(first.queue_id) >= 4, "the queue that was stopped came last"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5", None, True])
def test_pause_needs_seconds(seconds):
    """At the place where it is made, not later in a log."""
    with pytest.raises((TypeError, ValueError), match="Pause"):
        Pause(seconds)


@pytest.mark.parametrize("orderly", [False, True])
def test_suspended_consumer_hands_out_nothing_and_stays_a_member(broker, topic, orderly):
    """What was pulled waits; `resume()` goes on where it was; queues stay."""
    fill(broker, topic, *(b"%d" % number for number in range(20)), ordering_key="k")
    seen = []
    with consumer_of(broker, topic, orderly=orderly) as consumer:
        handling = threading.Thread(target=consumer.run, args=(lambda message: seen.append(int(message.body)),))
        with consumer.receive(PATIENCE) as message:
            seen.append(int(message.body))
            consumer.suspend()
        assert consumer.suspended
        handling.start()
        assert consumer.receive(0.3) is None
        assert seen == [0]
        assert consumer.queues
        consumer.resume()
        eventually(lambda: len(seen) == 20)
        consumer.stop()
        handling.join(PATIENCE)
    assert seen == list(range(20))
    nothing_left(broker, topic)


def test_suspended_asyncio_consumer_waits(broker, topic):
    """Takers of a running loop too, and closing ends the wait."""
    fill(broker, topic, b"0", b"1", ordering_key="k")

    async def main() -> None:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            async with await consumer.receive(PATIENCE) as message:
                assert message.body == b"0"
            consumer.suspend()
            assert await consumer.receive(0.2) is None
            waiting = asyncio.create_task(consumer.receive(PATIENCE))
            await asyncio.sleep(0)
            consumer.resume()
            async with await waiting as message:
                assert message.body == b"1"
            consumer.suspend()
            waiting = asyncio.create_task(consumer.receive(PATIENCE))
            await asyncio.sleep(0)
            consumer.stop()
            assert await waiting is None

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_stop_ends_a_suspended_run(broker, topic):
    """Nobody has to resume first."""
    with consumer_of(broker, topic) as consumer:
        consumer.suspend()
        handling = threading.Thread(target=consumer.run, args=(print,))
        handling.start()
        consumer.stop()
        handling.join(PATIENCE)
        assert not handling.is_alive()


# ---------------------------------------------------------------- handlers that do not return


def test_watch_gives_up_the_message_of_a_handler_that_hangs_and_names_both(caplog):
    """With level 3, as Java's cleaner; once; what the handler says later is ignored."""
    clock = FakeClock()
    watch = Watch("mailers", 900.0, clock, orderly=False)
    [message] = received(7)
    window = message._chunk.window
    slot = watch.enter("send_mail")
    slot.hand = message
    asyncio.run(watch.look())
    clock.advance(899)
    asyncio.run(watch.look())
    assert not message.settled
    clock.advance(1)
    asyncio.run(watch.look())
    asyncio.run(watch.look())
    assert window.send_back == [(7, 3)]
    assert message.lost
    message.ack()
    assert window.finished_offset() == 7
    assert caplog.text.count("the handler send_mail of group mailers has not returned") == 1
    assert "queue_offset=7" in caplog.text


def test_watch_leaves_handlers_alone_that_come_back(caplog):
    """The same message seen twice is no time-out, another one begins anew; idle workers are no handlers."""
    clock = FakeClock()
    watch = Watch("mailers", 10.0, clock, orderly=False)
    first, second = received(1, 2)
    slot = watch.enter("send_mail")
    for hand in (first, second, None, first):
        slot.hand = hand
        asyncio.run(watch.look())
        clock.advance(9)
        asyncio.run(watch.look())
    watch.leave(slot)
    clock.advance(100)
    asyncio.run(watch.look())
    assert not caplog.text


def test_message_of_a_handler_that_never_returns_is_delivered_again(broker, topic, caplog):
    """Another thread gets it after the delay; the first one's result changes nothing."""
    fill(broker, topic, b"x")
    go_on, seen = threading.Event(), []
    with consumer_of(broker, topic, consume_timeout=0.5) as consumer:

        def hangs(message):
            seen.append(message.reconsume_times)
            if not message.reconsume_times:
                go_on.wait(PATIENCE)
                assert message.lost
                return Reject
            consumer.stop()
            go_on.set()
            return None

        consumer.run(hangs, threads=2)
    assert seen == [0, 1]
    assert "hangs of group" in caplog.text
    nothing_left(broker, topic)


def test_orderly_handler_that_never_returns_is_only_named(broker, topic, caplog):
    """Its queue waits for it: to deliver the message again beside it would break the order."""
    fill(broker, topic, b"x", b"y", ordering_key="k")
    seen = []
    with consumer_of(broker, topic, consume_timeout=0.2, orderly=True) as consumer:

        def slow(message):
            seen.append((message.body, message.reconsume_times))
            if message.body == b"x":
                eventually(lambda: "its queue waits for it" in caplog.text)
                assert not message.lost
            else:
                consumer.stop()

        consumer.run(slow, threads=2)
    assert seen == [(b"x", 0), (b"y", 0)]


# ---------------------------------------------------------------- processes


def files(folder) -> list[list[str]]:
    return sorted(path.name.split("-") for path in folder.iterdir() if not path.name.startswith("batch"))


@pytest.mark.parametrize("orderly", [False, True])
def test_processes_handle_and_this_one_settles(broker, topic, tmp_path, orderly):
    """Every outcome comes back; a process that dies is replaced and its message delivered again."""
    words = ["ok", "later", "reject", "raise", "die", "other", "ack", *["ok"] * 20]
    fill(broker, topic, *(f"{tmp_path} {word}".encode() for word in words))
    again = sum(word in {"later", "raise", "die", "other", "ack"} for word in words)
    with consumer_of(broker, topic, orderly=orderly) as consumer:
        threading.Thread(
            target=lambda: (
                eventually(lambda: len(files(tmp_path)) >= len(words) + again, timeout=PATIENCE),
                consumer.stop(),
            )
        ).start()
        consumer.run(process_handlers.handler, processes=2)
    got = files(tmp_path)
    assert sum(times == "0" for _, _, times, _ in got) == len(words)
    assert sum(times == "1" for _, _, times, _ in got) == again
    assert len({pid for *_, pid in got}) >= 2
    assert str(os.getpid()) not in {pid for *_, pid in got}
    assert dead_letters(broker, topic, 1) == [f"{tmp_path} reject".encode()]
    nothing_left(broker, topic)


def test_processes_take_batches_in_asyncio_too(broker, topic, tmp_path):
    """The same pool behind an event loop."""
    fill(broker, topic, *(f"{tmp_path} ok".encode() for _ in range(20)))

    async def main() -> None:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
            running = asyncio.create_task(consumer.run(process_handlers.of_batch, processes=2, batch=5))
            while len(files(tmp_path)) < 20:
                await asyncio.sleep(0.05)
            consumer.stop()
            await running

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    batches = [int(path.name.split("-")[1]) for path in tmp_path.glob("batch-*")]
    assert sum(batches) == 20
    assert max(batches) <= 5
    nothing_left(broker, topic)


def test_run_that_is_cancelled_while_its_processes_start_leaves_none(broker, topic, tmp_path):
    """And the event loop goes on meanwhile: it is the loop that lets the processes come to their end here."""

    async def main() -> None:
        async with aio.Consumer(broker.namesrv, group=topic, topics=topic) as consumer:
            running = asyncio.create_task(consumer.run(process_handlers.SlowToLoad(tmp_path), processes=2))
            while len(list(tmp_path.glob("loading-*"))) < 2:
                await asyncio.sleep(0.05)
            running.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            (tmp_path / "go").touch()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not [one for one in multiprocessing.active_children() if "SlowToLoad" in one.name]

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
    assert not list(tmp_path.glob("late-*"))


def test_process_that_dies_without_a_message_fails_none(broker, topic, tmp_path):
    """It is replaced when the next message comes, which is handled for the first time then."""
    with consumer_of(broker, topic) as consumer:
        running = threading.Thread(target=consumer.run, args=[process_handlers.handler], kwargs={"processes": 1})
        running.start()
        fill(broker, topic, f"{tmp_path} first".encode())
        [first] = eventually(lambda: files(tmp_path))
        eventually(lambda: all(window.unfinished == 0 for window in consumer._member.windows.values()))
        os.kill(int(first[3]), signal.SIGKILL)
        eventually(lambda: not [one for one in multiprocessing.active_children() if one.pid == int(first[3])])
        fill(broker, topic, f"{tmp_path} second".encode())
        eventually(lambda: len(files(tmp_path)) == 2)
        consumer.stop()
        running.join(PATIENCE)
    assert {times for _, _, times, _ in files(tmp_path)} == {"0"}
    assert len({pid for *_, pid in files(tmp_path)}) == 2
    nothing_left(broker, topic)


def test_handler_that_cannot_go_to_a_process_is_refused(broker, topic):
    """Before the first message, with what to do."""
    with consumer_of(broker, topic) as consumer:
        for wrong in (lambda message: None, consumer.run, process_handlers.asynchronous):
            with pytest.raises(TypeError, match="the handler"):
                consumer.run(wrong, processes=1)


def test_handler_that_shows_late_that_it_is_asynchronous_ends_run(broker, topic, tmp_path):
    """As in a thread: the message stays unfinished."""
    fill(broker, topic, f"{tmp_path} x".encode())
    with consumer_of(broker, topic) as consumer, pytest.raises(TypeError, match="nobody awaits it in a process"):
        consumer.run(process_handlers.hidden_asynchronous, processes=1)
    with consumer_of(broker, topic) as consumer:
        assert consumer.receive(PATIENCE).reconsume_times == 0


class Ticking(FakeClock):
    """Every look at it finds that so many seconds have gone by."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def monotonic(self) -> float:
        self.advance(self.seconds)
        return super().monotonic()


def test_quick_handlers_get_several_messages_a_trip_and_slow_ones_one():
    """As many as take two milliseconds, so that a slow one holds none behind it that another process could handle."""
    messages = received(*range(64))
    with Worker(pickled(_nothing), "worker", Ticking(0.0001)) as worker:
        slices = []
        done = 0
        while done < 40:
            slices.append(worker.slice)
            worker.handle(messages[done : done + slices[-1]], batched=False)
            done += slices[-1]
    assert slices[:4] == [1, 2, 4, 8]
    assert all(message.settled for message in messages[:40])
    with Worker(pickled(_nothing), "worker", Ticking(0.01)) as worker:
        for number in range(3):
            worker.handle(received(number), batched=False)
            assert worker.slice == 1


def _nothing(message) -> None:
    """An empty handler."""


PROGRAM = """
import sys, metaq
from tests.client.consumer.handling.process_handlers import slowly
if {guard}:
    with metaq.Consumer(sys.argv[1], group=sys.argv[2], topics=sys.argv[2], start="earliest") as consumer:
        try:
            consumer.run(slowly, {workers}=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_signal_drains(broker, topic, tmp_path, workers, number):
    """To the whole group of processes: what is in hand is finished and committed; no worker is left."""
    fill(broker, topic, *(f"{tmp_path} ok".encode() for _ in range(30)))
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(guard='__name__ == "__main__"', workers=workers))
    folder = tmp_path
    running = subprocess.Popen(
        [sys.executable, str(script), broker.namesrv, topic],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
    )  # fmt: skip
    try:
        notes = lambda: [path for path in folder.iterdir() if path.name[0].isdigit()]  # noqa: E731
        eventually(lambda: len(notes()) >= 2)
        os.killpg(running.pid, number)
        out, _ = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 0
    assert out.endswith("ended\n")
    handled = len(notes())
    assert handled < 30
    pids = {int(path.name.split("-")[3]) for path in notes()}
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    with consumer_of(broker, topic) as consumer:
        left = []
        while len(left) < 30 - handled and (message := consumer.receive(PATIENCE)) is not None:
            message.ack()
            left.append(message)
        assert consumer.receive(0.5) is None, "what was handled was committed"
    assert {message.reconsume_times for message in left} == {0}


MASKS = """
import signal
from multiprocessing import util
from metaq.client.consumer.handling.processes import Worker, pickled

if __name__ == "__main__":
    started = []
    spawn = util.spawnv_passfds
    def note(path, args, descriptors):
        started.append((args[-1], signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        return spawn(path, args, descriptors)
    util.spawnv_passfds = note
    with Worker(pickled(print), "worker"):
        pass
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "they are blocked for the start alone"
    command, blocked = started[-1]
    print(command, sorted(number.name for number in blocked))
"""


def test_a_worker_starts_with_signals_blocked(tmp_path):
    """Also the first of a program, beside which multiprocessing starts its resource tracker and changes the mask."""
    script = tmp_path / "program.py"
    script.write_text(MASKS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "--multiprocessing-fork ['SIGINT', 'SIGTERM']\n"


def test_program_without_a_guarded_start_gets_a_clear_error(broker, topic, tmp_path):
    """Each process would run it again."""
    fill(broker, topic, f"{tmp_path} ok".encode())
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(guard="True", workers="processes"))
    done = subprocess.run(
        [sys.executable, str(script), broker.namesrv, topic], capture_output=True, text=True, timeout=PATIENCE,
        check=False, env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
    )  # fmt: skip
    assert done.returncode == 1
    assert 'below `if __name__ == "__main__":`' in done.stderr
