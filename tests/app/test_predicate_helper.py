"""The program of a helper process, alone: however it ends, it leaves no traceback in the broker's standard error."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaq.app.predicate_process import program
from metaq.model.filters.predicates import OUT_OF_MEMORY, YES
from metaq.wire.record import encode_record
from tests.support import PATIENCE

CODE = """
import pathlib, time

kept = []

def keeps(message):
    kept.append(bytearray(3 << 20))
    return True

def waits(message):
    pathlib.Path(message.body.decode()).touch()
    time.sleep(600)
"""
MEMORY = 64 << 20


@contextmanager
def helper(folder: pathlib.Path, name: str, **pipes: object) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "helped.py").write_text(CODE)
    asked = {"predicates": {name: f"helped:{name}"}, "memory": MEMORY, "filters": False}
    command, environment = program(str(folder), json.dumps(asked))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def record(body: bytes) -> bytes:
    host = bytes((127, 0, 0, 1, 0, 0, 0, 1))
    return encode_record(
        topic=b"T", queue_id=0, queue_offset=0, log_offset=0, flag=0, sys_flag=0, born_ms=1, born_host=host, store_ms=1,
        store_host=host, reconsume_times=0, prepared_offset=0, body=body, properties=b"",
    )  # fmt: skip


def ask(process: subprocess.Popen[bytes], name: str, body: bytes) -> None:
    question = bytes([len(name)]) + name.encode() + record(body)
    process.stdin.write(len(question).to_bytes(4, "big") + question)
    process.stdin.flush()


def answer(process: subprocess.Popen[bytes]) -> bytes:
    return process.stdout.read(int.from_bytes(process.stdout.read(4), "big"))


def test_a_broker_that_is_gone_when_it_is_ready_is_not_told(tmp_path) -> None:
    """It was killed while the helper imported."""
    gone, end = os.pipe()
    os.close(gone)
    with helper(tmp_path, "keeps", stdout=end) as process:
        os.close(end)
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


def test_a_predicate_that_keeps_all_memory_is_told(tmp_path) -> None:
    """Whether it is missing in the predicate, or for the next question."""
    with helper(tmp_path, "keeps") as process:
        assert json.loads(answer(process)) == {"errors": {}}
        said = b""
        for _ in range(100):
            ask(process, "keeps", b"x" * 200_000)
            if (said := answer(process)) != bytes([YES]):
                break
        assert said == bytes([OUT_OF_MEMORY])
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_helper_that_is_killed_says_nothing(tmp_path, number) -> None:
    """While a predicate runs; an interrupt, which is meant for the broker, does not end it."""
    with helper(tmp_path, "waits") as process:
        answer(process)
        flag = tmp_path / "runs"
        ask(process, "waits", os.fsencode(flag))
        while not flag.exists():
            assert process.poll() is None
        process.send_signal(number)
        if number == signal.SIGINT:
            process.kill()
        assert process.wait(PATIENCE) < 0
        assert process.stderr.read() == b""
