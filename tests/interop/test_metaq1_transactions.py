"""XA by the XAResource of MetaQ's Java client 1.4.6.2, over a kill -9 of our broker and past an operator's hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import metaq
from metaq.errors import BrokerError
from tests.interop.driver import DriverError, Event
from tests.interop.metaq1 import Metaq1Client, OurServer, Zookeeper
from tests.interop.servers import MetaqNamesrv
from tests.support import eventually, run_metaq

pytestmark = pytest.mark.interop

_roots = (f"/tx-{number}" for number in itertools.count())
TOPICS = ["orders", "stock"]


def bodies(events: list[Event]) -> list[str]:
    return sorted(event["body"] for event in events if event["event"] == "message")


def test_branches_are_in_doubt_over_a_kill_and_end_by_their_manager_or_by_hand(
    java1: Metaq1Client, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """Two topics, two branches: one is recovered and committed, an operator ends the other, and the manager is told."""
    root, namesrv = next(_roots), MetaqNamesrv(tmp_path)
    namesrv.start()
    server = OurServer(
        tmp_path, zookeeper, {topic: {"numPartitions": 2} for topic in TOPICS}, registry={"zk.zkRoot": root}
    )
    server.options = [f"namesrvAddr={namesrv.address}"]
    try:
        with server:
            java1.factory("tx", zookeeper.address, root=root, kind="xa")
            java1.publisher("p", "tx", TOPICS, qualifier="kill")
            java1.subscriber("c", "tx", f"tx{root.replace('/', '-')}", dict.fromkeys(TOPICS, 1 << 20), max_delay_ms=50)
            for branch in ("b1", "b2"):
                java1.xa("p", "start", branch)
                for topic in TOPICS:
                    sent = java1.send("p", topic, [f"{branch} {topic} {number}" for number in range(4)])
                    assert [(one["ok"], one["offset"]) for one in sent] == [(True, -1)] * 4
                java1.xa("p", "end", branch)
                assert java1.xa("p", "prepare", branch) == 0
            server.kill()
            server.start()

            def recovered() -> bool:
                try:
                    return sorted(java1.xa("p", "recover")) == ["7:g:b1", "7:g:b2"]
                except DriverError:  # it has not connected again
                    return False

            eventually(recovered, what="Java's client sees the branches again")
            assert _read(namesrv.address) == [], "nothing of what is in doubt is there"
            java1.xa("p", "commit", "b1")
            wanted = sorted(f"b1 {topic} {number}" for topic in TOPICS for number in range(4))
            assert bodies(java1.wait("c", 8)) == wanted
            assert _read(namesrv.address) == wanted
            key = next(line for line in _tx(server, "list").split() if line.startswith("XID:"))
            assert "rolled back" in _tx(server, "rollback", key, "--yes")
            with pytest.raises(DriverError) as told:
                java1.xa("p", "commit", "b2")
            assert told.value.code == 6  # XA_HEURRB
            assert java1.xa("p", "recover") == ["7:g:b2"]
            java1.xa("p", "forget", "b2")
            assert java1.xa("p", "recover") == []
            assert _read(namesrv.address) == wanted
    finally:
        namesrv.stop()


def _tx(server: OurServer, *words: str) -> str:
    done = run_metaq("meta1", "tx", *words, "--broker", server.broker)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _read(namesrv: str) -> list[str]:
    """What a client of RocketMQ's protocol finds."""
    found = []
    for topic in TOPICS:
        try:
            with metaq.Reader(namesrv, topic, stop_at_end=True) as reader:
                found += [message.body.decode() for message in reader]
        except BrokerError as error:
            raise AssertionError(f"{topic}: {error}") from error
    return sorted(found)
