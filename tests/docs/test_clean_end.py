"""The loops that README and client page show end cleanly: a real SIGTERM in the middle, and no message comes twice."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys

import pytest

import metaq
from tests.support import PATIENCE, ROOT, environment

pytestmark = pytest.mark.slow

COUNT, FIRST_END = 100, 38
_names = itertools.count()

# The programs are those of the pages; this is the user's part of them. A handler sends its own process SIGTERM after
# the 38th message and after the last one, so nothing depends on time.
HARNESS = """
import asyncio, os, signal, sys, threading, types

LOG, ENDS = sys.argv[1], [int(number) for number in sys.argv[2].split(",")]
lock = threading.Lock()

def send_mail(body):
    with lock:
        with open(LOG, "ab") as log:
            log.write(body + b"\\n")
        with open(LOG, "rb") as log:
            number = sum(1 for _ in log)
        if number in ENDS:
            os.kill(os.getpid(), signal.SIGTERM)
            while "consumer" in globals() and not consumer.stopped:  # The main thread takes it in its own time.
                threading.Event().wait(0.01)

class FastAPI:
    def __init__(self, lifespan):
        self.lifespan = lifespan

sys.modules["fastapi"] = types.ModuleType("fastapi")
sys.modules["fastapi"].FastAPI = FastAPI
bodies = []
"""
HANDLE = """
def handle(message):
    send_mail(message.body)
"""
HANDLE_ASYNC = """
async def handle(message):
    await asyncio.sleep(0)
    send_mail(message.body)
"""
# What a web server does with an application: its own signal handler, and the lifespan around its work.
SERVE = """
async def serve():
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with app.lifespan(app):
        await end.wait()

asyncio.run(serve())
"""


def blocks(page: str) -> list[str]:
    return [
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        if "SIGTERM" in block or "lifespan" in block or "threads=8" in block
    ]


README = blocks("README.md")
PAGE = blocks("docs/client.md")


def test_every_way_is_shown():
    """README: the loop. The client page: loop, threads, asyncio worker, web server."""
    assert len(README) == 1
    assert [next(word for word in ("FastAPI", "asyncio", "threads=8", "signal") if word in block) for block in PAGE] == [
        "signal", "threads=8", "asyncio", "FastAPI",
    ]  # fmt: skip


@pytest.mark.parametrize("block", README + PAGE, ids=["README", "loop", "threads", "worker", "lifespan"])
def test_program_of_the_page_ends_cleanly(metaq_broker, tmp_path, block):
    """Two runs, each ended by SIGTERM: exit code 0, every message handled, none twice."""
    topic = f"clean_end_{os.getpid()}_{next(_names)}"
    with metaq.Producer(metaq_broker.namesrv) as producer:
        for number in range(COUNT):
            producer.submit(topic, b"%d" % number)
    code = block.replace("localhost:9876", metaq_broker.namesrv)
    code = code.replace('group="mailer", ', f'group="{topic}", start="earliest", ')
    code, changed = re.subn(r'topics=("orders"|\{.*?\})', f'topics="{topic}"', code)
    assert changed == 1
    handle = HANDLE_ASYNC if "aio" in code else HANDLE
    program, log = tmp_path / "program.py", tmp_path / "handled"
    program.write_text(HARNESS + handle + code + (SERVE if "lifespan" in code else ""))
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, str(program), str(log), f"{FIRST_END},{COUNT}"],
            capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
    handled = [int(line) for line in log.read_bytes().split()]
    assert sorted(handled) == list(range(COUNT))
    with metaq.Consumer(metaq_broker.namesrv, group=topic, topics=topic, start="earliest") as consumer:
        consumer.wait_assigned(20)
        assert consumer.receive(0.5) is None
