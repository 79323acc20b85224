"""What one connection is charged for, and how it waits: reading is paused, and answers are held back or tell the wait.

A read event of a connection that a quota limits is judged before it is served (`metaq.broker.quota.meter`). What is taken is
served at once; then the connection is not read until its quota has paid for it, and its answers wait as long. What it has
written meanwhile stays in the kernel, or in the one buffer of its stream: a connection makes nobody keep more than a read
event and its answers.

A client of ours gets its answers at once, and in the last of them how long it is to wait (`metaqWaitMs`,
docs/formats/extensions.md): it waits before its next send, and meanwhile puts more into its batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from metaq.broker.quota.meter import Meter, judge
from metaq.broker.quota.service import Quotas
from metaq.errors import Reason, Refused
from metaq.model.access import WHITE, Caller
from metaq.model.quota import QuotaKind
from metaq.net.address import join_address
from metaq.net.peer import Peer

REFUSED_MAX: Final = 64
"""Requests of one read event that are refused before the connection waits: each answer is an encoded one."""


def account_of(caller: Caller) -> str:
    """Return the account that a caller has proven; "" if it was let in for its address."""
    return "" if caller.identity.startswith(WHITE) else caller.identity


class Connected(Protocol):
    """A session that quotas charge."""

    peer: Peer

    def __hash__(self) -> int: ...


class Sink(Protocol):
    """Takes answers."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...


class Metered(Connected, Protocol):
    """A session that quotas may hold for."""

    @property
    def out(self) -> Sink:
        """Where its answers go."""
        ...

    @out.setter
    def out(self, sink: Sink) -> None: ...

    def may_read(self) -> bool:
        """Return whether the session waits for nothing else."""
        ...

    def telling(self, data: bytes | bytearray | memoryview, wait_ms: int) -> bytes | None:
        """Return answers of which the last tells the wait; None: this client does not know of it."""
        ...


_NOTHING_REFUSED: Final = Refused(Reason.THROTTLED, "")


class HeldBack:
    """Answers of a connection that waits. Later ones, which a disk or a slave was waited for, come here too."""

    def __init__(self, session: Metered, wait: float) -> None:
        self._session, self._wait_ms = session, max(1, round(wait * 1000))
        self._held = list[bytes]()
        self.members = (session.peer,)
        """Whose answers these are, for `HeldAcks.holds`."""
        self._over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        peer = self._session.peer
        if self._over:
            peer.write(data)
        elif (told := self._session.telling(data, self._wait_ms)) is not None:
            peer.write(told)
        else:
            self._held.append(bytes(data))
            peer.keep(len(data))

    def end(self) -> None:
        self._over = True
        held, peer = b"".join(self._held), self._session.peer
        self._held.clear()
        if held and not peer.closed:
            peer.keep(-len(held))
            peer.write(held)


class Charges:
    """What one connection is charged for. How it waits is for those who inherit: they are told by `_wait`.

    `meters`: of its client, account and address, as far as something limits them; empty: nothing is asked, and nothing costs.

    Args: session: of the connection. quotas: of the server.
    """

    def __init__(self, session: Connected, quotas: Quotas) -> None:
        self._connection, self._quotas = session, quotas
        self.meters: tuple[Meter, ...] = ()
        self.limited = self.waits = False
        """`limited`: requests are to be judged. `waits`: nothing is read for now."""
        self.account = ""
        address = session.peer.address
        self._names = {QuotaKind.ADDRESS: address[0], QuotaKind.CLIENT: join_address(*address), QuotaKind.ACCOUNT: ""}
        self.refusal = _NOTHING_REFUSED
        """Why the last read event was refused."""
        self._crowded: Meter | None = None
        """Of what the connection is one too many."""
        self._closed = False
        quotas.connections[session] = self
        if quotas.active:
            self.refresh()

    # -- whose it is
    def named(self, client_id: str) -> None:
        """Charge the client of this id from now on. Raises Refused THROTTLED: it has too many connections."""
        if client_id != self._names[QuotaKind.CLIENT]:
            self._name(QuotaKind.CLIENT, client_id)

    def proven(self, account: str, size: int, *, refuse: bool) -> None:
        """Charge this account from now on, and for the request of `size` bytes that proves it.

        Args: refuse: whether the request may be refused.
        Raises Refused THROTTLED: it has too many connections, or owes too much.
        """
        self.account = account
        meter = self._name(QuotaKind.ACCOUNT, account, refuse=refuse)
        if meter is not None:
            # The read event was judged before anybody knew whose it is: a connection for each request must not be free.
            if refuse and meter.wait(self._quotas.clock.monotonic()) >= self._quotas.wait_max:
                meter.refused += 1
                raise self._refusal(meter)
            meter.take(1, size)

    def _name(self, kind: QuotaKind, name: str, *, refuse: bool = True) -> Meter | None:
        self._names[kind] = name
        if not self._quotas.active:
            return None
        before = self._crowded
        self._attach(check=kind)
        if refuse and self._crowded is not None and self._crowded is not before:
            raise self._refusal(self._crowded)
        return next((meter for meter in self.meters if meter.subject[0] is kind), None)

    def refresh(self) -> None:
        """Look the meters up again. Connections that are above a lower limit stay."""
        self._attach()

    def _attach(self, check: QuotaKind | None = None) -> None:
        """Args: check: the kind of which this connection may be one too many."""
        if self._closed:
            return
        found, self._crowded = list[Meter](), None
        for kind, name in self._names.items():
            meter = self._quotas.meter(kind, name)
            if meter is None:
                continue
            most = meter.limits.connections
            if kind is check and meter not in self.meters and most and meter.connections >= most:
                self._crowded = meter
            else:
                found.append(meter)
        for meter in self.meters:
            meter.connections -= 1
            meter.waiting -= self.waits
        self.meters = tuple(found)
        for meter in self.meters:
            meter.connections += 1
            meter.waiting += self.waits
        self.limited = bool(found) or self._crowded is not None
        peer = self._connection.peer
        if self.meters or peer.on_written is not None:
            peer.on_written = self._wrote if self.meters else None
        if self.meters and peer.swept:
            peer.leave()  # a sweep answers without asking

    def close(self) -> None:
        """Give everything up: the connection has ended."""
        self._end_wait()
        for meter in self.meters:
            meter.connections -= 1
        self._closed, self.meters, self._crowded, self.limited = True, (), None, False
        self._quotas.connections.pop(self._connection, None)

    # -- what it takes
    def judge(self, rows: int, size: int, size_of: Callable[[int], int]) -> int:
        """Return how many of the requests of a read event are taken; the connection waits then, if it has to.

        0: the next requests are to be refused (`refusal`), REFUSED_MAX of them at most. Arguments as of `metaq.broker.quota.meter.judge`.
        """
        quotas = self._quotas
        if self._crowded is not None:
            self._attach(check=self._crowded.subject[0])  # others may have gone
            if self._crowded is not None:
                self._crowded.refused += rows
                self.refusal = self._refusal(self._crowded)
                self._wait(quotas.wait_max)
                return 0
        verdict = judge(self.meters, quotas.clock.monotonic(), rows, size, size_of, quotas.wait_max)
        if not verdict.rows:
            assert verdict.meter is not None, "somebody owes"
            self.refusal = self._refusal(verdict.meter)
        if verdict.wait:
            self._wait(verdict.wait)
        return verdict.rows

    def _refusal(self, meter: Meter) -> Refused:
        kind, name = meter.subject
        limits = meter.limits
        if meter is self._crowded:
            return Refused(
                Reason.THROTTLED,
                f"the {kind.value} {name} has {meter.connections} connections open, its quota is {limits.connections}",
            )
        wait = meter.wait(self._quotas.clock.monotonic())
        return Refused(
            Reason.THROTTLED,
            f"the {kind.value} {name} is above its quota ({limits}), and would wait {wait:.1f} s, longer than quotaWaitMax; "
            "try again later",
        )

    def _wrote(self, size: int) -> None:
        now = self._quotas.clock.monotonic()
        for meter in self.meters:
            meter.wrote(size, now)

    def _count_waiting(self, *, waits: bool) -> None:
        """Have the meters count the connection among those that wait, or not any more."""
        if waits is not self.waits:
            self.waits = waits
            for meter in self.meters:
                meter.waiting += 1 if waits else -1

    def _wait(self, seconds: float) -> None:
        """Wait for so long, from now on."""
        raise NotImplementedError

    def _end_wait(self) -> None:
        """Wait no more: the connection has ended."""
        raise NotImplementedError


class Metering(Charges):
    """The quotas of one connection that waits behind its requests: it is not read, and its answers are held back."""

    def __init__(self, session: Metered, quotas: Quotas) -> None:
        self._session = session
        self._held: HeldBack | None = None
        super().__init__(session, quotas)

    def _wait(self, seconds: float) -> None:
        if self.waits:
            return
        self._count_waiting(waits=True)
        session = self._session
        session.peer.pause()
        self._held = HeldBack(session, seconds)
        session.out = self._held
        later = self._quotas.later or asyncio.get_running_loop().call_later
        later(seconds, self._go_on)

    def _go_on(self) -> None:
        session = self._session
        self._end_wait()
        if not self._closed and session.may_read():
            session.peer.resume()

    def _end_wait(self) -> None:
        if self.waits:
            self._count_waiting(waits=False)
            self._session.out = self._session.peer
            if self._held is not None:
                self._held.end()
                self._held = None
