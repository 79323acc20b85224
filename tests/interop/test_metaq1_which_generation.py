"""The configuration and the programs of docs/which_generation.md: both generations in one broker, and a group that moves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.metaq1 import ConsumerConfig, Message, MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from metaq.testing import EmbeddedBroker, eventually, free_port
from tests.interop.metaq1 import Zookeeper
from tests.interop.servers import launch
from tests.support import PATIENCE, ROOT, environment, metaq_command, run_metaq

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("metaq1-which-generation")]

PAGE = (ROOT / "docs" / "which_generation.md").read_text()
ZK_ROOT = "/which"


def block(language: str, number: int) -> str:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return textwrap.dedent(found[number][1])


@pytest.fixture(scope="module")
def namesrv(zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker that runs by the page's configuration."""
    folder = tmp_path_factory.mktemp("which")
    with EmbeddedBroker() as names:
        text = block("toml", 0)
        for old, new in (
            ("localhost:9876", names.namesrv),
            ("/data/store", str(folder / "store")),
            ('"localhost:2181"', f'"{zookeeper.address}"\nzkRoot = "{ZK_ROOT}"\nserverPort = {free_port()}'),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        (folder / "metaq.toml").write_text(text)
        command = metaq_command("broker", "-c", str(folder / "metaq.toml"), "--port", "0")
        process, _ = launch(command, folder / "log", r"^ready broker (\S+)", environment())
        try:
            with MetaMessageSessionFactory(config_at(zookeeper)) as factory:
                eventually(lambda: len(factory.get_partitions("orders")) == 4, PATIENCE, what="it is registered")
            yield names.namesrv
        finally:
            process.stop()


def config_at(zookeeper: Zookeeper) -> MetaClientConfig:
    return MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=ZK_ROOT))


def run(text: str, folder: Path, zookeeper: Zookeeper, namesrv: str) -> list[str]:
    text = text.replace('"localhost:2181"', f'"{zookeeper.address}", zk_root="{ZK_ROOT}"')
    (folder / "program.py").write_text(text.replace("localhost:9876", namesrv))
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(HOME=str(folder)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_each_protocol_has_what_was_sent_by_either(namesrv: str, zookeeper: Zookeeper, tmp_path: Path) -> None:
    lines = run(block("python", 0), tmp_path, zookeeper, namesrv)
    assert sorted(lines) == [
        "1.x: a desk paid", "1.x: a lamp paid", "RocketMQ: a desk paid", "RocketMQ: a lamp paid",
    ]  # fmt: skip


def test_a_group_goes_on_by_the_other_protocol(namesrv: str, zookeeper: Zookeeper, tmp_path: Path) -> None:
    """The new group begins with the one message that the old one has not consumed."""
    with MetaMessageSessionFactory(config_at(zookeeper)) as factory:
        consumer = factory.create_consumer(ConsumerConfig("billing", max_delay_fetch_time=0.5))
        billed: list[bytes] = []
        consumer.subscribe("orders", listener=lambda message: billed.append(message.data))
        consumer.complete_subscribe()
        # The last partition holds nothing for the old group: it is the new one's from its first message on.
        producer = factory.create_producer(
            lambda topic, partitions, message: partitions[3 if message.data == b"new" else message.data[-1] % 3]
        )
        producer.publish("orders")
        before = [b"old %d" % number for number in range(8)]
        for body in before:
            producer.send_message(Message("orders", body))
        eventually(lambda: set(before) <= set(billed), PATIENCE)
        consumer.shutdown()
        producer.send_message(Message("orders", b"new"))
    commands = [line.removeprefix("$ metaq ").split() for line in block("console", 0).splitlines()]
    shown, cloned = [run_metaq(*words, "-n", namesrv, "--json") for words in commands]
    assert (shown.returncode, cloned.returncode) == (0, 0), shown.stderr + cloned.stderr
    assert json.loads(shown.stdout)["queues"]
    [given] = [words[-1] for words in commands if words[1] == "clone"]
    with Admin(namesrv) as admin:
        old, new = admin.group_progress("billing"), admin.group_progress(given)
        assert [(one.queue, one.consumed) for one in new.queues] == [(one.queue, one.consumed) for one in old.queues]
        assert (len(new.queues), new.lag) == (4, 1)
    with metaq.Consumer(namesrv, group=given, topics="orders") as consumer:
        message = next(iter(consumer))
        assert message.body == b"new"
        message.ack()
