"""For tests of programs that use MetaQ, and of MetaQ itself: a real broker in a second, and faults on demand.

    with metaq.testing.EmbeddedBroker() as broker:
        with metaq.Producer(broker.namesrv) as producer:
            producer.send("orders", b"...")

Under pytest the fixture `metaq_broker` is such a broker (docs/testing.md). Processes only, no containers.
"""

from metaq.clock import FakeClock
from metaq.testing.embedded import EmbeddedBroker
from metaq.testing.faults import FaultyDisk
from metaq.testing.network import FlakyNetwork
from metaq.testing.power import PowerLossDisk

__all__ = ["EmbeddedBroker", "FakeClock", "FaultyDisk", "FlakyNetwork", "PowerLossDisk"]
