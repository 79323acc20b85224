"""Chunks change hands once, closing wakes everybody, and what a taker leaves goes to the next."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from metaq.client.consumer.delivery.handover import Handover
from metaq.client.consumer.delivery.window import Chunk, Window
from metaq.errors import AccessDenied
from metaq.model import MessageQueue, StoredMessage
from tests.support import PATIENCE, environment, eventually


def chunk(*offsets: int) -> Chunk[StoredMessage]:
    messages = [StoredMessage(topic="t", body=b"x", queue_offset=offset) for offset in offsets]
    made = Window(MessageQueue("t", "b", 0), offsets[0]).add(messages, offsets[-1] + 1)
    assert made is not None
    return made


def test_chunks_come_in_order_and_time_out():
    """First in, first out; TimeoutError when there is none."""
    handover: Handover[StoredMessage] = Handover()
    first, second = chunk(0), chunk(1)
    handover.put(first)
    handover.put(second)
    assert handover.take(0) is first
    assert handover.take(0) is second
    with pytest.raises(TimeoutError):
        handover.take(0.01)


def test_a_refusal_is_raised_once_behind_what_was_put():
    """In one taker, blocking or awaiting; further ones only once it was taken, and none once closed or begun anew."""
    handover: Handover[StoredMessage] = Handover()
    refusal, first = AccessDenied(1, "no"), chunk(0)
    handover.put(first)
    handover.refuse(refusal)
    handover.refuse(AccessDenied(1, "again"))
    assert handover.take(0) is first
    with pytest.raises(AccessDenied) as caught:
        handover.take(0)
    assert caught.value is refusal
    with pytest.raises(TimeoutError):
        handover.take(0.01)
    handover.refuse(refusal)
    with pytest.raises(AccessDenied):
        asyncio.run(asyncio.wait_for(handover.take_async(), PATIENCE))
    handover.refuse(refusal)
    handover.restart()
    with pytest.raises(TimeoutError):
        handover.take(0.01)
    handover.refuse(refusal)
    handover.close()
    assert handover.take(0) is None


def test_close_wakes_every_taker_and_drops_what_waits():
    """Threads and tasks alike get None."""
    handover: Handover[StoredMessage] = Handover()
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(handover.take(PATIENCE))) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def two() -> list[object]:
        takers = [asyncio.create_task(handover.take_async()) for _ in range(2)]
        await asyncio.sleep(0)
        handover.put(chunk(5))
        handover.close()
        return await asyncio.wait_for(asyncio.gather(*takers), PATIENCE)

    tasks = asyncio.run(two())
    for thread in threads:
        thread.join(PATIENCE)
    assert len(got) == 3
    assert [item for item in [*got, *tasks] if item is not None] == [] or len(
        [item for item in [*got, *tasks] if item is not None]
    ) == 1
    assert handover.take(0) is None


def test_a_task_that_looked_while_a_thread_had_the_mark_of_the_end_is_woken():
    """It waited for ever: the thread gave the mark back and woke nobody."""
    handover: Handover[StoredMessage] = Handover()
    handover.close()
    given_back = threading.Event()
    inner = handover._chunks

    class InHands:
        """The queue, whose first taker keeps what it has taken until a task waits."""

        def put(self, chunk: Chunk[StoredMessage] | None) -> None:
            assert given_back.wait(PATIENCE)
            inner.put(chunk)

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

    handover._chunks = InHands()  # type: ignore[assignment]
    thread = threading.Thread(target=handover.take, args=[PATIENCE])
    thread.start()
    eventually(inner.empty)

    async def wait() -> object:
        task = asyncio.create_task(handover.take_async())
        while not handover._waiting:
            await asyncio.sleep(0)
        given_back.set()
        return await asyncio.wait_for(task, PATIENCE)

    assert asyncio.run(wait()) is None
    thread.join(PATIENCE)


def test_what_was_given_back_reaches_a_waiting_taker():
    """A taker that waits is woken for the rest of somebody else's chunk."""
    handover: Handover[StoredMessage] = Handover()
    got: list[Chunk[StoredMessage] | None] = []
    thread = threading.Thread(target=lambda: got.append(handover.take(PATIENCE)))
    thread.start()
    handover.give_back(chunk(3, 4).rest(1))
    thread.join(PATIENCE)
    assert [message.queue_offset for message in got[0].messages] == [4]


def test_interrupt_ends_after_what_is_ready_and_restart_goes_on():
    """A reader at its end: chunks first, then None again and again, until restart; dropped windows' chunks go."""
    handover: Handover[StoredMessage] = Handover()
    kept, dropped = chunk(0), chunk(1)
    handover.put(kept)
    handover.interrupt()
    handover.put(dropped)
    assert handover.take(0) is kept
    assert handover.take(0) is None
    dropped.window.dropped = True
    later = chunk(2)
    handover.put(later)
    handover.restart()
    assert handover.take(0) is later
    with pytest.raises(TimeoutError):
        handover.take(0.01)


DEAF = """
import os, signal, sys, threading
from metaq.client.consumer.delivery.handover import Handover
from metaq.client.shared.loop import background

handover, outcome, deaf = Handover(), background().loop.create_future(), threading.Event()

def stop(number, frame):
    handover.close()
    background().post(outcome.cancel)

async def outcome_of():
    return await outcome

def send():  # once the main thread waits
    deaf.wait()
    while sys._current_frames()[threading.main_thread().ident].f_code.co_name in {"main", "set", "notify_all", "<lambda>"}:
        pass
    os.kill(os.getpid(), signal.SIGTERM)

def main(wait):
    threading.Thread(target=send).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # another thread gets it, and nothing wakes this one
    deaf.set()
    try:
        print(wait())
    except BaseException as error:
        print(type(error).__name__)

signal.signal(signal.SIGTERM, stop)
main({"take": lambda: handover.take(None), "run": lambda: background().run(outcome_of())}[sys.argv[1]])
"""


@pytest.mark.parametrize(("wait", "prints"), [("take", "None"), ("run", "CancelledError")])
def test_a_signal_that_does_not_end_the_wait_is_heard_all_the_same(wait, prints):
    """One that comes just before the main thread sleeps wakes nobody; without a look now and then it would wait for ever."""
    ended = subprocess.run(
        [sys.executable, "-c", DEAF, wait],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=True,
    )
    assert ended.stdout.strip() == prints
