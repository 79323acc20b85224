"""What a broker keeps of its group, and what it says of itself there."""

from __future__ import annotations

import asyncio
from typing import Final

from metaq.app.role.pending import ended
from metaq.broker.broker import Broker
from metaq.errors import ConfigError, Reason, Refused
from metaq.model.failover import Member, Membership
from metaq.saved import Pending
from metaq.saved_file import TextFile
from metaq.servers.server import CallSoon
from metaq.wire import failover as wire
from metaq.wire.files import MEMBERSHIP_NAME


class MembershipFormat:
    """Format of `metaqFailover.json` (docs/formats/failover.md)."""

    name: Final = MEMBERSHIP_NAME
    remedy: Final = "restore it from its .bak; without it this broker counts as new in its group: remove its whole folder then, so that it copies all"

    def parse(self, text: str) -> Membership:
        return wire.membership_of(text.encode())

    def text(self, content: Membership) -> str:
        return wire.membership(content).decode() + "\n"


MEMBERSHIP: Final = MembershipFormat()


class KeptMembership:
    """`config/metaqFailover.json` of one broker. Saved before it counts.

    Raises ConfigError: the file cannot be read, or belongs to a broker of another number.
    """

    def __init__(self, broker: Broker, file: TextFile[Membership], call_soon: CallSoon, address: str) -> None:
        self._broker, self._file, self._call_soon, self._address = broker, file, call_soon, address
        self._saving = asyncio.Lock()
        self._incarnation, self._boot = broker.clock.token(), broker.store.disk.boot()
        number = broker.options.broker_id
        found = file.read()
        if found is not None and found.member not in {0, number}:
            raise ConfigError(
                f"brokerId={number}: this folder is that of member {found.member} of {broker.environment.name} "
                f"({file.file.where}); give each broker of the group a number and a folder of its own"
            )
        self._found = found
        self.kept = found or Membership(broker.clock.token()[:16], number)
        """As it is on the disk."""

    async def open(self) -> None:
        """Note what this start has found of the log. Raises Refused: it cannot be saved."""
        await self.keep(member=self._broker.options.broker_id, whole=self.kept.whole and not self._has_lost())

    def _has_lost(self) -> bool:
        """Whether a power cut may have taken something that was reported."""
        kept, recovered = self.kept, self._broker.store.recovered
        # A log that was in no group has reported nothing. With SYNC_FLUSH nothing was reported that was not on the disk.
        if self._found is None or not kept.history or kept.synced:
            return False
        # The store may have noted this run of the machine in a start that was killed before this file was saved.
        is_same_run = not kept.boot or not self._boot or kept.boot == self._boot
        return not recovered.kept or not (is_same_run or recovered.in_order)

    async def keep(
        self,
        *,
        member: int | None = None,
        history: str | None = None,
        epoch: int | None = None,
        whole: bool | None = None,
    ) -> None:
        """Save what is given, and go by it. Raises Refused: it cannot be saved, and what was kept before is valid."""
        async with self._saving:  # what is given is of the newest
            await self._keep(member, history, epoch, whole)

    async def _keep(self, member: int | None, history: str | None, epoch: int | None, whole: bool | None) -> None:
        kept = self.kept
        new = Membership(
            kept.store,
            kept.member if member is None else member,
            kept.history if history is None else history,
            kept.epoch if epoch is None else max(epoch, kept.epoch),
            kept.whole if whole is None else whole,
            self._boot,
            self._broker.store_options.flush_disk_type == "SYNC_FLUSH",
        )
        if new == kept and self._found is not None:
            return
        pending, file = Pending(), self._file

        def saved(error: OSError | None) -> None:
            text = f"{file.file.where} could not be saved: {error.strerror or error}" if error is not None else ""
            pending.finish(Refused(Reason.NOT_STORED, text) if text else None)

        file.file.save_soon(lambda: file.format.text(new), lambda error: self._call_soon(lambda: saved(error)))
        await ended(pending)
        self.kept, self._found = new, new

    def member(self) -> Member:
        """Return what this broker says of itself now."""
        kept, epochs = self.kept, self._broker.roles.kept.epochs
        return Member(
            kept.member,
            self._incarnation,
            kept.store,
            self._address,
            kept.whole,
            self._broker.store.log.end,
            epochs[-1].number if epochs else 0,
        )
