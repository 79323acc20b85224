"""Changes of accounts and white lists that an administrator asks for, and what becomes of the files by them.

As RocketMQ's 50, 51 and 53: an account that there is not goes to the main file, any other is changed in the file that counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from metaq.errors import Reason, Refused
from metaq.model.access import WHITE
from metaq.model.acl.accounts import KEY_CHARS_MIN, Account, AclFile, AclRules
from metaq.model.acl.addresses import AddressPattern, BadPattern, parse_pattern
from metaq.model.acl.rights import BadRight, Right, parse_right
from metaq.model.acl.secret import NO_SECRET, Secret

_OUTSIDE_BRACES: Final = re.compile(r",(?![^{}]*\})")
NAME_CHARS_MAX: Final = 255


class PutAccount(Struct, frozen=True):
    """An account is made or changed. None leaves what there is, or takes RocketMQ's default for a new one."""

    access_key: str
    secret_key: Secret = NO_SECRET
    """Empty: the present one stays. A new account needs one."""
    white: AddressPattern | None = None
    admin: bool | None = None
    default_topic: Right | None = None
    default_group: Right | None = None
    topics: Mapping[str, Right] | None = None
    """All that the account has then."""
    groups: Mapping[str, Right] | None = None

    def of(self, old: Account | None) -> Account:
        """Return the account as it is then. Raises Refused: it would have no secret."""
        if old is None:
            if not self.secret_key:
                raise Refused(
                    Reason.INVALID, f"there is no account {self.access_key} here, and a new one needs a secretKey"
                )
            old = Account(self.access_key, self.secret_key)
        wanted = {
            "secret_key": self.secret_key or None, "white": self.white, "admin": self.admin, "topics": self.topics,
            "groups": self.groups, "default_topic": self.default_topic, "default_group": self.default_group,
        }  # fmt: skip
        return replace(old, **{name: value for name, value in wanted.items() if value is not None})


class DropAccount(Struct, frozen=True):
    """An account is taken away, in every file that has it: what did not count must not come in force by that."""

    access_key: str


class PutWhite(Struct, frozen=True):
    """Another list of addresses from which everything is allowed."""

    white: tuple[AddressPattern, ...]
    file: str = ""
    """Path of the file that has it; "": the main file."""


AclChange: TypeAlias = PutAccount | DropAccount | PutWhite


def changed(rules: AclRules, main: str, change: AclChange, now_ms: int) -> dict[str, AclFile]:
    """Return the files that a change changes, by name, in the order in which they must be saved.

    Args:
        rules: as the files have them now.
        main: name of the main file.
        change: what is asked for.
        now_ms: for the data version of each file.

    Raises Refused INVALID: there is no such account or file, or a new account would have no secret.
    """
    match change:
        case PutAccount(access_key=key):
            name = rules.file_of.get(key, main)
            file = rules.files.get(name, AclFile())
            return {name: file.with_account(change.of(rules.accounts.get(key)), now_ms)}
        case DropAccount(access_key=key):
            if key not in rules.accounts:
                raise Refused(Reason.INVALID, f"there is no account {_shown(key)} here")
            # The one that counts goes last: if this is cut short, nothing has come in force that did not count before.
            having = [name for name, file in rules.files.items() if file.account(key) is not None]
            return {name: rules.files[name].without_account(key, now_ms) for name in reversed(having)}
        case PutWhite(white=white, file=name):
            if name and name not in rules.files:
                raise Refused(
                    Reason.INVALID, f"{_shown(name)} is none of the files of accounts here: {', '.join(rules.files)}"
                )
            name = name or main
            return {name: rules.files.get(name, AclFile()).with_white(white, now_ms)}


# ---------------------------------------------------------------- from texts, as requests have them


def access_key_of(text: str) -> str:
    """Return an access key. Raises Refused INVALID."""
    if len(text) < KEY_CHARS_MIN or len(text) > NAME_CHARS_MAX or not text.isprintable() or text != text.strip():
        raise Refused(
            Reason.INVALID,
            f"the accessKey {_shown(text)} has {len(text)} characters: it must have {KEY_CHARS_MIN} to {NAME_CHARS_MAX} that can be "
            "printed, and none of them a blank at an end",
        )
    if text.startswith(WHITE):
        raise Refused(Reason.INVALID, f"the accessKey must not begin with {WHITE!r}")
    return text


def secret_key_of(text: str) -> Secret:
    """Return a secret key. Raises Refused INVALID, without it."""
    if len(text) < KEY_CHARS_MIN or len(text) > NAME_CHARS_MAX or not text.isprintable() or text != text.strip():
        raise Refused(
            Reason.INVALID,
            f"the secretKey has {len(text)} characters: it must have {KEY_CHARS_MIN} to {NAME_CHARS_MAX} that can be printed, and none "
            "of them a blank at an end",
        )
    return Secret(text)


def pattern_of(text: str) -> AddressPattern:
    """Return an address pattern. Raises Refused INVALID."""
    try:
        return parse_pattern(text)
    except BadPattern as error:
        raise Refused(Reason.INVALID, str(error)) from None


def patterns_of(text: str) -> tuple[AddressPattern, ...]:
    """Return the patterns of a list joined by commas; those between braces join nothing. Raises Refused INVALID."""
    return tuple(pattern_of(one.strip()) for one in _OUTSIDE_BRACES.split(text) if one.strip())


def accounts_of(text: str) -> list[tuple[tuple[AddressPattern, ...], str]]:
    """Return (addresses, access key) of each entry `ADDRESSES=ACCOUNT` of a list joined by semicolons. Raises Refused INVALID."""
    found = []
    for entry in filter(None, (one.strip() for one in text.split(";"))):
        addresses, joined, account = entry.partition("=")
        patterns = patterns_of(addresses)
        if not joined or not patterns:
            raise Refused(Reason.INVALID, f"{_shown(entry)}: an entry is written ADDRESSES=ACCOUNT")
        found.append((patterns, access_key_of(account.strip())))
    return found


def right_of(text: str) -> Right:
    """Return a permission. Raises Refused INVALID."""
    try:
        return parse_right(text)
    except BadRight as error:
        raise Refused(Reason.INVALID, str(error)) from None


def rights_of(text: str, kind: str) -> dict[str, Right]:
    """Return the entries `NAME=RIGHT` of a list joined by commas. Raises Refused INVALID.

    Args:
        text: the list; "" has none.
        kind: `topic` or `group`, for the error.
    """
    found = dict[str, Right]()
    for entry in filter(None, text.split(",")):
        name, *rest = (part.strip() for part in entry.split("="))
        if len(rest) != 1 or not name or name == WHITE or len(name) > NAME_CHARS_MAX or not name.isprintable():
            raise Refused(Reason.INVALID, f"{_shown(entry)}: an entry of {kind}Perms is written {kind}=PUB|SUB")
        if name in found:
            raise Refused(Reason.INVALID, f"{kind}Perms names {_shown(name)} twice")
        found[name] = right_of(rest[0])
    return found


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
