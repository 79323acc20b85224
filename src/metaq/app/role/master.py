"""How a slave finds the broker whose log it copies, and makes its own log a begin of that one first."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterator
from typing import Final

from metaq.app.registration import NameServerRegistration
from metaq.app.role.both_logs import AskBoth, asking
from metaq.app.role.pending import ended
from metaq.app.role.torn import cut, cut_torn, first_difference, is_torn, to_compare
from metaq.broker.broker import Broker
from metaq.client.conversation.administration import GetReplicaState
from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import Caller, ask
from metaq.client.conversation.scrubbing.comparison import NotComparable
from metaq.errors import BrokerError, MetaqError, Refused, StoreError
from metaq.log import RateLimitedLog
from metaq.model.failover import Place
from metaq.model.leadership import MASTERS, CutTail, Epoch, Rank, ReplicaState, parting
from metaq.net.address import join_address, split_address
from metaq.servers.ha.slave import Source

log = logging.getLogger(__name__)

QUEUES_TOLD_MAX: Final = 200
_TOPICS_NAMED: Final = 5


class NoCommonHistory(MetaqError):
    """This log and its master's are not the same from some place on, and this one cannot be cut there."""


class MasterSearch:
    """Finds the master of a slave: where it stepped down for it, where it is configured, and at the name servers.

    Args:
        caller: sends the requests.
        announced: knows the master from the name servers.
    """

    def __init__(self, broker: Broker, caller: Caller, announced: NameServerRegistration) -> None:
        self._broker, self._roles, self._caller, self._announced = broker, broker.roles, caller, announced
        self._given = broker.options.ha_master_address
        self.takes_over = False
        """Whether this slave is being promoted: then it copies from a master that has stepped down, too."""
        self.address: str | None = None
        """Of the remoting server of the master that was found last."""
        self._compared: tuple[Rank, int, int] | None = None
        """Of the master's log, the epoch and what a power cut may have torn, where that was compared with this one."""
        self._faults = RateLimitedLog(log, broker.clock)

    @property
    def place(self) -> Place | None:
        """This broker's place in its group; None: leaders are not changed by themselves."""
        return None

    def tick(self) -> None:
        """Let time pass."""
        self._faults.tick()

    async def find(self) -> Source | None:
        """Return the address from which to copy now; None: there is none, and the log says why.

        This log is a begin of the log there then; what was not has been cut off, and is kept aside.
        """
        if not (self._given or self._roles.kept.master):
            await self._announced.find_master()
        silent = list[str]()
        for address, ha_address in self._candidates():
            try:
                state = await ask(self._caller, address, GetReplicaState())
            except FAULTS as error:
                silent.append(f"{address} ({error})")
                if isinstance(error, BrokerError):  # by access control, for one: the log may be copied all the same
                    self._faults.warning(
                        ("refused", address),
                        "the broker at %s does not tell its state, nor its tables: %s",
                        address,
                        error,
                    )
            else:
                if state is None:  # a RocketMQ
                    if ha_address:
                        return self._found(address, ha_address)
                elif await self._suits(state, address):
                    return self._found(address, self._port_of(state, address, ha_address))
        if self._given and not self._roles.kept.epochs and not self._roles.kept.role:
            # As RocketMQ's slaves, which know no history: what the stream does not fit to is refused there.
            return Source(self._given)
        if silent:
            self._faults.warning(
                "silent", "no master of %s answers: %s", self._broker.environment.name, "; ".join(silent)
            )
        return None

    def _candidates(self) -> Iterator[tuple[str, str | None]]:
        """Yield addresses of remoting servers, each with that of its replication server, if it is known."""
        told, kept = self._announced.master, self._roles.kept
        seen = set[str]()
        found: list[tuple[str | None, str | None]] = [
            (kept.master or None, None),
            (told.master, told.master_ha_address),
        ]
        if self._given:
            host, port = split_address(self._given)
            found.append(
                (join_address(host, port - 1), self._given)
            )  # where a master's is, unless it was set otherwise
        for address, ha_address in found:
            if address and address not in seen:
                seen.add(address)
                yield address, ha_address

    def _port_of(self, state: ReplicaState, address: str, ha_address: str | None) -> str:
        # A configured way to the log leads to the master of the beginning; who leads since a promotion says where its log is.
        promoted = bool(state.epochs) and state.epochs[-1].broker_id > 0
        if self._given and not promoted and not self._roles.kept.role:
            return self._given
        return ha_address or join_address(split_address(address)[0], state.ha_port)

    def _found(self, address: str, ha_address: str) -> Source | None:
        self.address = self._roles.master = self._roles.leader_address = address
        return Source(ha_address)

    def heard(self, log_end: int) -> None:
        """Note where the master's log ends."""
        self._roles.master_end, self._roles.master_heard_ms = log_end, self._broker.clock.now_ms()

    async def _suits(self, state: ReplicaState, address: str) -> bool:
        """Return whether the broker at an address can be copied from; this log is a begin of its log then."""
        own = self._roles.kept
        if state.broker != self._broker.environment.name:
            why = f"is {state.broker}"
        elif not (state.leads or self.takes_over):
            why = f"is a slave as well (brokerId {state.broker_id}): `metaq broker promote` makes one of the two the master"
        elif state.rank < own.rank:
            why = f"was replaced: its epoch is {state.epoch}, and this log has been in epoch {own.epoch}"
        else:
            self.heard(state.log_end)
            try:
                await self._agree(state, address)
            except TimeoutError:
                why = "one of the two does not sync its log"
                self._faults.warning(address, "nothing is copied from the master at %s yet: %s", address, why)
                return False
            except FAULTS as error:
                self._faults.warning(address, "nothing is copied from the master at %s yet: %s", address, error)
                return False
            except (NoCommonHistory, NotComparable, Refused, StoreError, OSError) as error:
                self._faults.error(address, "the log of the master at %s is not copied: %s", address, error)
                return False
            return True
        self._faults.warning(address, "nothing is copied from the broker at %s, which %s", address, why)
        return False

    async def _agree(self, state: ReplicaState, address: str) -> None:
        """Cut off what the other log does not have, and keep its epochs.

        Raises: NoCommonHistory; StoreError, OSError, Refused: it could not be cut; FAULTS, NotComparable, TimeoutError: the two could
        not be compared where a power cut may have torn one of them.
        """
        own, store = self._roles.kept, self._broker.store
        place = parting(own.epochs, store.log.end, state.epochs, state.log_end)
        # Without any epoch nobody has led after another: the stream refuses a log that is longer than its master's.
        if place < store.log.end and state.epochs:
            if place < store.log.min:
                raise NoCommonHistory(
                    f"they have parted at log offset {place}, and this log begins at {store.log.min}; start this broker anew with an "
                    "empty folder, and keep the old one until nothing of it is missed"
                )
            await self._cut(place, state, address)
        role = state.role if state.role in MASTERS else own.master_role
        if (state.epochs, role) != (own.epochs, own.master_role):
            await ended(self._roles.keep(self._roles.with_history(state.epochs, role)))
        await self._mend_torn(state, address)

    async def _cut(self, place: int, state: ReplicaState, address: str) -> None:
        broker, end = self._broker, self._broker.store.log.end
        aside = await asyncio.to_thread(broker.store.writer.keep_behind, place)
        folder = str(aside.kept.folder) if aside.kept else ""
        tail = CutTail(place, end, aside.records, _largest(aside.queues), folder, broker.clock.now_ms())
        # It is told from now on, also if this process ends before the log is cut; the epochs tell until then that it is to be.
        await ended(self._roles.keep(self._roles.with_cut(tail)))
        await cut(broker, place)
        log.error(
            "this log and that of the master at %s have parted at log offset %d%s: %d bytes with %d records were cut off here%s; "
            "they are kept in %s, which `metaq store dump` reads",
            address, place, _since(state.epochs, place), end - place, tail.records, _named(tail), folder,
        )  # fmt: skip

    async def _mend_torn(self, state: ReplicaState, address: str) -> None:
        """Have what a power cut may have torn here, or at the master, as the master has it."""
        compared = state.rank, state.torn_from, state.torn_end
        part = to_compare(self._broker, state) if self._roles.torn or compared != self._compared else range(0)
        place = await first_difference(self._asking(address), part) if part else None
        if place is not None:
            torn = "the master's log" if is_torn(state) else "this log"
            await cut_torn(self._broker, place, torn, f"the master at {address}")
        self._roles.torn, self._compared = range(0), compared

    def _asking(self, address: str) -> AskBoth:
        return asking(self._broker, self._caller, address)


def _largest(queues: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """The queues that have lost most, so many that they can be kept and told."""
    rows = [(count, topic, queue_id) for topic, counts in queues.items() for queue_id, count in counts.items()]
    found: dict[str, dict[int, int]] = {}
    for count, topic, queue_id in heapq.nlargest(QUEUES_TOLD_MAX, rows):
        found.setdefault(topic, {})[queue_id] = count
    return found


def _since(epochs: tuple[Epoch, ...], place: int) -> str:
    epoch = next((one for one in epochs if one.start >= place), None)
    return f", where its epoch {epoch.number} began" if epoch is not None else ""


def _named(tail: CutTail) -> str:
    """The largest losses, for people."""
    counts = {topic: sum(queues.values()) for topic, queues in tail.queues.items()}
    if not counts:
        return ""
    largest = sorted(counts, key=lambda topic: -counts[topic])
    text = ", ".join(f"{counts[topic]} of {topic}" for topic in largest[:_TOPICS_NAMED])
    return f": messages {text}{' and others' if len(largest) > _TOPICS_NAMED else ''}"
