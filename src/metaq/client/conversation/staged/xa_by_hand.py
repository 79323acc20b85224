"""MetaQ 1.x transactions at a broker: list, and heuristic decisions by operators (30008, 30009).

A module of its own, so that producers, which load the others here, do not load it.
"""

from __future__ import annotations

from metaq.client.conversation.call import Call, Order
from metaq.model.transactions.metaq1 import BranchState
from metaq.wire import headers, staging
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class ListBranches(Call[list[BranchState]], frozen=True):
    """List a broker's transactions of MetaQ 1.x clients, by their ids among the staged transactions, from behind
    `after` on (30008)."""

    action = "list transactions of MetaQ 1.x clients"

    after: str = ""
    count: int = 100

    def request(self) -> Command:
        return request(RequestCode.LIST_BRANCHES, headers.ListBranchesHeader(after=self.after, count=self.count))

    def read(self, answer: Command) -> list[BranchState]:
        return staging.branch_list_of(answer.body)


class EndBranch(Order, frozen=True):
    """Commit or roll back a prepared XA branch by hand, or forget one that was ended so (30009): `commit`, `rollback`,
    `forget`."""

    key: str
    act: str

    @property
    def action(self) -> str:
        return f"{self.act} the XA transaction {self.key}"

    def request(self) -> Command:
        return request(RequestCode.END_BRANCH, headers.EndBranchHeader(key=self.key, action=self.act))
