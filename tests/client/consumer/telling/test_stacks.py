"""Stacks of threads and tasks."""

from __future__ import annotations

import asyncio
import threading

from metaq.client.consumer.telling import stacks
from tests.support import PATIENCE


def test_threads_and_tasks_are_shown_by_name_and_place():
    secret = "do not show me"
    begun, end = threading.Event(), threading.Event()

    def waits_here(word: str) -> None:
        begun.set()
        end.wait(PATIENCE)
        assert word

    async def awaits_here() -> None:
        await asyncio.Event().wait()

    async def look() -> str:
        task = asyncio.create_task(awaits_here(), name="a-task")
        await asyncio.sleep(0)
        found = await asyncio.to_thread(stacks.stacks, [asyncio.get_running_loop()])
        task.cancel()
        return found

    thread = threading.Thread(target=waits_here, args=(secret,), name="a-thread", daemon=True)
    thread.start()
    begun.wait(PATIENCE)
    text = asyncio.run(look())
    end.set()
    thread.join(PATIENCE)
    assert f"a-thread TID: {thread.ident} daemon" in text
    assert "waits_here" in text
    assert "task a-task" in text
    assert "awaits_here" in text
    assert __file__ in text
    assert secret not in text


def test_the_text_is_bounded(monkeypatch):
    monkeypatch.setattr(stacks, "CHARS_MAX", 5000)
    monkeypatch.setattr(stacks, "TASKS_MAX", 20)

    async def look() -> str:
        tasks = [asyncio.create_task(asyncio.sleep(PATIENCE)) for _ in range(1000)]
        await asyncio.sleep(0)
        found = await asyncio.to_thread(stacks.stacks, [asyncio.get_running_loop()])
        for task in tasks:
            task.cancel()
        return found

    text = asyncio.run(look())
    assert len(text) < 5200
    assert text.endswith("there are more\n")


def test_the_frames_of_a_stack_are_bounded():
    def deep(level: int) -> str:
        return deep(level - 1) if level else stacks.stacks()

    assert deep(300).count(".deep ") == stacks.FRAMES_MAX - 2
