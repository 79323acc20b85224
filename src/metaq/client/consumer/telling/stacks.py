"""Stacks of all threads and tasks of the process, as text, bounded (RocketMQ's jstack)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

CHARS_MAX = 512 * 1024
"""Of the whole text."""
FRAMES_MAX = 64
"""Of one stack: the innermost."""
TASKS_MAX = 2000
"""Of one event loop."""


def stacks(loops: Iterable[asyncio.AbstractEventLoop] = ()) -> str:
    """Return the stacks of all threads, and of the tasks of these loops. Reads no files and shows no values; for a thread that may wait."""
    parts: list[str] = []
    left = CHARS_MAX
    for part in _parts(loops):
        if left < len(part):
            parts.append("... cut off here, there are more\n")
            break
        parts.append(part)
        left -= len(part)
    return "\n".join(parts)


def _parts(loops: Iterable[asyncio.AbstractEventLoop]) -> Iterator[str]:
    names = {thread.ident: thread for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  the documented way
        thread = names.get(ident)
        name = thread.name if thread is not None else "unknown"
        kind = " daemon" if thread is not None and thread.daemon else ""
        yield _text(f"{name} TID: {ident}{kind}", [(at.f_code, at.f_lineno) for at in _inwards(frame)])
    for loop in loops:
        # `all_tasks` copies its set, as often as it changes meanwhile.
        tasks = list(asyncio.all_tasks(loop))
        for task in tasks[:TASKS_MAX]:
            frames = task.get_stack(limit=FRAMES_MAX)
            yield _text(f"task {task.get_name()}", [(at.f_code, at.f_lineno) for at in reversed(frames)])
        if len(tasks) > TASKS_MAX:
            yield f"... and {len(tasks) - TASKS_MAX} more tasks\n"


def _inwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield at most FRAMES_MAX frames, the innermost first."""
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _text(head: str, places: Iterable[tuple[CodeType, int | None]]) -> str:
    lines = (f"  at {code.co_qualname} ({code.co_filename}:{line})\n" for code, line in places)
    return f"{head}\n{''.join(lines)}"
