"""One blocking connection to a broker or name server, with many calls in flight.

A Spark worker reads one range at a time and has nothing else to do, so an event loop would only add cost.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from metaq.client.conversation.call import Call
from metaq.client.conversation.driver import outcome_of
from metaq.errors import BadRequest, ConnectionFailed, RemoteProtocolError

# Without asyncio and ssl: each of Spark's processes imports this, and they would be half of that time.
from metaq.net.address import split_address
from metaq.net.blocking import dial_blocking
from metaq.wire.command import Command, encode
from metaq.wire.connection import Connection

if TYPE_CHECKING:
    from metaq.model.acl.secret import Credentials
    from metaq.net.tls.client import ClientTls

T = TypeVar("T")

LOST_ANSWERS_MAX = 1024
"""Answers that nobody has asked for, before the connection is given up: a peer must not fill this process's memory."""
_NUMBER_MAX = 0x7FFFFFFF


class Link:
    """One connection. Not thread-safe. After any error but a BrokerError it is unusable: close it and make another.

    Raises, from every method: ConnectionFailed, RequestTimeout, RemoteProtocolError.
    """

    def __init__(
        self, address: str, timeout: float, credentials: Credentials | None = None, tls: ClientTls | None = None
    ) -> None:
        """
        Args:
            address: `host:port`.
            timeout: seconds to connect, and to wait for the next bytes of an answer.
            credentials: what requests are signed with; None: they are not signed.
            tls: how to connect; None: without TLS.
        """
        self.address, self._credentials = address, credentials
        host = split_address(address)[0]
        wrap = functools.partial(tls.wrap, host=host, address=address) if tls is not None else None
        self._stream = dial_blocking(address, timeout, wrap)
        self._connection = Connection()
        self._number = 0
        self._early: dict[int, Command] = {}

    def post(self, call: Call[T]) -> int:
        """Send a call's request. Returns its opaque, for `outcome`."""
        # RocketMQ's opaque is a Java int: it wraps before it becomes negative.
        self._number = (self._number + 1) & _NUMBER_MAX
        command = call.request()
        command.opaque = self._number
        if self._credentials is not None:
            from metaq.wire.signing import sign  # only where it is wanted: it loads OpenSSL

            command.ext = dict(command.ext)  # calls may share theirs
            sign(command, self._credentials)
        self._stream.send(encode(command))
        return self._number

    def outcome(self, number: int, call: Call[T]) -> T:
        """Return the outcome of a posted call; answers that come before its own are kept for their calls.

        Records in it are a view of the receive buffer, not a copy. Raises BrokerError: the call was refused.
        """
        return self._read(call, self._answer(number))

    def ask(self, calls: Sequence[Call[T]]) -> list[T]:
        """Send all calls, then return all outcomes, in order. Raises BrokerError: one of them was refused."""
        numbers = [self.post(call) for call in calls]
        # All answers before any outcome: after a refused call the connection has no answers left over and stays usable.
        answers = [self._answer(number) for number in numbers]
        return [self._read(call, answer) for call, answer in zip(calls, answers, strict=True)]

    def close(self) -> None:
        self._stream.close()

    def _answer(self, number: int) -> Command:
        while number not in self._early:
            command = self._connection.next_command()
            if command is None:
                connection = self._connection
                connection.received(self._stream.receive_into(connection.room(), connection.missing_bytes))
            elif command.is_response:  # Requests of the broker (NOTIFY_CONSUMER_IDS_CHANGED, ...) are ignored.
                self._early[command.opaque] = command
                if len(self._early) > LOST_ANSWERS_MAX:
                    raise ConnectionFailed(f"{self.address} sends answers to requests that were not made")
        return self._early.pop(number)

    def _read(self, call: Call[T], answer: Command) -> T:
        try:
            return outcome_of(call, answer, self.address, self._credentials)
        except BadRequest as fault:
            text = f"the answer of {self.address} to a request to {call.action} cannot be read: {fault}"
            raise RemoteProtocolError(text) from None
