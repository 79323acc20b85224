"""A filter at our broker, and MetaQ's own Java client: it gets what is accepted, once, to the end."""

from pathlib import Path

import pytest

from tests.interop.metaq1 import Metaq1Client, OurServer, Zookeeper

pytestmark = pytest.mark.interop

FILTER = """\
class Wanted:
    def accept(self, group, message):
        return message.body.startswith(b"wanted") or message.attribute == "blue"
"""


def test_a_java_consumer_gets_what_its_group_filter_accepts(
    java1: Metaq1Client, zookeeper: Zookeeper, tmp_path: Path
) -> None:
    """Frames of many sizes, of which one in seven is accepted, in a run now and then: the original hangs on those. Another
    group gets everything."""
    (tmp_path / "java_filters.py").write_text(FILTER)
    topics = {"sifted": {"group.sifted-odd": "java_filters:Wanted"}}
    registry, system = {"zk.zkRoot": "/filters"}, {"appClassPath": tmp_path}
    with OurServer(tmp_path / "server", zookeeper, topics, system, registry=registry):
        java1.factory("filtered", zookeeper.address, root="/filters")
        java1.publisher("fp", "filtered", ["sifted"])
        bodies = [
            f"{'wanted' if number % 7 in (0, number % 3) else 'not'}-{'x' * (number * 13 % 90)}{number}"
            for number in range(150)
        ]
        java1.send("fp", "sifted", bodies)
        java1.send("fp", "sifted", ["by its attribute"], attribute="blue")
        java1.subscriber("fc", "filtered", "sifted-odd", {"sifted": 1 << 20}, max_delay_ms=10)
        java1.subscriber("fa", "filtered", "sifted-all", {"sifted": 1 << 20}, max_delay_ms=10)
        accepted = [body for body in bodies if body.startswith("wanted")] + ["by its attribute"]
        assert [one["body"] for one in java1.wait("fc", len(accepted))] == accepted
        assert [one["body"] for one in java1.wait("fa", 151)] == [*bodies, "by its attribute"]
