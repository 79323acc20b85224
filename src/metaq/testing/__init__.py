"""For tests of programs that use MetaQ, and of MetaQ itself: a real broker in a second, and faults on demand.

    with metaq.testing.EmbeddedBroker() as broker:
        with metaq.Producer(broker.namesrv) as producer:
            producer.send("orders", b"...")

Under pytest the fixture `metaq_broker` is such a broker (docs/testing.md). `Cluster` is several brokers and name servers,
with a network between them that can fail. Processes only, no containers.
"""

from metaq.clock import Clock, FakeClock
from metaq.testing.cluster import Cluster
from metaq.testing.embedded import EmbeddedBroker
from metaq.testing.faults import FaultyDisk
from metaq.testing.network import FlakyNetwork, NetworkLink, NetworkThread
from metaq.testing.ports import free_port
from metaq.testing.power import PowerLossDisk
from metaq.testing.process import ServerDied
from metaq.testing.servers import ClusterServer
from metaq.testing.waiting import eventually
from metaq.testing.ways import NetworkWay
from metaq.testing.zookeeper import ZookeeperServer

__all__ = [
    "Clock",
    "Cluster",
    "ClusterServer",
    "EmbeddedBroker",
    "FakeClock",
    "FaultyDisk",
    "FlakyNetwork",
    "NetworkLink",
    "NetworkThread",
    "NetworkWay",
    "PowerLossDisk",
    "ServerDied",
    "ZookeeperServer",
    "eventually",
    "free_port",
]
