"""Threads of `run`: who waits for one waits for what it has in hand, whenever Ctrl-C comes."""

from __future__ import annotations

import functools
import threading

import pytest

from metaq.client.consumer.handling.running import WorkerThread
from tests.support import PATIENCE, eventually


def test_thread_that_was_interrupted_in_its_start_is_waited_for(monkeypatch):
    """It runs: an interrupt comes while the caller waits for its first sign of life."""
    start, go_on, done = threading.Thread.start, threading.Event(), []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def work() -> None:
        go_on.wait(PATIENCE)
        done.append(True)

    worker = WorkerThread(work, "worker")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.start()
    eventually(lambda: worker.begun)
    assert not worker.wait(0.01)
    go_on.set()
    assert worker.wait()
    assert done == [True]


def test_thread_that_never_began_is_not_waited_for():
    assert WorkerThread(lambda: None, "worker").wait()


def test_all_who_wait_hear_of_the_end():
    go_on, seen = threading.Event(), list[bool]()
    worker = WorkerThread(functools.partial(go_on.wait, PATIENCE), "worker")
    worker.start()
    assert not worker.wait(0)
    waiting = WorkerThread(lambda: seen.append(worker.wait()), "waiting")
    waiting.start()
    go_on.set()
    assert worker.wait()
    assert waiting.wait()
    assert seen == [True]
