"""The handler whose records go to MetaQ 1.x, at a running server and at none."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import socket
import subprocess
import sys

import pytest

import metaq
from metaq.errors import ConfigError, InvalidMessage
from metaq.metaq1 import MetaClientConfig
from metaq.testing import free_port
from tests.interop.metaq1 import OurServer
from tests.metaq1.stored import read
from tests.support import PATIENCE, environment

pytestmark = pytest.mark.slow

TOPICS = [f"logs{number}" for number in range(20)]
_names = iter(TOPICS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with OurServer(
        tmp_path_factory.mktemp("metaq1"), None, {topic: {"numPartitions": 1} for topic in TOPICS}
    ) as running:
        yield running


@pytest.fixture
def url(server):
    return f"meta://{server.text}"


@pytest.fixture
def topic():
    return next(_names)


@pytest.fixture
def logger():
    """One of its own, which nobody else hears."""
    made = logging.Logger("shop.orders")  # noqa: LOG001  nobody else is to hear it
    yield made
    for handler in list(made.handlers):
        handler.close(0.1)


def texts(server, topic):
    return [json.loads(body)["message"] for _, _, body in read(server.text, topic, 0)]


def test_a_record_becomes_a_message(server, url, topic, logger):
    """JSON body with the service, level as attribute; nothing is lost, counted or left."""
    handler = metaq.MetaQ1Handler(server_url=url, topic=topic, service="shop")
    logger.addHandler(handler)
    logger.warning("order %d is late", 17, extra={"order": 17})
    logger.log(15, "no name")
    assert handler.flush(PATIENCE)
    (_, attribute, body), (_, unnamed, _) = read(server.text, topic, 0)
    found = json.loads(body)
    assert (found["message"], found["level"], found["service"]) == ("order 17 is late", "WARNING", "shop")
    assert found["extra"] == {"order": 17}
    assert (attribute, unnamed) == (b"WARNING", b"Level-15")
    assert (handler.sent, handler.waiting, handler.dropped, handler.topic) == (2, 0, {}, topic)


def test_records_wait_while_no_server_answers(tmp_path, topic, logger, caplog):
    """It is said, and they arrive, each once, when there is one."""
    server = OurServer(tmp_path, None, {topic: {"numPartitions": 1}})
    handler = metaq.MetaQ1Handler(server_url=f"meta://{server.text}", topic=topic)
    logger.addHandler(handler)
    with caplog.at_level(logging.WARNING, "metaq.logging_handler"):
        for number in range(10):
            logger.info("%d", number)
        assert not handler.flush(0.5)
    assert handler.waiting == 10
    with server:
        assert handler.flush(PATIENCE)
        assert texts(server, topic) == [str(number) for number in range(10)]
    assert f"log records cannot be sent to topic {topic}" in caplog.text


def test_what_is_left_at_the_close_is_counted(topic, logger):
    """The close keeps its time, though nothing answers."""
    handler = metaq.MetaQ1Handler(server_url="meta://127.0.0.1:1", topic=topic)
    logger.addHandler(handler)
    logger.info("lost")
    handler.close(0.2)
    assert handler.dropped == {"closed": 1}


def test_a_record_that_is_too_long_is_cut(server, url, topic, logger):
    """To what a server hands out again; it stays an object."""
    handler = metaq.MetaQ1Handler(MetaClientConfig(server_url=url, max_message_bytes=4096), topic=topic)
    logger.addHandler(handler)
    logger.info("x" * 10_000)
    assert handler.flush(PATIENCE)
    [(_, _, body)] = read(server.text, topic, 0)
    assert len(body) <= 4096
    assert json.loads(body)["message"].startswith("xxx")
    assert handler.shortened == 1


def test_a_program_that_ends_early_is_told_why_its_records_are_lost():
    """Once, and which ZooKeeper: where nobody listens, and where somebody does and never answers."""
    pytest.importorskip("kazoo")
    program = """
import logging, metaq, sys
logging.getLogger().addHandler(metaq.MetaQ1Handler(zk_connect=sys.argv[1]))
logging.warning("hello")
"""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        silent, nowhere = (f"127.0.0.1:{port}" for port in (listening.getsockname()[1], free_port()))
        running = [
            subprocess.Popen(
                [sys.executable, "-c", program, address], stderr=subprocess.PIPE, text=True, env=environment()
            )
            for address in (silent, nowhere)
        ]
        told = [one.communicate(timeout=PATIENCE)[1] for one in running]
    for address, text in zip((silent, nowhere), told, strict=True):
        assert f"ZooKeeper {address} cannot be reached within 4 s" in text
        lines = text.splitlines()
        assert len([line for line in lines if "are lost" in line]) == 1, text
        assert all(line.startswith("metaq.logging_handler: ") for line in lines), text
    assert "refused" in told[1]


@pytest.mark.parametrize("first", ["import metaq.metaq1, metaq", "import metaq; metaq.MetaQHandler"])
def test_the_end_of_the_program_sends_what_waits(server, url, topic, first):
    """Whichever client was loaded first: session factories are still open then. Also in a forked child."""
    program = f"""
{first}
import logging, os
logging.getLogger().addHandler(metaq.MetaQ1Handler(server_url={url!r}, topic={topic!r}, linger=2.0))
logging.warning("parent")
if (pid := os.fork()) == 0:
    logging.warning("child")
else:
    os.waitpid(pid, 0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(texts(server, topic)) == ["child", "parent"]


def test_a_configuration_names_it(server, url, topic):
    """`dictConfig` has texts alone."""
    handlers = {"topic": {"class": "metaq.logging_handler.metaq1.MetaQ1Handler", "server_url": url, "topic": topic}}
    loggers = {"shop.by_configuration": {"handlers": ["topic"], "level": "INFO", "propagate": False}}
    logging.config.dictConfig(
        {"version": 1, "disable_existing_loggers": False, "handlers": handlers, "loggers": loggers}
    )
    logger = logging.getLogger("shop.by_configuration")
    [handler] = logger.handlers
    logger.info("configured by %d", os.getpid())
    handler.close(PATIENCE)
    assert texts(server, topic) == [f"configured by {os.getpid()}"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ConfigError, "give one of config, zk_connect and server_url"),
        ({"server_url": "meta://a:1", "zk_connect": "b:2"}, ConfigError, "give one of"),
        ({"server_url": "meta://a:b"}, ConfigError, "is no address"),
        ({"server_url": "meta://a:1", "topic": "no topic"}, InvalidMessage, "without blanks"),
        ({"server_url": "meta://a:1", "buffer_records_max": 0}, ConfigError, "need at least 1"),
        ({"config": "meta://a:1"}, TypeError, "pass a MetaClientConfig"),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments, error, text):
    with pytest.raises(error, match=text):
        metaq.MetaQ1Handler(**arguments)
