"""Requests that take a broker out of use: its options (25), the write permission in routes (205), its process (30030)."""

from __future__ import annotations

from collections.abc import Mapping

from metaq.client.conversation.call import Order
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class ChangeSettings(Order, frozen=True):
    """Change options of a broker while it runs (25), for good: name, in RocketMQ's spelling → value."""

    pairs: Mapping[str, str]

    @property
    def action(self) -> str:
        return f"change {', '.join(self.pairs)}"

    def request(self) -> Command:
        return request(RequestCode.UPDATE_BROKER_CONFIG, body=bodies.option_changes(self.pairs))


class StopBroker(Order, frozen=True):
    """Stop one of our brokers cleanly (30030). It answers before it stops."""

    action = "stop"

    def request(self) -> Command:
        return request(RequestCode.STOP)


class WipeWritePermission(Order, frozen=True):
    """Take the write permission off all queues of a broker name at one name server (205), until the broker registers a change."""

    broker: str

    @property
    def action(self) -> str:
        return f"wipe the write permission of broker {self.broker}"

    def request(self) -> Command:
        header = headers.BrokerNameHeader(broker_name=self.broker)
        return request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
