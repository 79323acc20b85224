"""`metaq broker promote|demote|status` on broker processes, through kill -9 and SIGSTOP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import metaq
from metaq.testing.embedded import SMALL
from metaq.testing.process import ServerProcess, option_flags
from tests.support import PATIENCE, eventually, kept_port, run_metaq

pytestmark = pytest.mark.slow

OPTIONS = {
    **SMALL, "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "vipPortEnable": "false", "brokerName": "pair",
    "registerNameServerPeriod": "1000",
}  # fmt: skip


class Server(ServerProcess):
    """A process, by its arguments."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        super().__init__(name, folder / f"{name}.log")
        self.words = words

    def _arguments(self) -> Sequence[str]:
        return self.words

    def start(self) -> None:
        self.launch()
        self.wait_ready()


class Pair:
    """A name server, a master `a` and a slave `b`."""

    def __init__(self, folder: Path) -> None:
        self.namesrv = f"127.0.0.1:{kept_port(self)}"
        self.names = Server(
            "namesrv", folder, ["namesrv", "--data", str(folder / "names"), "--port", self.namesrv.rpartition(":")[2]]
        )
        roles = {"a": {}, "b": {"brokerRole": "SLAVE", "brokerId": "1"}}
        self.brokers = {
            name: Server(
                name, folder,
                ["broker", "--data", str(folder / name), "-n", self.namesrv, "--port", str(kept_port(self, 1)), *option_flags({**OPTIONS, **more})],
            )
            for name, more in roles.items()
        }  # fmt: skip

    def status(self) -> dict[int, dict[str, Any]]:
        """Broker id → what is told of it."""
        done = run_metaq("broker", "status", "pair", "-n", self.namesrv, "--json")
        found = json.loads(done.stdout) if done.stdout else []
        return {one["broker_id"]: one for one in found if not one["error"]}

    def is_even(self) -> bool:
        """Whether one leads, the other follows, and both logs are as long."""
        status = self.status()
        return len(status) == 2 and status[0]["state"]["leads"] and status[0]["log_end"] == status[1]["log_end"]

    def leader(self) -> str:
        """The name of the one that leads, of two that answer."""
        address = next(one["address"] for one in self.status().values() if one["state"]["leads"])
        return next(name for name in self.brokers if self.address(name) == address)

    def other(self, name: str) -> str:
        return next(one for one in self.brokers if one != name)

    def address(self, name: str) -> str:
        words = self.brokers[name].words
        return f"127.0.0.1:{words[words.index('--port') + 1]}"

    def promote(self, *flags: str) -> str:
        done = run_metaq("broker", "promote", "pair", "-n", self.namesrv, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    servers = [pair.names, *pair.brokers.values()]
    try:
        for server in servers:
            server.start()
        yield pair
    finally:
        for server in reversed(servers):
            if server.alive:
                server.kill()


def test_a_pair_of_processes_changes_leaders_by_hand(pair):
    """In order, then behind a master that was killed, then behind one that sleeps and wakes up beside its successor."""
    sent = list[bytes]()

    def send(count: int) -> None:
        with metaq.Producer(pair.namesrv, timeout=PATIENCE, retries=100) as producer:
            for _ in range(count):
                sent.append(b"%d" % len(sent))
                producer.send("orders", sent[-1])

    send(20)
    assert run_metaq("broker", "status", "pair", "-n", pair.namesrv, "--wait").returncode == 0
    assert pair.is_even()
    assert "leads pair as ASYNC_MASTER in epoch 1" in pair.promote()
    eventually(pair.is_even, what="the old master follows")
    send(20)
    eventually(pair.is_even, what="the old master has all")
    # b leads. It is killed, and a leads on.
    pair.brokers["b"].kill()
    refused = run_metaq("broker", "promote", "pair", "-n", pair.namesrv)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert "epoch 2" in pair.promote("--force")
    send(20)
    pair.brokers["b"].start()
    eventually(pair.is_even, what="b follows")
    # a leads. It sleeps, b is promoted, and a wakes up.
    pair.brokers["a"].pause()
    assert "epoch 3" in pair.promote("--force")
    send(20)
    pair.brokers["a"].resume()
    eventually(pair.is_even, what="the sleeper follows")
    assert "has stepped down" in pair.brokers["a"].log.read_text()
    table = run_metaq("broker", "status", "pair", "-n", pair.namesrv)
    assert table.returncode == 0
    assert [line.split()[3] for line in table.stdout.splitlines()[1:3]] == ["ASYNC_MASTER", "SLAVE"]
    got = set[bytes]()
    with metaq.Consumer(pair.namesrv, group="g", topics="orders", start="earliest") as consumer:
        for message in consumer:
            with message:
                got.add(message.body)
            if got == set(sent):
                return


def test_nobody_leads_behind_a_master_that_has_stepped_down(pair):
    """Until somebody is promoted; the commands say so."""
    with metaq.Producer(pair.namesrv, timeout=PATIENCE, retries=100) as producer:
        producer.send("orders", b"1")
    eventually(pair.is_even, what="the slave has all")
    done = run_metaq("broker", "demote", "pair", "-n", pair.namesrv)
    assert done.returncode == 0, done.stderr
    assert "pair has no master until a slave is promoted" in done.stdout
    eventually(lambda: set(pair.status()) == {1, 2}, what="both are slaves")
    table = run_metaq("broker", "status", "pair", "-n", pair.namesrv)
    assert "there is no master" in table.stdout
    pair.promote("--id", "2", "--force")
    eventually(pair.is_even, what="one leads, and the other follows")


def test_a_broker_that_is_not_there_is_named(pair):
    """Exit code 3, as for topics."""
    for command in ("status", "promote", "demote"):
        done = run_metaq("broker", command, "other", "-n", pair.namesrv)
        assert (done.returncode, "no broker other" in done.stderr) == (3, True), done
