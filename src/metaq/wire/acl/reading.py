"""From the text of an ACL file to its values.

Stricter than RocketMQ, which takes what it does not understand for DENY, for nothing, or fails at the first request: whatever is
not clearly meant is an error with its line. No error's text has a secret in it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Final

import yaml

from metaq.errors import ConfigError
from metaq.model.access import WHITE
from metaq.model.acl.accounts import KEY_CHARS_MIN, Account, AclFile
from metaq.model.acl.addresses import NOBODY, AddressPattern, BadPattern, parse_pattern
from metaq.model.acl.rights import BadRight, Right, parse_right
from metaq.model.acl.secret import Credentials, Secret
from metaq.model.topics.topic import DataVersion
from metaq.wire.acl.tree import Node, parse, wrong

WHITE_LIST: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
DATA_VERSION: Final = "dataVersion"
FILE_KEYS: Final = (WHITE_LIST, ACCOUNTS, DATA_VERSION)
ACCOUNT_KEYS: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip
CREDENTIAL_KEYS: Final = ("accessKey", "secretKey", "securityToken")
VERSION_KEYS: Final = ("counter", "timestamp", "stateVersion")

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_POWER: Final = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")
"""A number for RocketMQ's YAML reader, and not for ours."""
_SHOWABLE: Final = re.compile(r"[A-Za-z_.-]{1,40}")
_STRING_TAG: Final = "tag:yaml.org,2002:str"
_resolve: Final[Callable[..., str]] = yaml.SafeLoader("").resolve


def read(data: bytes, name: str) -> AclFile:
    """Read an ACL file. An empty one has no rules.

    Args:
        data: the file's bytes, UTF-8.
        name: the file's, for errors.

    Raises ConfigError: file, line and reason.
    """
    return of_tree(parse(_decoded(data, name), name), name)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}, line {line}: byte {error.start} is not UTF-8") from None


def read_credentials(data: bytes, name: str) -> Credentials:
    """Read what a client signs with, as RocketMQ's `tools.yml` has it. Raises ConfigError, as `read`."""
    root = parse(_decoded(data, name), name)
    if root is None:
        raise ConfigError(f"{name} is empty: accessKey and secretKey are wanted")
    fields = _fields(root, name, CREDENTIAL_KEYS, "the file")
    key, secret = (_key(root, name, fields, one, "of the file") for one in CREDENTIAL_KEYS[:2])
    token = fields.get(CREDENTIAL_KEYS[2])
    text = "" if token is None or token.null else _text(token, name, CREDENTIAL_KEYS[2])
    return Credentials(key, Secret(secret), Secret(text))


def of_tree(root: Node | None, name: str) -> AclFile:
    """Return the values of a parsed file. Raises ConfigError."""
    if root is None:
        return AclFile()
    fields = _fields(root, name, FILE_KEYS, "the file")
    white = tuple(_pattern(item, name, WHITE_LIST) for item in _items(fields.get(WHITE_LIST), name, WHITE_LIST))
    accounts, lines = list[Account](), dict[str, int]()
    for item in _items(fields.get(ACCOUNTS), name, ACCOUNTS):
        account = _account(item, name)
        if (before := lines.setdefault(account.access_key, item.line)) != item.line:
            raise wrong(item, name, f"the accessKey {account.access_key} is in line {before} already")
        accounts.append(account)
    return AclFile(white, tuple(accounts), _version(fields.get(DATA_VERSION), name))


def _account(node: Node, name: str) -> Account:
    fields = _fields(node, name, ACCOUNT_KEYS, "an account")
    key = _key(node, name, fields, "accessKey")
    if key.startswith(WHITE):
        raise wrong(fields["accessKey"], name, f"the accessKey must not begin with {WHITE!r}")
    about = f"of {key}"
    return Account(
        access_key=key,
        secret_key=Secret(_key(node, name, fields, "secretKey", about)),
        white=_pattern(fields.get("whiteRemoteAddress"), name, f"whiteRemoteAddress {about}"),
        admin=_truth(fields.get("admin"), name, f"admin {about}"),
        default_topic=_default(fields.get("defaultTopicPerm"), name, f"defaultTopicPerm {about}"),
        default_group=_default(fields.get("defaultGroupPerm"), name, f"defaultGroupPerm {about}"),
        topics=_rights(fields.get("topicPerms"), name, "topic", about),
        groups=_rights(fields.get("groupPerms"), name, "group", about),
    )


def _fields(node: Node, name: str, known: tuple[str, ...], what: str) -> dict[str, Node]:
    """The entries of a map of which the keys are known."""
    if node.pairs is None:
        raise wrong(node, name, f"{what} must be a map of {', '.join(known)}")
    fields = dict[str, Node]()
    for key, value in node.pairs:
        text = key.scalar or ""
        if text not in known:
            near = difflib.get_close_matches(text, known, 1, 0.7)
            hint = f"; is {near[0]} meant?" if near else f"; known are {', '.join(known)}"
            # A forgotten blank makes a key of `secretKey:12345678`: only what looks like a key is shown.
            raise wrong(key, name, f"{what} has an unknown key{f' {text}' if _SHOWABLE.fullmatch(text) else ''}{hint}")
        if text in fields:
            raise wrong(key, name, f"{text} is there twice")
        fields[text] = value
    return fields


def _items(node: Node | None, name: str, what: str) -> list[Node]:
    if node is None or node.null:
        return []
    if node.items is None:
        raise wrong(node, name, f"{what} must be a list, each entry on its own line after '- '")
    return node.items


def _text(node: Node, name: str, what: str) -> str:
    """The text of a scalar. RocketMQ takes numbers as texts too; what it would turn into another text is refused."""
    if node.scalar is None:
        raise wrong(node, name, f"{what} must be a text")
    text = node.scalar
    guessed = node.plain and (_resolve(yaml.ScalarNode, text, (True, False)) != _STRING_TAG or _POWER.fullmatch(text))
    if guessed and not (text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))):
        raise wrong(node, name, f"{what} is a number, a date, a truth value or nothing for YAML: put it in quotes")
    if not text.isprintable():
        raise wrong(node, name, f"{what} has characters that cannot be printed")
    return text


def _key(account: Node, name: str, fields: dict[str, Node], key: str, about: str = "") -> str:
    what = f"{key} {about}".strip()
    node = fields.get(key)
    if node is None or node.null:
        raise wrong(node or account, name, f"{what} is missing" if about else "an account has no accessKey")
    text = _text(node, name, what)
    if len(text) < KEY_CHARS_MIN:
        raise wrong(node, name, f"{what} has {len(text)} characters; it must be longer than {KEY_CHARS_MIN - 1}")
    if text != text.strip():
        raise wrong(node, name, f"{what} begins or ends with a blank")
    return text


def _truth(node: Node | None, name: str, what: str) -> bool:
    if node is None or node.null:
        return False
    # YAML 1.1, which RocketMQ reads, has more words for it.
    word = (node.scalar or "").lower() if node.plain else ""
    if word in {"true", "yes", "on"}:
        return True
    if word in {"false", "no", "off"}:
        return False
    raise wrong(node, name, f"{what} must be true or false, without quotes")


def _pattern(node: Node | None, name: str, what: str) -> AddressPattern:
    if node is None or node.null:
        return NOBODY
    try:
        return parse_pattern(_text(node, name, what))
    except BadPattern as error:
        raise wrong(node, name, f"{what}: {error}") from None


def _default(node: Node | None, name: str, what: str) -> Right:
    if node is None or node.null:
        return Right.DENY
    return _right(_text(node, name, what), node, name, what)


def _right(text: str, node: Node, name: str, what: str) -> Right:
    try:
        return parse_right(text)
    except BadRight as error:
        raise wrong(node, name, f"{what}: {error}") from None


def _rights(node: Node | None, name: str, kind: str, about: str) -> dict[str, Right]:
    """The entries `NAME=RIGHT` of topicPerms or groupPerms."""
    what, found = f"{kind}Perms {about}", dict[str, Right]()
    for item in _items(node, name, what):
        named, *rest = _text(item, name, what).split("=")
        named = named.strip()
        if len(rest) != 1 or not named:
            raise wrong(item, name, f"{what}: an entry is written {kind}=PUB|SUB")
        if named == "*":
            raise wrong(
                item, name, f"{what}: '*' is no name; default{kind.capitalize()}Perm is for all that are not named"
            )
        if named in found:
            raise wrong(item, name, f"{what}: {kind} {named} is there twice")
        found[named] = _right(rest[0], item, name, what)
    return found


def _version(node: Node | None, name: str) -> DataVersion:
    items = _items(node, name, DATA_VERSION)
    if not items:
        return DataVersion()
    fields = _fields(items[0], name, VERSION_KEYS, DATA_VERSION)
    number: Callable[[str], int] = lambda key: _number(fields.get(key), name, f"{DATA_VERSION} {key}")  # noqa: E731
    return DataVersion(number("timestamp"), number("counter"))


def _number(node: Node | None, name: str, what: str) -> int:
    if node is None or node.null:
        return 0
    if node.scalar is None or not _WHOLE.fullmatch(node.scalar) or abs(int(node.scalar)) >= 1 << 63:
        raise wrong(node, name, f"{what} must be a whole number")
    return int(node.scalar)
