"""Offsets in a real ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from metaq.errors import ClientError, ConfigError, ConnectionFailed
from metaq.metaq1 import MetaClientConfig, MetaMessageSessionFactory, Partition, ZKConfig
from metaq.metaq1.storages.storage import BulkLoading, StoredOffset, load_all
from metaq.metaq1.storages.zookeeper import ZookeeperOffsetStorage
from metaq.registry.zookeeper.session import Session
from metaq.testing import eventually
from tests.interop.metaq1 import Zookeeper
from tests.support import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

_roots = (f"/offsets-{number}" for number in itertools.count())
P0, P1 = Partition(0, 0), Partition(0, 1)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    with Zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def root() -> str:
    return next(_roots)


@pytest.fixture
def factory(zookeeper: Zookeeper, root: str) -> Iterator[MetaMessageSessionFactory]:
    config = MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root))
    with MetaMessageSessionFactory(config) as made:
        yield made


@pytest.fixture
def storage(factory: MetaMessageSessionFactory) -> ZookeeperOffsetStorage:
    return ZookeeperOffsetStorage(factory._core)


def test_offsets_as_java_has_them(storage, zookeeper, root):
    """The text is id-offset; parents are made; ids may be negative."""
    assert isinstance(storage, BulkLoading)
    assert storage.load("t", "g", P0) is None
    storage.init_offset("t", "g", P0, 5)
    assert storage.load("t", "g", P0) is None
    first, second = StoredOffset("t", P0, 103, -5468926395948204032), StoredOffset("t", P1, 1024)
    storage.commit_offset("g", [first, second])
    with zookeeper.nodes() as nodes:
        tree = nodes.tree(f"{root}/consumers/g/offsets")
    assert tree[f"{root}/consumers/g/offsets/t"] == (None, False)
    assert tree[f"{root}/consumers/g/offsets/t/0-0"] == ("-5468926395948204032-103", False)
    assert tree[f"{root}/consumers/g/offsets/t/0-1"] == ("-1-1024", False)
    assert load_all(storage, "g", [("t", P0), ("t", P1), ("u", P0)]) == {("t", P0): first, ("t", P1): second}
    storage.close()


@pytest.mark.parametrize(
    ("text", "offset", "message_id"),
    [("77", 77, -1), ("0-9223372036854775807", 2**63 - 1, 0), ("-1-0", 0, -1), ("-7-5", 5, -7), ("12-34", 34, 12)],
)
def test_offsets_of_others(storage, zookeeper, root, text, offset, message_id):
    """Of Java's clients, of those before 1.4, of the dashboard's skip, of a slave that took over."""
    with zookeeper.nodes() as nodes:
        nodes.client.create(f"{root}/consumers/g/offsets/t/0-0", text.encode(), makepath=True)
        assert storage.load("t", "g", P0) == StoredOffset("t", P0, offset, message_id)


@pytest.mark.parametrize("text", ["", "x", "1-x", "-5"])
def test_a_node_that_says_something_else(storage, zookeeper, root, text):
    with zookeeper.nodes() as nodes:
        nodes.client.create(f"{root}/consumers/g/offsets/t/0-0", text.encode(), makepath=True)
        with pytest.raises(ConfigError, match=f"{root}/consumers/g/offsets/t/0-0 in ZooKeeper says '{text}'"):
            storage.load("t", "g", P0)


def test_only_what_has_changed_is_written(storage, monkeypatch):
    """Until it is loaded again, since it was perhaps somebody else's in between."""
    written = []
    original = Session.write_all

    def write_all(self: Session, nodes: dict[str, str]) -> None:
        written.append(len(nodes))
        original(self, nodes)

    monkeypatch.setattr(Session, "write_all", write_all)
    first, second = StoredOffset("t", P0, 1), StoredOffset("t", P1, 1)
    storage.commit_offset("g", [first, second])
    storage.commit_offset("g", [first, second])
    storage.commit_offset("g", [first, StoredOffset("t", P1, 2)])
    storage.commit_offset("g", [])
    assert written == [2, 1]
    storage.load("t", "g", P0)
    storage.commit_offset("g", [first])
    assert written == [2, 1, 1]


def test_a_thousand_partitions(storage):
    """More than are asked for at a time."""
    offsets = [StoredOffset("t", Partition(3, number), number + 1, number) for number in range(1200)]
    storage.commit_offset("g", offsets)
    found = load_all(storage, "g", [("t", Partition(3, number)) for number in range(1300)])
    assert list(found.values()) == offsets


def test_a_negative_offset_is_refused(storage):
    with pytest.raises(ValueError, match="offset -1 of t 0-0"):
        storage.commit_offset("g", [StoredOffset("t", P0, -1)])


def test_where_it_does_not_work(storage, factory):
    """In the loop, which must not wait; in a factory with a fixed server."""

    async def in_the_loop() -> None:
        storage.load("t", "g", P0)

    with pytest.raises(ClientError, match="waits"):
        factory._core.run(in_the_loop)
    url = MetaClientConfig(server_url="meta://127.0.0.1:1")
    with MetaMessageSessionFactory(url) as fixed, pytest.raises(ConfigError, match="fixed server"):
        ZookeeperOffsetStorage(fixed._core)


def test_while_zookeeper_is_away(tmp_path, root):
    """A commit fails, and the next one writes what has changed since the last that did not."""
    with Zookeeper(tmp_path) as own:
        config = ZKConfig(zk_connect=own.address, zk_root=root, zk_connection_timeout=0.5)
        with MetaMessageSessionFactory(MetaClientConfig(zk_config=config)) as factory:
            storage = ZookeeperOffsetStorage(factory._core)
            eventually(lambda: storage.commit_offset("g", [StoredOffset("t", P0, 1)]) is None, PATIENCE)
            own.stop()
            with pytest.raises(ConnectionFailed, match=f"ZooKeeper {own.address}"):
                storage.commit_offset("g", [StoredOffset("t", P0, 2)])
            own.start()
            eventually(lambda: storage.commit_offset("g", [StoredOffset("t", P0, 2)]) is None, PATIENCE)
            assert storage.load("t", "g", P0) == StoredOffset("t", P0, 2)
