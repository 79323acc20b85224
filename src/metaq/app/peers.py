"""Requests from a broker to others of its cluster, about staged transactions.

Brokers are found by name at the name servers. The result of a look-up is kept until a broker is not in it or does not
answer at its address; questions that need a look-up at the same time wait for the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

from metaq.broker.staged.peers import Finish, NoAnswer, PeerAnswer, Question, Settle, StateOf
from metaq.client.conversation import driver
from metaq.client.conversation.call import FAULTS, At, Call
from metaq.client.conversation.name_servers import NameServers
from metaq.client.shared.transport import Transport
from metaq.errors import NoRoute
from metaq.model.acl.secret import Credentials

if TYPE_CHECKING:
    from metaq.net.tls.client import ClientTls

log = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 256
"""Most open questions to one broker."""
LOOK_UP_SECONDS: Final = 1.0
"""Shortest pause between two look-ups, so that an absent broker does not keep the name servers busy."""


class BrokerPeers:
    """A `metaq.broker.staged.peers.Peers` over the remoting protocol. Runs in the broker's event loop.

    Args:
        name_servers: addresses; none: other brokers cannot be found.
        look_up_seconds: shortest pause between two look-ups.
        credentials: what questions are signed with; None: they are not signed.
        tls: how it connects to them and to the name servers; None: without TLS.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        look_up_seconds: float = LOOK_UP_SECONDS,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._transport = Transport(credentials=credentials, tls=tls)
        self._name_servers = NameServers(name_servers) if name_servers else None
        self._look_up_seconds = look_up_seconds
        self._addresses: dict[str, str] = {}
        """Broker name → address of its master."""
        self._doubted: set[str] = set()
        """Brokers that did not answer at their address: looked up before the next question."""
        self._looked_up = -float("inf")
        self._looking_up: asyncio.Task[None] | None = None
        self._waiting = Counter[str]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def ask(self, broker: str, question: Question, done: Callable[[PeerAnswer], None]) -> None:
        """Ask a broker by name. `done` is called once."""
        if self._closed:
            done(NoAnswer("this broker stops"))
            return
        # A broker that hangs must not collect all our memory in questions.
        if self._waiting[broker] >= QUESTIONS_MAX:
            done(NoAnswer(f"{QUESTIONS_MAX} questions to the broker {broker} wait for answers already"))
            return
        self._waiting[broker] += 1
        task = asyncio.get_running_loop().create_task(self._ask(broker, question, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all connections. Open questions get no answer."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._looking_up is not None:
            self._looking_up.cancel()
            await asyncio.gather(self._looking_up, return_exceptions=True)
        await self._transport.close()

    async def _ask(self, broker: str, question: Question, done: Callable[[PeerAnswer], None]) -> None:
        told: PeerAnswer = NoAnswer("this broker stops")
        try:
            told = await self._answer(broker, call_of(question, broker))
        except FAULTS as error:
            told = NoAnswer(str(error))
        except Exception as error:
            log.exception("asking the broker %s about a staged transaction failed", broker)
            told = NoAnswer(f"{type(error).__name__}: {error}")
        finally:
            self._waiting[broker] -= 1
            if not self._waiting[broker]:
                del self._waiting[broker]
            try:
                done(told)
            except Exception:
                log.exception("what was to be done with the answer of the broker %s failed", broker)

    async def _answer(self, broker: str, call: Call[Any]) -> Any:
        """Find the broker and ask it. Raises what asking raises; NoRoute: its address is unknown."""
        address = await self._find(broker)
        try:
            return await driver.ask(self._transport, address, call)
        except FAULTS:
            self._doubted.add(broker)  # it may have moved: look it up before the next question
            raise

    async def _find(self, broker: str) -> str:
        if self._name_servers is None:
            raise NoRoute(f"the broker {broker} cannot be found: this one has no name servers")
        if broker not in self._addresses or broker in self._doubted:
            await self._look_up(self._name_servers)
        address = self._addresses.get(broker)
        if address is None:
            raise NoRoute(f"no master of the broker {broker} is registered at name servers {self._name_servers}")
        return address

    def exchange(self, name_servers: Sequence[str]) -> None:
        """Ask these name servers from now on."""
        if self._name_servers is not None:
            self._name_servers.exchange(name_servers)

    async def _look_up(self, name_servers: NameServers) -> None:
        loop = asyncio.get_running_loop()
        if self._looking_up is None:
            # The last answer is new enough: the broker is simply not there.
            if loop.time() < self._looked_up + self._look_up_seconds:
                return
            self._looking_up = loop.create_task(self._read_cluster(name_servers))
            self._looking_up.add_done_callback(self._look_up_ended)
        # Others wait for the same look-up: the end of one question must not cancel it.
        await asyncio.shield(self._looking_up)

    def _look_up_ended(self, task: asyncio.Task[None]) -> None:
        self._looking_up, self._looked_up = None, asyncio.get_running_loop().time()
        if not task.cancelled():
            task.exception()  # retrieved: those that waited may all be gone, and asyncio would log it

    async def _read_cluster(self, name_servers: NameServers) -> None:
        def answer(step: At[Any]) -> Awaitable[object]:
            return driver.ask(self._transport, step.address, step.call)

        info = await driver.converse_async(name_servers.cluster(), answer)
        self._addresses = {name: data.master for name, data in info.brokers.items() if data.master}
        self._doubted.clear()


def call_of(question: Question, broker: str) -> Call[Any]:
    """Return the remoting request of a question."""
    from metaq.client.conversation.staged import (
        staging as conversation,
    )  # here and not above: most brokers never ask one

    match question:
        case StateOf(transaction):
            return conversation.GetTransaction(transaction, broker)
        case Finish(decision):
            return conversation.Apply(decision.transaction, decision, broker)
        case Settle(transaction):
            return conversation.Settle(transaction, broker)
        case _:
            assert_never(question)
