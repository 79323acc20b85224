"""The programs of docs/groups.md run as they stand, and its tables are true."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import metaq
from metaq.admin import Admin
from metaq.client.consumer.arguments import TOPICS_MAX
from metaq.client.consumer.membership.rebalance import STRATEGIES
from tests.support import PATIENCE, ROOT, environment

PAGE = (ROOT / "docs" / "groups.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COUNT = 40

# The user's part of the programs: the handler ends them, as systemd would, when everything has come.
HARNESS = """
import os, signal, sys, threading

seen, lock, enough = set(), threading.Lock(), int(sys.argv[1])

def handle(message):
    with lock:
        seen.add((message.topic, message.body))
        if len(seen) == enough:
            os.kill(os.getpid(), signal.SIGTERM)

def finished():
    return len(seen) >= enough
"""
PULLED = """
def handle(message):
    seen.add((message.topic, message.body))
"""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.search(r'group="(\w+)"', block)[1])
def test_program_of_the_page_gets_every_message(metaq_broker, tmp_path, block):
    """Topics of its own, filled before; the program ends by itself when all have come."""
    group = re.search(r'group="(\w+)"', block)[1]
    topics = [topic for topic in ("orders", "express", "prices") if f'"{topic}"' in block]
    for topic in topics:
        with Admin(metaq_broker.namesrv) as admin:
            admin.create_topic(f"{topic}-{group}", queues=4)
        with metaq.Producer(metaq_broker.namesrv) as producer:
            for future in [producer.submit(f"{topic}-{group}", b"%d" % number) for number in range(COUNT)]:
                future.result(PATIENCE)
        block = block.replace(f'"{topic}"', f'"{topic}-{group}"')
    program = tmp_path / "program.py"
    harness = HARNESS + (PULLED if "PullConsumer" in block else "")
    program.write_text(harness + block.replace("localhost:9876", metaq_broker.namesrv) + "\nprint('seen', len(seen))\n")
    done = subprocess.run(
        [sys.executable, str(program), str(COUNT * len(topics))], capture_output=True, text=True, timeout=PATIENCE,
        check=False, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[-1] == f"seen {COUNT * len(topics)}"
    if "on_share" in block or "register_topics" in block:
        assert "4" in done.stdout.splitlines()[0]


def _rows(heading: str) -> list[list[str]]:
    table = PAGE.partition(heading)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(
    ("heading", "of"),
    [("| RocketMQ's push consumer |", metaq.Consumer), ("| RocketMQ's pull consumer |", metaq.PullConsumer)],
)
def test_options_of_the_tables_are_there_with_their_defaults(heading, of):
    """Every name in the third column is an argument of the class or of its `run`; one alone has the default of the fourth."""
    known = inspect.signature(of).parameters
    rows = _rows(heading)
    assert len(rows) >= 8
    for _, _, ours, default in rows:
        for name in re.findall(r"`(\w+)`", ours):
            assert name in known, name
            if len(re.findall(r"`(\w+)", ours)) == 1 and known[name].default is not inspect.Parameter.empty:
                assert default.strip(" |") == str(known[name].default), name
        for name in re.findall(r"run\(handler, (\w+)=", ours):
            parameter = inspect.signature(of.run).parameters[name]
            assert default.strip(" |") == str(parameter.default), name


def test_every_option_of_requirement_b1_is_in_a_table():
    """RocketMQ's names of the push and the pull consumer."""
    for name in [
        "consumerGroup",
        "messageModel",
        "consumeFromWhere",
        "allocateMessageQueueStrategy",
        "subscription",
        "messageListener",
        "offsetStore",
        "consumeThreadMin",
        "consumeThreadMax",
        "consumeConcurrentlyMaxSpan",
        "pullThresholdForQueue",
        "pullInterval",
        "pullBatchSize",
        "consumeMessageBatchMaxSize",
        "brokerSuspendMaxTimeMillis",
        "consumerTimeoutMillisWhenSuspend",
        "consumerPullTimeoutMillis",
        "messageQueueListener",
        "registerTopics",
        "consumeTimestamp",
        "maxReconsumeTimes",
        "persistConsumerOffsetInterval",
    ]:
        assert f"`{name}`" in PAGE, name


def test_strategies_and_limits_of_the_page_are_those_of_the_code():
    """By name, and the number of topics."""
    for name in STRATEGIES:
        assert f'`"{name}"`' in PAGE
    assert f"at most {TOPICS_MAX} topics" in PAGE
