"""Session factories for XA, for asyncio."""

from __future__ import annotations

from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.factory_async import MetaMessageSessionFactory
from metaq.metaq1.sessions.xa import XaSessions
from metaq.metaq1.xa.resource_async import XAMessageProducer


class XAMetaMessageSessionFactory(XaSessions, MetaMessageSessionFactory):
    """`metaq.metaq1.XAMetaMessageSessionFactory` for asyncio."""

    def create_xa_producer(
        self, selector: PartitionSelector | None = None, *, unique_qualifier: str | None = None
    ) -> XAMessageProducer:
        """Return a new XA producer.

        Args:
            selector: chooses partitions; None: one after the other.
            unique_qualifier: see `XAMessageProducer.unique_qualifier`; None: `XAMessageProducer-` and the host's name.

        Raises ConfigError, TypeError, ClientClosed, ClientForked.
        """
        return self._xa_producer(XAMessageProducer, selector, unique_qualifier)
