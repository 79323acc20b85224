"""The session factory whose consumers get every message on every machine."""

from __future__ import annotations

from metaq.metaq1.config import ConsumerConfig
from metaq.metaq1.consuming.consumer import MessageConsumer
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.consuming.rejecting import LOCAL, RejectConsumptionHandler
from metaq.metaq1.sessions.factory import MetaMessageSessionFactory
from metaq.metaq1.storages.storage import OffsetStorage


class MetaBroadcastMessageSessionFactory(MetaMessageSessionFactory):
    """A `MetaMessageSessionFactory` that makes broadcast consumers, too."""

    def create_broadcast_consumer(
        self,
        config: ConsumerConfig,
        offset_storage: OffsetStorage | None = None,
        *,
        recover: str | RejectConsumptionHandler = LOCAL,
        message_ids: MessageIdCache | None = None,
    ) -> MessageConsumer:
        """Return a consumer that shares partitions with those of its group on this machine alone, whose group carries its address.

        Its offsets are in the file `offsets_path`, unless `offset_storage` is given. Arguments and errors as of `create_consumer`.
        """
        return self._consumer(MessageConsumer, config, offset_storage, recover, message_ids, broadcast=True)
