"""Senders beside each other at one server: as processes, and at the same moment."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

import metaq
from metaq.outbox import Outbox
from metaq.outbox import table as tables
from metaq.sql.statements import statements_of, version_skips_locked
from tests.outbox.databases import connect, run, running
from tests.support import environment

pytestmark = pytest.mark.slow

MESSAGES = 300
SERVERS = ["mysql", "mariadb", "postgresql"]
"""MariaDB 10.2, which cannot pass over locked rows, one of today, and PostgreSQL."""


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=pytest.mark.interop) for kind in SERVERS])
def server(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("database")) as url:
        with contextlib.closing(connect(url)) as connection:
            Outbox().create_table(connection)
        yield request.param, url


def filled(url, topic, count):
    """Messages of three lanes, and of none."""
    outbox = Outbox()
    with contextlib.closing(connect(url)) as connection:
        run(connection, "DELETE FROM metaq_outbox")
        for number in range(count):
            key = [None, "a", "b", "c"][number % 4]
            outbox.add(connection, metaq.Message(topic, f"{key}-{number:03}".encode()), ordering_key=key)
        connection.commit()


def test_two_processes_send_each_message_once(server, metaq_broker):
    """Both do work, and each lane is in order."""
    kind, url = server
    topic = f"senders-{kind}"
    filled(url, topic, MESSAGES)
    command = [sys.executable, str(Path(__file__).with_name("sender_child.py")), url, metaq_broker.namesrv]
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment(PYTHONPATH=":".join(sys.path)),
                )
            )
            for _ in range(2)
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 2
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        shares = [int(child.stdout.readline()) for child in children]
    assert sum(shares) == MESSAGES
    assert min(shares) > 0
    with metaq.Reader(metaq_broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        bodies = [message.body.decode() for message in reader]
    assert len(set(bodies)) == len(bodies) == MESSAGES
    for lane in "abc":
        mine = [body for body in bodies if body.startswith(lane)]
        assert mine == sorted(mine)


def lease(connection, owner):
    on = statements_of(connection)
    assert tables.lease(on, "metaq_outbox", ["rocketmq"], owner, 60.0, 5, skips_locked=on.skips_locked())


def leased(connection, owner):
    return {entry.position for entry in tables.leased(statements_of(connection), "metaq_outbox", owner)}


def test_the_second_of_two_at_one_moment_takes_other_rows(server):
    """While the first one's transaction is open; and rows that are being added stop neither."""
    kind, url = server
    filled(url, "any", 40)
    with contextlib.ExitStack() as stack:
        first, second, adding = (stack.enter_context(contextlib.closing(connect(url))) for _ in range(3))
        if kind == "mysql":
            assert not statements_of(first).skips_locked()
            return
        Outbox().add(adding, metaq.Message("any", b"later"))
        lease(first, "1")
        lease(second, "2")
        second.commit()
        first.commit()
        mine, others = leased(first, "1"), leased(second, "2")
        assert len(mine) == len(others) == 5
        assert not mine & others


@pytest.mark.parametrize(
    ("version", "skips"),
    [
        ("10.2.11-MariaDB", False),
        ("10.5.28-MariaDB-log", False),
        ("10.6.0-MariaDB", True),
        ("11.4.5-MariaDB-ubu2404", True),
        ("5.7.44-log", False),
        ("8.0.1-dmr", True),
        ("8.4.3", True),
    ],
)
def test_versions(version, skips):
    assert version_skips_locked(version) is skips
