"""From the values of an ACL file to its text: a whole one, or the changes in a text that an administrator has written.

RocketMQ writes its map of the file anew, without the comments. Here only what has changed is replaced; the rest of the text stays
as it is, byte by byte. The new text is read again before it is returned: where it would not say what it should, because the file is
written in a way that is not foreseen here, all of it is written anew, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import yaml
from msgspec import Struct

from metaq.errors import ConfigError
from metaq.model.acl.accounts import Account, AclFile
from metaq.model.acl.rights import Right
from metaq.model.topics.topic import DataVersion
from metaq.wire.acl.reading import ACCOUNTS, DATA_VERSION, WHITE_LIST, read
from metaq.wire.acl.tree import Node, parse

Value: TypeAlias = str | list[str]
"""A scalar, or a list of them, in YAML."""

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.%|=*-]*")
_STRING_TAG: Final = "tag:yaml.org,2002:str"
_resolve: Final[Callable[..., str]] = yaml.SafeLoader("").resolve


class Rewritten(Struct, frozen=True):
    """A changed file."""

    data: bytes
    comments_kept: bool
    """Whether everything that has not changed stands where and as it was."""


def write(file: AclFile) -> bytes:
    """Return the text of a file that is not there yet."""
    lines = [_entry(WHITE_LIST, _white(file))] if file.white else []
    lines.append(_accounts(file.accounts))
    if file.version != DataVersion():
        lines.append(_entry(DATA_VERSION, _version(file.version)))
    return ("\n".join(lines) + "\n").encode()


def rewrite(data: bytes, wanted: AclFile, name: str) -> Rewritten:
    """Return the text of a file that is changed.

    Args:
        data: its text now.
        wanted: its values then.
        name: its name, for errors.

    Raises ConfigError: the present text is broken. Nothing is to be written over it then.
    """
    old = read(data, name)
    text = data.decode("utf-8-sig")
    root = parse(text, name)
    try:
        changed = (
            _Edit(text).changed(root, old, wanted) if root else f"{text.rstrip()}\n{write(wanted).decode()}".lstrip()
        )
        if read(changed.encode(), name) == wanted:
            return Rewritten(changed.encode(), comments_kept=True)
    except (ConfigError, _Unforeseen):
        pass
    return Rewritten(write(wanted), comments_kept="#" not in text)


class _Unforeseen(Exception):
    """The text is written in a way that is not changed in place."""


class _Edit:
    """Changes of one text, collected by place and applied together."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes = list[tuple[int, int, int, str]]()
        """Start, stop, number, and the new text."""

    def changed(self, root: Node, old: AclFile, wanted: AclFile) -> str:
        """Return the text with the values that are wanted."""
        if root.pairs is None or root.flow:
            raise _Unforeseen
        if old.white != wanted.white:
            self._set(root, WHITE_LIST, _white(wanted))
        self._set_accounts(root, old, wanted)
        if old.version != wanted.version:
            self._set(root, DATA_VERSION, _version(wanted.version))
        text = self._text
        # From the end on, so that the places of what comes before stay right.
        for start, stop, _, new in sorted(self._changes, reverse=True):
            text = text[:start] + new + text[stop:]
        return text

    def _set_accounts(self, root: Node, old: AclFile, wanted: AclFile) -> None:
        found = root.get(ACCOUNTS)
        nodes = found[1].items or [] if found else []
        before = {account.access_key: (account, node) for account, node in zip(old.accounts, nodes, strict=True)}
        after = {account.access_key: account for account in wanted.accounts}
        new = [account for key, account in after.items() if key not in before]
        if found is None or not nodes:
            if new and found is None:
                self._add_lines(len(self._text.rstrip()), _accounts(new).split("\n"))
            elif new and found is not None:
                self._replace(found, _accounts(new).removeprefix(f"{ACCOUNTS}:"))
            return
        if found[1].flow:
            raise _Unforeseen
        if not after:
            self._replace(found, " []")
            return
        for key, (account, node) in before.items():
            if key not in after:
                self._cut_item(node)
            elif account != after[key]:
                have, want = _account(account), _account(after[key])
                for field in [field for field in want if want[field] != have[field]]:
                    self._set(node, field, want[field])
        if new:
            last = nodes[-1]
            dash = self._dash(last)
            indent = " " * (dash - self._line_start(dash))
            gap = " " * (last.start - dash - 1)
            lines = [indent + line for account in new for line in _item(account, gap)]
            self._add_lines(last.stop, lines)

    def _set(self, around: Node, key: str, value: Value) -> None:
        """Set an entry of a map."""
        found = around.get(key)
        if found is not None:
            old = found[1]
            in_place = isinstance(value, list) and bool(value) and old.items and not old.flow and not around.flow
            if in_place and isinstance(value, list):
                items = [f"- {item}" for item in value]
                self._change(old.start, old.stop, f"\n{' ' * old.column}".join(items))
            else:
                self._replace(found, f" {_inline(value)}")
        elif around.flow:
            raise _Unforeseen
        else:
            lines = _entry(key, value).split("\n")
            self._add_lines(around.stop, [f"{' ' * around.column}{line}" for line in lines])

    def _change(self, start: int, stop: int, new: str) -> None:
        self._changes.append((start, stop, len(self._changes), new))

    def _replace(self, pair: tuple[Node, Node], value: str) -> None:
        """Replace the value of an entry, from the colon on."""
        key, old = pair
        colon = self._text.index(":", key.stop)
        self._change(colon + 1, max(colon + 1, old.stop), value)

    def _cut_item(self, node: Node) -> None:
        """Remove an item of a list, with the lines that it is on."""
        start = self._line_start(self._dash(node))
        self._change(start, self._line_end(node.stop), "")

    def _add_lines(self, behind: int, lines: Sequence[str]) -> None:
        """Add lines behind the one that a place is in."""
        end = self._line_end(behind)
        text = "".join(f"{line}\n" for line in lines)
        if end and self._text[end - 1] != "\n":
            text = f"\n{text}"
        self._change(end, end, text)

    def _dash(self, node: Node) -> int:
        """The place of the dash before an item of a list."""
        line = self._line_start(node.start)
        before = self._text[line : node.start]
        if before.strip() != "-":
            raise _Unforeseen
        return line + before.index("-")

    def _line_start(self, at: int) -> int:
        return self._text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        """The place behind the end of a line."""
        return self._text.find("\n", at) + 1 or len(self._text)


def _accounts(accounts: Sequence[Account]) -> str:
    if not accounts:
        return f"{ACCOUNTS}: []"
    return "\n".join([f"{ACCOUNTS}:", *(line for account in accounts for line in _item(account, " "))])


def _item(account: Account, gap: str) -> list[str]:
    """The lines of an account as an item of a list."""
    lines = "\n".join(_entry(key, value) for key, value in _account(account).items()).split("\n")
    return [f"-{gap}{lines[0]}", *(f" {gap}{line}" for line in lines[1:])]


def _account(account: Account) -> dict[str, Value]:
    return {
        "accessKey": _scalar(account.access_key),
        "secretKey": _scalar(account.secret_key.reveal()),
        "whiteRemoteAddress": _scalar(account.white.text),
        "admin": "true" if account.admin else "false",
        "defaultTopicPerm": account.default_topic.text,
        "defaultGroupPerm": account.default_group.text,
        "topicPerms": _rights(account.topics),
        "groupPerms": _rights(account.groups),
    }


def _rights(rights: Mapping[str, Right]) -> list[str]:
    return [_scalar(f"{name}={right.text}") for name, right in rights.items()]


def _white(file: AclFile) -> list[str]:
    return [_scalar(pattern.text) for pattern in file.white]


def _version(version: DataVersion) -> list[str]:
    return [f"{{counter: {version.counter}, timestamp: {version.timestamp}}}"]


def _entry(key: str, value: Value) -> str:
    """An entry of a map, its list on lines of its own."""
    if isinstance(value, str) or not value:
        return f"{key}: {_inline(value)}"
    return "\n".join([f"{key}:", *(f"- {item}" for item in value)])


def _inline(value: Value) -> str:
    return value if isinstance(value, str) else f"[{', '.join(value)}]"


def _scalar(text: str) -> str:
    """A text that every YAML reads as this text; in quotes unless it cannot be anything else."""
    if (
        _PLAIN.fullmatch(text)
        and not text[0].isdigit()
        and _resolve(yaml.ScalarNode, text, (True, False)) == _STRING_TAG
    ):
        return text
    return json.dumps(text, ensure_ascii=False)
