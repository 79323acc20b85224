"""Runs one target: its corpus, stretched and changed, for so many seconds.

With Atheris the search is guided by coverage of our modules; without, inputs of the corpus are changed blindly. What is a fault says
`fuzz.judged`; its input is left in a file, and its test belongs into tests/fuzz/test_found.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator

from fuzz.judged import LONG_BYTES, MEMORY_BYTES, SANITIZED, Fault, Judged, resident_bytes
from fuzz.mutation import mutated, stretched
from fuzz.target import Target

from fuzz import corpus

WORK = pathlib.Path(__file__).parent.parent / ".cache" / "fuzz"
"""What searches have reached, and the inputs of faults; not committed."""
SLOWER = 4.0
"""By how much the instrumentation for coverage slows Python down, at most."""


MEMORY_FOLDER = "/dev/shm"  # noqa: S108  a folder in memory, where syncs cost nothing
ROOM_BYTES = 1 << 30


def use_memory_for_files() -> None:
    """Make temporary folders in memory, if it has room: stores that are opened for an input sync a lot."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(MEMORY_FOLDER).free > ROOM_BYTES and os.access(MEMORY_FOLDER, os.W_OK):
            tempfile.tempdir = MEMORY_FOLDER


def guided() -> bool:
    """Whether Atheris is there."""
    return importlib.util.find_spec("atheris") is not None


def run(target: Target, seconds: float, seed: int, most: int | None = None) -> int:
    """Feed the corpus, inputs of it stretched to 64 KiB, and then changed ones for so long. Returns how many were fed.

    Args: most: of the corpus, in equal steps.

    Raises Fault, and leaves the input in a file.
    """
    inputs = corpus.load(target)
    step = 1 if most is None else max(1, len(inputs) // most)
    with quiet(), target.opened() as feed:
        judged = Judged(target, feed)
        for data in (*inputs[::step], *_long_ones(target, inputs)):
            _judge(target, judged, data)
        before, stop = resident_bytes(), time.monotonic() + seconds
        while time.monotonic() < stop:
            chance = random.Random(seed)
            seed += 1
            _judge(target, judged, changed(target, chance, chance.choice(inputs), inputs))
        if (more := resident_bytes() - before) > MEMORY_BYTES and not SANITIZED:
            raise Fault(f"{target.name}: {judged.fed} inputs left {more >> 20} MiB of memory")
        return judged.fed


def _long_ones(target: Target, inputs: list[bytes]) -> Iterator[bytes]:
    if not target.stretched:
        return
    # Some pieces of some, in turn: all of them would be minutes.
    for number, data in enumerate(inputs[:: max(1, len(inputs) // 24)]):
        yield from stretched(data, LONG_BYTES)[number % 3 :: 3][:4]


def changed(target: Target, chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """An input that is another one in some places."""
    if target.mutate is not None and chance.random() < 0.5:
        return target.mutate(chance, data)[: target.bytes_max]
    return mutated(chance, data, others, target.words, target.bytes_max)


def search(name: str, seconds: int, seed: int) -> None:
    """Search with Atheris, guided by coverage. Ends the process: 0, or 77 after a fault."""
    import atheris

    use_memory_for_files()
    with atheris.instrument_imports(include=["metaq"]):
        from fuzz.targets import find

        target = find(name)
    inputs, folder = corpus.load(target), WORK / name / "reached"
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / corpus.name_of(data)).write_bytes(data)
    words = folder.parent / "words"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))

    def custom(data: bytes, bytes_max: int, chosen: int) -> bytes:
        chance = random.Random(chosen)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, bytes_max))
        return changed(target, chance, data, inputs)[:bytes_max]

    opened = target.opened()
    # Never left: Atheris ends the process.
    quiet().__enter__()
    judged = Judged(target, opened.__enter__(), SLOWER)
    arguments = [
        "fuzz", str(folder), f"-max_total_time={seconds}", f"-max_len={target.bytes_max}", f"-seed={seed or 1}", "-print_final_stats=1",
        f"-artifact_prefix={folder.parent}/fault-", "-timeout=20", "-rss_limit_mb=3000", "-verbosity=1", f"-dict={words}",
    ]  # fmt: skip
    if not target.words:
        arguments.pop()
    atheris.Setup(arguments, judged, custom_mutator=custom)
    atheris.Fuzz()


def kept(target: Target) -> list[bytes]:
    """What searches have reached so far."""
    folder = WORK / target.name / "reached"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the log from the terminal: each refused input has a line there. What an exception is logged for is a fault."""
    log = logging.getLogger("metaq")
    before = log.propagate, log.handlers
    log.propagate, log.handlers = False, [Failures()]
    try:
        yield
    finally:
        log.propagate, log.handlers = before


class Failures(logging.Handler):
    """Turns a logged exception, which the peer only sees as an answer, into a failure of the fuzzer."""

    def emit(self, record: logging.LogRecord) -> None:
        assert not record.exc_info, record.getMessage() + "\n" + str(record.exc_info)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name in logging
        raise  # noqa: PLE0704  `emit` has failed, and logging calls this for it


def _judge(target: Target, judged: Judged, data: bytes) -> None:
    try:
        judged(data)
    except Fault as fault:
        path = WORK / target.name / f"fault-{corpus.name_of(data)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(
            f"{target.name}: {fault}\n  input {data[:400]!r}{'...' if len(data) > 400 else ''}\n  in {path}",
            file=sys.stderr,
        )
        raise
