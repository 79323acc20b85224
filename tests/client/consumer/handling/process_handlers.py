"""Handlers for worker processes: they must be importable there."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import metaq
from tests.support import eventually


def note(message) -> None:
    """Write down which process handled what, in the folder that the message names."""
    folder, _, word = message.body.decode().partition(" ")
    (
        pathlib.Path(folder) / f"{message.queue_id}-{message.queue_offset}-{message.reconsume_times}-{os.getpid()}"
    ).write_text(word)


def handler(message):
    note(message)
    word = message.body.decode().partition(" ")[2]
    if not message.reconsume_times:
        if word == "later":
            return metaq.Later(1)
        if word == "reject":
            raise metaq.Reject
        if word == "raise":
            raise Unpicklable(word, 5)
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "other":
            return 5
        if word == "ack":
            message.ack()
    return None


class Unpicklable(Exception):
    """Its arguments are not those of its base, so no copy of it could be made."""

    def __init__(self, word: str, number: int) -> None:
        super().__init__(word)


class SlowToLoad:
    """A handler that a process has only when there is a file `go` in its folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __call__(self, message) -> None: ...

    def __reduce__(self):
        return _load_slowly, (self.folder,)


def _load_slowly(folder: pathlib.Path) -> SlowToLoad:
    (folder / f"loading-{os.getpid()}").touch()
    try:
        eventually((folder / "go").exists)
    except BaseException:
        (folder / f"late-{os.getpid()}").touch()
        raise
    return SlowToLoad(folder)


def slowly(message) -> None:
    note(message)
    time.sleep(0.3)


def of_batch(messages) -> None:
    for message in messages:
        note(message)
    (
        pathlib.Path(messages[0].body.decode().split()[0]) / f"batch-{len(messages)}-{os.getpid()}-{time.time_ns()}"
    ).touch()


async def asynchronous(message) -> None:
    note(message)


def hidden_asynchronous(message):
    return asynchronous(message)


def touch_the_file_of_its_value(message) -> None:
    pathlib.Path(message.value["file"]).touch()
