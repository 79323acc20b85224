"""Accounts and white lists: as one file has them, and as all files of a server give them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from metaq.model.acl.addresses import NOBODY, AddressList, AddressPattern
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Secret
from metaq.model.topics.topic import RETRY_PREFIX, DataVersion

KEY_CHARS_MIN: Final = 7
"""Shortest access key and secret key, as in RocketMQ."""


class Account(Struct, frozen=True):
    """Who may sign requests, and what such requests may do."""

    access_key: str
    """Name of the account. Not secret: it travels with every request."""
    secret_key: Secret
    white: AddressPattern = NOBODY
    """Addresses from which whoever gives the access key needs no signature, and may everything."""
    admin: bool = False
    default_topic: Right = Right.DENY
    """Right to topics that `topics` does not name."""
    default_group: Right = Right.DENY
    topics: Mapping[str, Right] = field(default_factory=dict)
    groups: Mapping[str, Right] = field(default_factory=dict)

    @property
    def unlimited(self) -> bool:
        """Whether nothing is refused: an administrator for whom no topic or group is named."""
        return self.admin and not self.topics and not self.groups

    def right_to_topic(self, topic: str) -> Right:
        return self.topics.get(topic, self.default_topic)

    def right_to_group(self, group: str) -> Right:
        # RocketMQ keeps groups as their retry topics, in one table with topics that win.
        named = self.topics.get(RETRY_PREFIX + group)
        return self.groups.get(group, self.default_group) if named is None else named


class AclFile(Struct, frozen=True):
    """What one file says."""

    white: tuple[AddressPattern, ...] = ()
    """Addresses from which every request is allowed, signed or not."""
    accounts: tuple[Account, ...] = ()
    version: DataVersion = DataVersion()

    def account(self, access_key: str) -> Account | None:
        return next((account for account in self.accounts if account.access_key == access_key), None)

    def with_account(self, account: Account, now_ms: int) -> AclFile:
        """Return the file with an account changed where it is, or added at the end."""
        kept = self.accounts if self.account(account.access_key) else (*self.accounts, account)
        accounts = tuple(account if old.access_key == account.access_key else old for old in kept)
        return replace(self, accounts=accounts, version=self.version.next(now_ms))

    def without_account(self, access_key: str, now_ms: int) -> AclFile:
        """Return the file without an account."""
        accounts = tuple(account for account in self.accounts if account.access_key != access_key)
        return replace(self, accounts=accounts, version=self.version.next(now_ms))

    def with_white(self, white: Iterable[AddressPattern], now_ms: int) -> AclFile:
        """Return the file with another white list."""
        return replace(self, white=tuple(white), version=self.version.next(now_ms))


class AccountView(Struct, frozen=True):
    """An account as a server tells it, without its secret: texts, as the files write them."""

    access_key: str
    """Name of the account."""
    white: str
    """Addresses from which it needs no signature; "": none."""
    admin: bool
    """Whether it may administer."""
    default_topic: str
    """Right to topics that `topics` does not name: `DENY`, `PUB`, `SUB`, or `PUB|SUB`."""
    default_group: str
    """Right to groups that `groups` does not name, likewise."""
    topics: tuple[str, ...]
    """`topicA=PUB|SUB` and the like."""
    groups: tuple[str, ...]
    """`groupA=SUB` and the like."""


class AclView(Struct, frozen=True):
    """Accounts and white lists of a server."""

    white: tuple[str, ...]
    """Addresses from which every request is allowed, signed or not."""
    accounts: tuple[AccountView, ...]
    """All accounts."""


class AclRules:
    """The rules of a server: all its files together. Never changed: a reload makes new ones.

    White lists add up. An access key in several files counts as the first one has it, and `warnings` says so: RocketMQ reads
    `conf/acl/` before `conf/plain_acl.yml` (`reading_order`).
    """

    def __init__(self, files: Mapping[str, AclFile] | None = None) -> None:
        self.files: Final[Mapping[str, AclFile]] = dict(files or {})
        self.accounts: Final = dict[str, Account]()
        self.file_of: Final = dict[str, str]()
        """Access key → name of the file that counts."""
        self.warnings: Final = list[str]()
        """What whoever wrote the files should know. For the log."""
        self.white: Final = AddressList(pattern for file in self.files.values() for pattern in file.white)
        for name, file in self.files.items():
            for account in file.accounts:
                self._add(name, account)
            self.warnings.extend(
                f"{name}: globalWhiteRemoteAddresses has {pattern.text}: whoever can connect may do everything, unsigned"
                for pattern in file.white
                if pattern.everybody
            )

    def _add(self, name: str, account: Account) -> None:
        key = account.access_key
        if key in self.accounts:
            self.warnings.append(
                f"{name}: the accessKey {key} is in {self.file_of[key]} too, and only that one counts: take one of them away"
            )
            return
        self.accounts[key], self.file_of[key] = account, name
        if account.white.everybody:
            self.warnings.append(
                f"{name}: whiteRemoteAddress of {key} is {account.white.text}: whoever knows this name may do everything, unsigned"
            )


def reading_order(main: str, others: Iterable[str]) -> list[str]:
    """Return the paths of a server's files in the order in which they count.

    RocketMQ takes those of the folder first, in the order in which the system lists them, which is not always the same. Ours are
    sorted.
    """
    return [*sorted(set(others) - {main}), main]
