"""Session factories for XA, for threads."""

from __future__ import annotations

from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.factory import MetaMessageSessionFactory
from metaq.metaq1.xa.resource import XAMessageProducer


class XAMetaMessageSessionFactory(MetaMessageSessionFactory):
    """A session factory that makes XA producers as well."""

    def create_xa_producer(
        self, selector: PartitionSelector | None = None, *, unique_qualifier: str | None = None
    ) -> XAMessageProducer:
        """Return a new XA producer.

        Args:
            selector: chooses partitions; None: one after the other.
            unique_qualifier: see `XAMessageProducer.unique_qualifier`; None: `XAMessageProducer-` and the host's name.

        Raises ConfigError, TypeError, ClientClosed, ClientForked.
        """
        producer = self._adopt(lambda closed: XAMessageProducer(self._core, self._default, selector, closed))
        if unique_qualifier is not None:
            producer.set_unique_qualifier(unique_qualifier)
        return producer
