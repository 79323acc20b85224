"""Transactions of MetaQ 1.x clients: list, and end XA branches by hand. Brokers without such clients are listed as unreached."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin.brokers import masters
from metaq.admin.several import at_each
from metaq.admin.transactions import TransactionNotFound, ask_all
from metaq.client.conversation.staged.xa_by_hand import EndBranch, ListBranches
from metaq.client.shared.core import ClientCore
from metaq.model.transactions.metaq1 import BranchState

PAGE: Final = 200
"""Transactions in one answer of a broker."""


class BranchList(Struct, frozen=True):
    """The transactions of MetaQ 1.x clients at brokers."""

    branches: dict[str, list[BranchState]]
    """Broker → its branches, in the order of the ids among the staged transactions."""
    now_ms: int
    """When they were asked, ms since 1970, by the clock of this machine."""
    unreached: dict[str, str]
    """Broker → reason why it could not be asked."""


async def _targets(core: ClientCore, broker: str | None) -> dict[str, str]:
    """Return broker → address. `broker`: a name, or `host:port` of one that need not be registered; None: all."""
    if broker is not None and ":" in broker:
        return {broker: broker}
    return dict(await masters(core, broker=broker))


async def listing(core: ClientCore, *, broker: str | None, limit: int) -> BranchList:
    """Return the first `limit` transactions of one broker, or of each. Raises BrokerNotFound."""

    async def of_broker(address: str) -> list[BranchState]:
        states: list[BranchState] = []
        while len(states) < limit:
            page = await core.ask(address, ListBranches(states[-1].transaction if states else "", min(PAGE, limit)))
            if not page:
                break
            states += page
        return states[:limit]

    found, unreached = await ask_all(await _targets(core, broker), lambda _name, address: of_broker(address))
    return BranchList(found, core.clock.now_ms(), unreached)


async def end(core: ClientCore, key: str, action: str, *, broker: str | None, dry_run: bool = False) -> list[str]:
    """Commit or roll back a prepared branch, or forget one that was ended so, at all brokers with a branch of that key.

    `dry_run`: only find these. Returns their names. Raises TransactionNotFound, BrokerNotFound; HalfDone; BrokerError: a broker refuses.
    """
    targets = await _targets(core, broker)
    found = await listing(core, broker=broker, limit=1 << 30)
    known = sorted(name for name, states in found.branches.items() if any(state.key == key for state in states))
    if not known:
        unreached = "; ".join(f"{name} could not be asked: {why}" for name, why in found.unreached.items())
        raise TransactionNotFound(
            f"no broker has the transaction {key[:200]}" + (f" ({unreached})" if unreached else "")
        )
    if not dry_run:
        holders = {name: targets[name] for name in known}
        await at_each(core, f"{action} of {key[:200]} is done", holders, EndBranch(key, action))
    return known
