"""What a broker has to serve clients of MetaQ 1.x, put together: partitions, their fast path, transactions, retention.

A broker imports it when it is made with settings for 1.x: the modules take 0.7 MB, and most brokers serve no such clients.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq.broker.environment import Environment, Tables
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.log.acks import AckPolicy
from metaq.broker.log.appender import Appender
from metaq.broker.log.long_polling import HeldPulls
from metaq.broker.metaq1.fast_path import PartitionFastPath
from metaq.broker.metaq1.filters import MakeFilterHelper
from metaq.broker.metaq1.for_slaves import PositionsForSlaves
from metaq.broker.metaq1.neighbours import Neighbours
from metaq.broker.metaq1.pair.commits import WholeCommits
from metaq.broker.metaq1.pair.gregor import Gregor
from metaq.broker.metaq1.pair.samsa import Samsa
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.position_bases import Bases
from metaq.broker.metaq1.progress import PartitionProgress
from metaq.broker.metaq1.retention import Metaq1Retention
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.broker.metaq1.transactions import Metaq1Transactions
from metaq.broker.part import BrokerPart
from metaq.broker.replication.replicas import Replicas
from metaq.broker.staged.service import StagingService
from metaq.model.metaq1.pair import SamsaSettings
from metaq.options import Settings


class Metaq1Service:
    """The services of one broker for MetaQ 1.x.

    Args:
        options: the broker's, which the fast path has to follow.
        make_filter_helper: starts a process that evaluates filters; None: none is started.
        call_soon: brings a call from another thread to the thread that owns the broker.
    """

    def __init__(
        self,
        environment: Environment,
        tables: Tables,
        appender: Appender,
        acks: AckPolicy,
        held_pulls: HeldPulls,
        staging: StagingService,
        gatekeeper: Gatekeeper,
        replicas: Replicas,
        *,
        settings: Metaq1Settings,
        options: Settings,
        make_filter_helper: MakeFilterHelper | None,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self.settings = settings
        self.bases = bases = Bases(environment, appender, tables.topics.closed, call_soon)
        self.progress = PartitionProgress(environment.clock, tables.topics, bases)
        self.neighbours: Neighbours | None = None
        """What the registry knows beside this broker; None: it is registered nowhere."""
        self.partitions = Partitions(
            environment, tables, appender, acks, bases, settings, gatekeeper, make_filter_helper=make_filter_helper
        )
        self.fast_path = PartitionFastPath(environment, settings, appender, held_pulls, bases, self.partitions)
        self.transactions = Metaq1Transactions(
            environment, staging, acks, self.partitions, self.partitions.acks.stored, settings, self.partitions.leading
        )
        self.samsa: Samsa | None = None
        """This broker is the master of a synchronous pair."""
        self.gregor: Gregor | None = None
        """It is the slave of one."""
        if isinstance(settings.pair, SamsaSettings):
            self.samsa = Samsa(
                environment, appender, bases, self.partitions, settings.pair, settings.options.broker_id, call_soon
            )
            acks.wait_for(self.samsa)
            self.transactions.whole, self.transactions.copies = WholeCommits(staging), self.samsa.branches
        elif settings.pair is not None:
            self.gregor = Gregor(self.partitions, self.transactions, appender)
        # A gate that stays open would append to a topic or partition that is deleted, closed or limited otherwise by now.
        tables.topics.watch(self.fast_path.close)
        tables.closed_partitions.when_changed(self.fast_path.close)
        options.watch(self.fast_path.options_changed)
        retention = Metaq1Retention(environment.store, settings, bases, call_soon)
        self.archives = retention.archives
        """Whether a topic's messages are archived before they go."""
        self.parts: tuple[BrokerPart, ...] = (
            self.partitions,
            PositionsForSlaves(environment, replicas, self.partitions, bases, settings),
            retention,
            self.transactions,
            self.partitions.filters,
            *((self.samsa,) if self.samsa is not None else ()),
        )
        """In the order in which they are opened, behind `bases`."""
