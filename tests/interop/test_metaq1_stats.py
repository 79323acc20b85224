"""`metaq meta1 stats` at the original server 1.4.6.2 and at ours: the same figures for the same commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.metaq1 import OriginalServer, OurServer, TextConnection, TextServer, Zookeeper
from tests.support import run_metaq

pytestmark = pytest.mark.interop

TOPICS = {"orders": {"numPartitions": 2, "stat": "true"}, "empty": {"numPartitions": 1}}


@pytest.fixture(params=["original", "ours"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TextServer]:
    if request.param == "ours":
        with OurServer(tmp_path, None, TOPICS) as running:
            yield running
        return
    zookeeper: Zookeeper = request.getfixturevalue("zookeeper")
    with OriginalServer(tmp_path, zookeeper, TOPICS, registry={"zk.zkRoot": "/stats-command"}) as running:
        yield running


def stats(*words: str) -> dict[str, Any]:
    done = run_metaq("meta1", "stats", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_figures_of_a_server(server: TextServer) -> None:
    """Commands, topics with and without data, partitions, recent traffic; of one topic; what there is not."""
    with TextConnection(server.text) as text:
        for number in range(3):
            assert text.ask(f"put orders 1 2 0 {number}", b"hi").code == 200
        assert text.ask("get orders g 1 0 1000 9").code is None
        found = stats(server.text)
        assert (found["broker"]["cmd_put"], found["broker"]["cmd_get"], found["broker"]["slave"]) == (3, 1, False)
        assert found["broker"]["curr_connections"] >= 1
        topics = {one["topic"]: one for one in found["topics"]}
        assert topics["orders"]["messages"] == 3
        assert topics["orders"]["bytes"] == 3 * 22
        assert (topics["orders"]["publish"], topics["orders"]["subscribe"]) == (True, True)
        assert topics["empty"]["messages"] == 0
        bounds = {
            (one["topic"], one["partition"]): (one["min_offset"], one["max_offset"]) for one in found["partitions"]
        }
        assert bounds["orders", 1] == (0, 66)
        assert (found["traffic"]["put"]["events"], found["traffic"]["message_size"]["value"]) == (3, 6)
        one = stats(server.text, "--topic", "orders")
        assert [each["topic"] for each in one["topics"]] == ["orders"]
        assert {each["topic"] for each in one["partitions"]} == {"orders"}
        assert one["traffic"]["put"]["events"] == 3
        shown = run_metaq("meta1", "stats", server.text).stdout
        assert "commands: 3 puts (0 failed), 1 gets" in shown
        gone = run_metaq("meta1", "stats", server.text, "--topic", "nope")
        assert (gone.returncode, gone.stdout) == (3, "")
        assert "there is no topic nope" in gone.stderr
