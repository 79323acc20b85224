"""All pages of MetaQ 1.x, together."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.broker.metaq1.service import Metaq1Service
from metaq.servers.http.callers import Callers
from metaq.servers.http.metaq1.pages.answers import Guarded
from metaq.servers.http.metaq1.pages.cluster import ClusterPages
from metaq.servers.http.metaq1.pages.config import ConfigPages
from metaq.servers.http.metaq1.pages.process import ProcessPages
from metaq.servers.http.metaq1.pages.topics import TopicPages
from metaq.servers.http.operations import Operation
from metaq.servers.log_lines import LastLines
from metaq.servers.metaq1_stats import StatsBodies


class Metaq1Pages:
    """The pages of one broker. Args: metaq1: its services. callers: finds who asks. stats: of MetaQ 1.x. log: of the process. version: ours."""

    def __init__(
        self, broker: Broker, metaq1: Metaq1Service, callers: Callers, stats: StatsBodies, log: LastLines, version: str
    ) -> None:
        guarded = Guarded(broker, callers)
        config = ConfigPages(broker, metaq1, guarded)
        process = ProcessPages(broker, metaq1, guarded, stats, log, version)
        self._pages = (
            process, config, TopicPages(broker, metaq1, guarded, stats), ClusterPages(broker, metaq1, guarded, stats, config),
        )  # fmt: skip

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [operation for page in self._pages for operation in page.operations()]
