"""Ordered producers in Python at the original server 1.4.6.2 and at ours, found in ZooKeeper: order over the server's kill -9."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from metaq.metaq1 import (
    Message,
    MetaMessageSessionFactory,
    OrderedMetaMessageSessionFactory,
)
from metaq.testing import eventually
from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper
from tests.interop.metaq1_python import PACE, config_of, until_registered
from tests.metaq1.stored import read
from tests.support import PATIENCE

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kind", [OriginalServer, OurServer])
def test_order_over_a_kill_of_the_server(kind: type[TextServer], zookeeper: Zookeeper, tmp_path: Path) -> None:
    """Three keys, each with a partition and a thread: every message is there, each key's in order. One may stand there twice, whose
    answer the kill took away."""
    root = f"/ordered-{kind.__name__}"
    config = config_of(
        zookeeper, root, tmp_path, partitions_info={"topic.num.t": "0:3"}, local_message_path=str(tmp_path / "local"),
        recover_message_interval=0.2, save_to_local_when_failed=True,
    )  # fmt: skip
    local, go_on = threading.Event(), threading.Event()
    ends: dict[int, int] = {}
    with kind(tmp_path / "store", zookeeper, {"t": {"numPartitions": 3}}, registry={"zk.zkRoot": root}) as server:
        with MetaMessageSessionFactory(config, pace=PACE) as looking:
            until_registered(looking, "t", 3)
        with OrderedMetaMessageSessionFactory(config, pace=PACE) as factory:
            producer = factory.create_producer(lambda _topic, partitions, message: partitions[int(message.data[:1])])
            producer.publish("t")

            def send(key: int) -> None:
                number = after = 0
                while after < 50:
                    if producer.send_message(Message("t", b"%d-%06d" % (key, number))).text:
                        local.set()
                    number += 1
                    after += go_on.is_set()
                ends[key] = number

            threads = [threading.Thread(target=send, args=(key,)) for key in range(3)]
            for thread in threads:
                thread.start()
            eventually(lambda: len(read(server.text, "t", 2)) > 100)
            server.kill()
            assert local.wait(PATIENCE)
            with MetaMessageSessionFactory(config, pace=PACE) as looking:
                # The original does not register while ZooKeeper still has the nodes of the server that was killed.
                eventually(lambda: not looking.get_partitions("t"), what="the server is gone from ZooKeeper")
            server.start()
            go_on.set()
            for thread in threads:
                thread.join()
            assert factory._backlog is not None
            eventually(lambda: factory._backlog.get().waiting == 0)
        for key in range(3):
            found = list(dict.fromkeys(all_of(server.text, key)))
            assert found == [b"%d-%06d" % (key, number) for number in range(ends[key])]


def all_of(address: str, partition: int) -> list[bytes]:
    """All bodies, over as many gets as it takes."""
    from metaq.wire.metaq1.frame import HEAD_BYTES, frames
    from tests.interop.metaq1 import TextConnection

    found: list[bytes] = []
    offset = 0
    with TextConnection(address) as text:
        while (answer := text.ask(f"get t test {partition} {offset} 1048576 1")) is not None and answer.code is None:
            bodies = [one.body for one in frames(answer.body)]
            found += bodies
            offset += sum(HEAD_BYTES + len(body) for body in bodies)
    return found
