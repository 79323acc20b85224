"""Consumers as processes: one is killed at each step of a message, or two have the same message at once. It has one effect."""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import metaq
from metaq.idempotence import Idempotence
from tests.outbox.databases import KINDS, connect, run, running
from tests.support import PATIENCE, environment

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
STEPS = ["SELECT", "INSERT metaq_seen", "INSERT bills", "commit", "ack"]
"""What a consumer does for a message; it can die before and behind each."""


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("database")) as url:
        with contextlib.closing(connect(url)) as connection:
            Idempotence("billing").create_table(connection)
            run(connection, "CREATE TABLE bills (name VARCHAR(50))")
            connection.commit()
        yield url


def bills(url):
    with contextlib.closing(connect(url)) as connection:
        return [name for (name,) in run(connection, "SELECT name FROM bills ORDER BY name")]


@pytest.mark.slow
def test_killed_at_each_step(server, metaq_broker):
    """The next process gets what was not acknowledged, and each message has one effect."""
    group = f"killed-{server.partition(':')[0]}"
    messages = [f"message-{number:02}" for number in range(1, 2 * len(STEPS) + 2)]
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for body in messages:
            producer.send(group, body.encode(), ordering_key="one")
    died = []
    for number, body in enumerate(messages, 1):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "killed_child.py"), server, metaq_broker.namesrv, group, str(number), body],
            capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(PYTHONPATH=":".join(sys.path)),
        )  # fmt: skip
        died.append(done.stdout.strip())
        assert done.returncode == (0 if number == len(messages) else -signal.SIGKILL), done.stderr
        # This process has done what the one before, which died, has left.
        assert [name for name in bills(server) if name in messages][: number - 1] == messages[: number - 1]
    assert died == [f"{side} {step}" for step in STEPS for side in ("before", "behind")] + ["ended"]
    assert [name for name in bills(server) if name in messages] == messages


class Child:
    """A process of waiting_child.py, and what it says."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "waiting_child.py"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(PYTHONPATH=":".join(sys.path)),
        )  # fmt: skip
        self._said: queue.Queue[str] = queue.Queue()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self):
        for line in self._process.stdout:
            self._said.put(line.strip())

    def says(self):
        return self._said.get(timeout=PATIENCE)

    def is_silent(self, seconds):
        with contextlib.suppress(queue.Empty):
            return self._said.get(timeout=seconds) == ""
        return True

    def tell(self, word):
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._reading.join()
        self._process.stdin.close()
        self._process.stdout.close()


_numbers = itertools.count()


@pytest.mark.parametrize("end", ["commit", "raise", "kill -9"])
def test_two_at_once(server, metaq_broker, end):
    """The second process waits for the first: it skips the message if that commits, and handles it if that fails, or dies."""
    topic = f"twice-{server.partition(':')[0]}-{next(_numbers)}"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send(topic, topic.encode())
    arguments = server, metaq_broker.namesrv, topic
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Child(*arguments, "first"))
        assert [first.says(), first.says()] == ["asks", "inside"]
        second = stack.enter_context(Child(*arguments, "second"))
        assert second.says() == "asks"
        assert second.is_silent(0.3), "it waits"
        if end == "kill -9":
            first.kill()
        else:
            first.tell(end)
            assert first.says() == ("handled" if end == "commit" else "failed")
        if end == "commit":
            assert second.says() == "skipped"
        else:
            assert second.says() == "inside"
            second.tell("commit")
            assert second.says() == "handled"
    assert [name for name in bills(server) if name.startswith(topic)] == [
        f"{topic} by {'first' if end == 'commit' else 'second'}"
    ]
