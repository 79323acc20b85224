"""Requests that take a broker out of use: the write permission in routes (205), its process (30025, and 30030 for a moment)."""

from __future__ import annotations

from metaq.client.conversation.call import Order
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class StopBroker(Order, frozen=True):
    """Stop one of our brokers cleanly (30025). It answers before it stops."""

    action = "stop"

    def request(self) -> Command:
        return request(RequestCode.STOP)


class RestartBroker(Order, frozen=True):
    """Have the process of one of our brokers replaced by a new one (30030). It answers before that."""

    action = "restart"

    def request(self) -> Command:
        return request(RequestCode.RESTART_BROKER)


class WipeWritePermission(Order, frozen=True):
    """Take the write permission off all queues of a broker name at one name server (205), until the broker registers a change."""

    broker: str

    @property
    def action(self) -> str:
        return f"wipe the write permission of broker {self.broker}"

    def request(self) -> Command:
        header = headers.BrokerNameHeader(broker_name=self.broker)
        return request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
