"""Registration of a broker at a name server (103, 104)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from metaq.client.conversation.call import Call, Order
from metaq.model import DataVersion, TopicConfig
from metaq.model.topics.registration import BrokerIdentity, Registered
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request
from metaq.wire.hot import crc31


class RegisterBroker(Call[Registered], frozen=True):
    """Register a broker with its topics (103); a name server adds them to those registered before."""

    action = "register the broker"
    # RocketMQ's registerBrokerTimeoutMills.
    seconds: ClassVar[float] = 6.0

    who: BrokerIdentity
    version: DataVersion
    topics: Mapping[str, TopicConfig]

    def request(self) -> Command:
        body = bodies.registration(self.version, self.topics)
        header = headers.RegisterBrokerHeader(
            broker_name=self.who.broker,
            broker_address=self.who.address,
            cluster=self.who.cluster,
            # Slaves get it in the response to their own registration, and connect there for replication.
            ha_address=self.who.ha_address,
            broker_id=self.who.broker_id,
            body_crc32=crc31(body),
            # A RocketMQ does not read them, and tells everybody the address above.
            advertised=str(self.who.advertised) or None,
            advertised_ha=str(self.who.advertised_ha) or None,
        )
        return request(RequestCode.REGISTER_BROKER, header, body)

    def read(self, answer: Command) -> Registered:
        told = headers.RegisterBrokerReplyHeader.from_ext(answer.ext)
        order = bodies.kv_table_of(answer.body) if answer.body else None
        return Registered(told.master_address, told.ha_address, order)


class UnregisterBroker(Order, frozen=True):
    """Unregister a broker that stops (104)."""

    action = "unregister the broker"

    who: BrokerIdentity

    def request(self) -> Command:
        header = headers.BrokerHeader(
            broker_name=self.who.broker,
            broker_address=self.who.address,
            cluster=self.who.cluster,
            broker_id=self.who.broker_id,
        )
        return request(RequestCode.UNREGISTER_BROKER, header)
