"""Session factories for XA, for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from metaq.metaq1.producing.selectors import PartitionSelector
from metaq.metaq1.sessions.base import SessionFactoryBase
from metaq.metaq1.sessions.factory import MetaMessageSessionFactory
from metaq.metaq1.xa.producing import XaProducerBase
from metaq.metaq1.xa.resource import XAMessageProducer

Producer = TypeVar("Producer", bound=XaProducerBase)


class XaSessions(SessionFactoryBase):
    """What the factories of XA producers for threads and for asyncio share."""

    def _xa_producer(
        self, kind: Callable[..., Producer], selector: PartitionSelector | None, unique_qualifier: str | None
    ) -> Producer:
        """Return a new producer of a class. Raises ConfigError, TypeError, ClientClosed, ClientForked."""
        producer = self._adopt(lambda closed: kind(self._core, self._default, selector, closed))
        if unique_qualifier is not None:
            producer.set_unique_qualifier(unique_qualifier)
        return producer


class XAMetaMessageSessionFactory(XaSessions, MetaMessageSessionFactory):
    """A `MetaMessageSessionFactory` that makes XA producers as well (docs/metaq1-transactions.md)."""

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
