"""The programs of docs/logging.md run, and its table is true."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys

import pytest

import metaq
from metaq.logging_handler import buffer, handler, metaq1, sender
from metaq.metaq1 import MetaClientConfig
from metaq.testing import EmbeddedBroker
from metaq.wire.metaq1.frame import HEAD_BYTES
from tests.interop.metaq1 import OurServer
from tests.metaq1.stored import read
from tests.support import PATIENCE, ROOT, environment

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "logging.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def broker():
    """Of its own: the programs log to the topic that every page has."""
    with EmbeddedBroker() as running:
        yield running


def run(block, broker, tmp_path):
    """As a program of its own: its end sends what waits."""
    program = tmp_path / "program.py"
    program.write_text(block.replace("localhost:9876", broker.namesrv))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with metaq.Reader(broker.namesrv, "business-logs", start="earliest", stop_at_end=True) as reader:
        return list(reader)


def test_the_first_program_sends_what_the_page_shows(broker, tmp_path):
    """Tag, property, key, and every name of the object with a value of its kind."""
    [message] = run(BLOCKS[0], broker, tmp_path)
    assert (message.tag, message.properties["service"], message.keys) == ("WARNING", "checkout", ("r-4711",))
    shown = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])
    found = json.loads(message.body)
    assert list(found) == list(shown)
    for name in ("level", "logger", "message", "service", "thread", "extra"):
        assert found[name] == shown[name]
    assert re.sub(r"\d", "0", found["time"]) == re.sub(r"\d", "0", shown["time"])


def test_the_configuration_works(broker, tmp_path):
    """`dictConfig` makes the handler."""
    [message] = run(BLOCKS[1], broker, tmp_path)
    found = json.loads(message.body)
    assert (found["message"], found["service"], found["logger"]) == ("configured", "checkout", "root")


def test_the_handler_of_metaq1_sends_what_the_page_shows(tmp_path):
    """To the server itself, as there is no ZooKeeper here."""
    with OurServer(tmp_path / "server", None, {"business-logs": {}}) as server:
        block = BLOCKS[2].replace('zk_connect="localhost:2181"', f'server_url="meta://{server.text}"')
        assert server.text in block
        program = tmp_path / "program.py"
        program.write_text(block)
        done = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment()
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        [(_, attribute, body)] = read(server.text, "business-logs", 0)
    assert attribute == b"WARNING"
    assert json.loads(body)["service"] == "checkout"
    room = MetaClientConfig(server_url="meta://localhost").max_message_bytes - HEAD_BYTES - metaq1.ATTRIBUTE_BYTES
    assert f"1 MiB less {(1 << 20) - room} bytes" in PAGE


def test_defaults_and_numbers_of_the_page_are_those_of_the_code():
    """Every argument but the two that logging and tests have; the times; the reasons."""
    parameters = inspect.signature(metaq.MetaQHandler).parameters
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", PAGE, re.MULTILINE))
    assert set(rows) == set(parameters) - {"level", "clock"}
    for name in ("topic", "buffer_records_max", "buffer_bytes_max", "record_bytes_max", "linger", "flush_seconds"):
        assert rows[name] == str(parameters[name].default), name
    assert f"handlers together get {handler.EXIT_SECONDS:g} s" in PAGE
    assert f"from {sender.PAUSE_SECONDS:g} to {sender.PAUSE_SECONDS_MAX:g} s" in PAGE
    for reason in (buffer.FULL, buffer.CLOSED, buffer.REFUSED, buffer.UNFORMATTED, buffer.FORKED):
        assert f"`{reason}`" in PAGE
