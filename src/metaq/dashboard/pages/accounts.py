"""Accounts of the brokers, without secrets: their rights, and what would become of a request."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.admin import acl
from metaq.client.conversation.accounts import GetAccounts
from metaq.client.conversation.call import FAULTS
from metaq.client.shared.core import ClientCore
from metaq.dashboard.listing import Key, Listing, ListQuery, listing
from metaq.dashboard.page import Asked, Page
from metaq.dashboard.pages.common import each_or_error
from metaq.errors import BrokerError, MetaqError, RequestTimeout
from metaq.model.acl.accounts import AclView
from metaq.model.acl.judgement import AccessExplanation

ACTIONS: Final = tuple(acl.ACTIONS)
NAMED_MAX: Final = 50
"""Rights of an account that are shown."""
_WITHOUT: Final = 14
"""Code of a server that has no accounts: it cannot do so now."""
VIEWS_SECONDS: Final = 1.2
SERVER_SECONDS: Final = 0.8
"""RocketMQ's brokers without accounts leave the question without an answer."""
EXPLAIN_SECONDS: Final = 0.7


class AccountsQuery(ListQuery, frozen=True, forbid_unknown_fields=True):
    """`account`: whose request is explained; "": of whoever names none. `act`: one of the actions; "": nothing is explained. `resource`:
    `topic:NAME`, `group:NAME` or "". `address`: from which it comes. `unsigned`: its signature is wrong."""

    account: str = ""
    act: str = ""
    resource: str = ""
    address: str = "127.0.0.1"
    unsigned: bool = False


class AccountRow(Struct, frozen=True):
    """An account, as `servers` have it. `topics`, `groups`: `NAME=RIGHT` of those that are named; `more`: beyond those that are listed."""

    account: str
    servers: list[str]
    admin: bool
    white: str
    default_topic: str
    default_group: str
    topics: list[str]
    groups: list[str]
    more: int


class WhiteList(Struct, frozen=True):
    """Addresses from which a server takes everything, signed or not."""

    server: str
    addresses: list[str]


class Explained(Struct, frozen=True):
    server: str
    allowed: bool
    why: str
    file: str


class Accounts(Struct, frozen=True):
    """`without`: servers without accounts, where everybody may do everything; `untold`: that do not answer,
    as RocketMQ's without accounts. `actions`: that can be explained. `asked`: what was. `fault`: why nothing is explained; "": it is, or nobody has asked."""

    rows: Listing[AccountRow]
    without: list[str]
    untold: list[str]
    white: list[WhiteList]
    actions: list[str]
    asked: AccountsQuery
    explained: list[Explained]
    fault: str
    notes: list[str]


KEYS: Final[dict[str, Key]] = {
    "account": lambda row: row.account,
    "admin": lambda row: row.admin,
}


async def load(asked: Asked) -> Accounts:
    query: AccountsQuery = asked.query
    notes, silent = list[str](), list[str]()
    told, failed = dict[str, AclView | None](), dict[str, str]()
    try:
        told, silent, failed = await asked.ask(_views(asked.cluster.core), VIEWS_SECONDS)
    except FAULTS as error:
        notes.append(f"accounts: {error}")
    notes += [f"accounts of {server}: {error}" for server, error in failed.items()]
    found = {server: view for server, view in told.items() if view is not None}
    explained, fault = list[Explained](), ""
    if query.act:
        try:
            explained = await asked.ask(_explain(asked.cluster.core, query), EXPLAIN_SECONDS)
        except MetaqError as error:
            fault = str(error)
    return Accounts(
        rows=listing(_rows(found), query, KEYS, "account", lambda row: row.account),
        untold=silent,
        without=[server for server, view in told.items() if view is None],
        white=[WhiteList(server, list(view.white)) for server, view in found.items() if view.white],
        actions=list(ACTIONS),
        asked=query,
        explained=explained,
        fault=fault,
        notes=notes,
    )


async def _views(core: ClientCore) -> tuple[dict[str, AclView | None], list[str], dict[str, str]]:
    """Return server → its accounts, None: it has none; those that do not answer; and server → why it does not tell."""
    servers = await acl.servers(core, None)
    silent = list[str]()

    async def one(name: str, address: str) -> AclView | None:
        try:
            return await core.ask(address, GetAccounts(), SERVER_SECONDS)
        except BrokerError as error:
            if error.code == _WITHOUT and "no accounts" in error.remark:
                return None
            raise
        except RequestTimeout:
            silent.append(name)
            return None

    found, failed = await each_or_error((name, one(name, address)) for name, address in servers.items())
    return {name: view for name, view in found.items() if name not in silent}, silent, failed


async def _explain(core: ClientCore, query: AccountsQuery) -> list[Explained]:
    servers = await acl.servers(core, None)

    async def one(address: str) -> AccessExplanation:
        told = await acl.explain(
            core, query.account, query.act, query.resource, query.address, address, signed=not query.unsigned
        )
        return told[address]

    found, failed = await each_or_error((name, one(address)) for name, address in servers.items())
    return [
        *(Explained(name, told.allowed, told.why, told.file) for name, told in found.items()),
        *(Explained(name, False, error, "") for name, error in failed.items()),
    ]


def _rows(found: dict[str, AclView]) -> list[AccountRow]:
    """Return the accounts; one that servers have alike is a row."""
    alike: dict[tuple[object, ...], AccountRow] = {}
    for server, view in found.items():
        for one in view.accounts:
            key = (one.access_key, one.admin, one.white, one.default_topic, one.default_group, one.topics, one.groups)
            if key in alike:
                alike[key].servers.append(server)
                continue
            more = max(0, len(one.topics) - NAMED_MAX) + max(0, len(one.groups) - NAMED_MAX)
            alike[key] = AccountRow(
                one.access_key, [server], one.admin, one.white, one.default_topic, one.default_group,
                list(one.topics[:NAMED_MAX]), list(one.groups[:NAMED_MAX]), more,
            )  # fmt: skip
    return list(alike.values())


PAGE = Page(
    name="accounts", path="/accounts", title="Accounts", menu="Accounts", key="a", values=Accounts, load=load,
    query=AccountsQuery,
)  # fmt: skip
