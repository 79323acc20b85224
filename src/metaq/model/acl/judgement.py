"""Whether a request is allowed, and why. The order of the checks is RocketMQ's:

1. The address is in the global white list: everything is allowed.
2. The request names no account, or one that there is not: refused.
3. The address is in the account's white list: everything is allowed.
4. The signature is wrong: refused.
5. Sends to the topic of traces are allowed to every account.
6. What administers needs an account with `admin: true`.
7. Topics and groups need the right that the account has to them. To administrators for whom none is named, all are open.

`admit` does the first four and needs the request's bytes; `authorise` the others, of which the answers may be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from metaq.errors import Reason, Refused
from metaq.model.access import WHITE, Action
from metaq.model.acl.accounts import Account, AclRules
from metaq.model.acl.addresses import AddressPattern
from metaq.model.acl.rights import Right
from metaq.model.acl.secret import Secret
from metaq.model.topics.system import TRACE_TOPIC
from metaq.model.topics.topic import RETRY_PREFIX

ACL_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
"""RocketMQ's remark begins with it; clients, tools and their users' alarms look for the last word."""


class Denied(Refused):
    """The request is not allowed.

    Args:
        sentence: RocketMQ's for this case.
        why: what is missing, in plain words.
    """

    def __init__(self, sentence: str, why: str) -> None:
        super().__init__(Reason.DENIED, f"{ACL_EXCEPTION}: {sentence}, {why}")
        self.sentence, self.why = sentence, why


class Admission(Struct, frozen=True):
    """Who sent a request, once that is proven."""

    account: Account | None
    """None: the address was enough, no account was named or looked at."""
    white: AddressPattern | None = None
    """Entry of a white list by which everything is allowed."""

    @property
    def identity(self) -> str:
        """Text for `Caller.identity`. Different wherever `authorise` may answer differently."""
        key = self.account.access_key if self.account else ""
        return key if self.white is None else WHITE + key

    @property
    def trusted(self) -> bool:
        """Whether nothing is refused, so that paths may be used that do not know which topic is meant."""
        return self.white is not None or (self.account is not None and self.account.unlimited)


class Need(Struct, frozen=True):
    """What a request needs; `needed` makes it."""

    action: Action
    right: Right
    topic: str = ""
    group: str = ""


def needed(action: Action, resource: str = "") -> Need | None:
    """Return what an action needs; None: any account may.

    Args:
        action: what is done.
        resource: a topic, or a group as its retry topic (`%RETRY%group`); "" for what has neither.
    """
    if action in {Action.ADMINISTER, Action.REGISTER}:
        return Need(action, Right.ANY, resource)
    if not resource:
        return None
    group = resource.removeprefix(RETRY_PREFIX) if resource.startswith(RETRY_PREFIX) else ""
    right = {Action.PUBLISH: Right.PUB, Action.SUBSCRIBE: Right.SUB}.get(action, Right.ANY)
    if group:
        # A consumer sends to its retry topic what it could not handle: that is a right of the group.
        return Need(action, Right.SUB if right is Right.PUB else right, group=group)
    return Need(action, right, resource)


def admit(rules: AclRules, address: str, access_key: str, signed: Callable[[Secret], bool]) -> Admission:
    """Return who sent a request. Raises Denied.

    Args:
        rules: the server's.
        address: the peer's, without a port.
        access_key: of the request; "" if it has none.
        signed: whether its signature is right by the given secret (`metaq.wire.signing.verify`). Asked once at most.
    """
    pattern = rules.white.find(address)
    if pattern is not None:
        return Admission(None, pattern)
    if not access_key:
        raise Denied(
            "No accessKey is configured",
            f"the request is not signed, and {address} is not in globalWhiteRemoteAddresses",
        )
    account = rules.accounts.get(access_key)
    if account is None:
        raise Denied(f"No acl config for {shown(access_key)}", "there is no such account here")
    if account.white.matches(address):
        return Admission(account, account.white)
    if not signed(account.secret_key):
        raise Denied(
            f"Check signature failed for accessKey={shown(access_key)}",
            "the secretKey is another one here, or the request was changed on its way",
        )
    return Admission(account)


def admitted(rules: AclRules, address: str, identity: str) -> Admission | None:
    """Return the admission of an `Admission.identity`, by rules that may be newer; None: it is gone.

    Args:
        rules: the server's.
        address: of the peer that the identity was found for, without a port. White lists are asked again.
        identity: the one that was found.
    """
    if identity == WHITE:
        pattern = rules.white.find(address)
        return None if pattern is None else Admission(None, pattern)
    account = rules.accounts.get(identity.removeprefix(WHITE))
    if account is None:
        return None
    if not identity.startswith(WHITE):
        return Admission(account)
    return Admission(account, account.white) if account.white.matches(address) else None


def authorise(admission: Admission, needs: Iterable[Need | None], request: str = "") -> str:
    """Return why a request is allowed, in plain words. Raises Denied.

    Args:
        admission: who sent it (`admit`).
        needs: all that it needs (`needed`).
        request: its code, for the text.
    """
    if admission.white is not None:
        return _by_white_list(admission, admission.white)
    account = admission.account
    assert account is not None, "only a white list admits without an account"
    reasons = [_grant(account, need, request) for need in needs if need is not None]
    return "; ".join(reasons) or f"the account {account.access_key} is known, and the request needs no right"


class Verdict(Struct, frozen=True):
    """Whether a request is or would be allowed."""

    allowed: bool
    why: str
    """In plain words."""
    remark: str = ""
    """Of the answer if it is refused."""


class AccessExplanation(Struct, frozen=True):
    """Whether a request would be allowed, and which rule decides."""

    allowed: bool
    """Whether it would be allowed."""
    why: str
    """In plain words, with the entry that decides."""
    file: str = ""
    """Path of the file that has it; "": none does."""
    remark: str = ""
    """Of the answer if it is refused."""


def explain(
    rules: AclRules, address: str, access_key: str, action: Action, resource: str, *, signed: bool = True
) -> AccessExplanation:
    """Explain what would become of a request. Arguments as those of `admit` and `needed`; `signed`: its signature is right."""
    verdict = judge(rules, address, access_key, lambda _secret: signed, [needed(action, resource)], resource)
    pattern = rules.white.find(address)
    if pattern is not None:
        file = next((name for name, one in rules.files.items() if pattern in one.white), "")
    else:
        file = rules.file_of.get(access_key, "")
    return AccessExplanation(verdict.allowed, verdict.why, file, verdict.remark)


def judge(
    rules: AclRules,
    address: str,
    access_key: str,
    signed: Callable[[Secret], bool],
    needs: Iterable[Need | None],
    request: str = "",
) -> Verdict:
    """Explain what becomes of a request. Arguments as those of `admit` and `authorise`."""
    try:
        return Verdict(True, authorise(admit(rules, address, access_key, signed), needs, request))
    except Denied as denied:
        return Verdict(False, denied.why, denied.text)


def shown(text: str) -> str:
    """Return what a peer sent as it may stand in a log: printable, and not long."""
    printable = "".join(char if char.isprintable() else "?" for char in text[:64])
    return printable if len(text) <= 64 else f"{printable}..."


def _by_white_list(admission: Admission, white: AddressPattern) -> str:
    if admission.account is None:
        return f"the address is in globalWhiteRemoteAddresses ({white.text}): everything is allowed"
    return f"the address is in whiteRemoteAddress ({white.text}) of the account {admission.account.access_key}: everything is allowed"


def _grant(account: Account, need: Need, request: str) -> str:
    """Return why an account has what is needed. Raises Denied."""
    key = account.access_key
    if need.action is Action.PUBLISH and need.topic == TRACE_TOPIC:
        return f"every account may send traces to {TRACE_TOPIC}"
    if need.action in {Action.ADMINISTER, Action.REGISTER}:
        if account.admin:
            return f"the account {key} has admin: true"
        raise Denied(
            f"Need admin permission for request code={request}, but accessKey={key} is not",
            f"admin: true is needed to {need.action.value}",
        )
    if account.unlimited:
        return f"the account {key} has admin: true and no topicPerms or groupPerms: everything is allowed"
    what, name = ("group", need.group) if need.group else ("topic", need.topic)
    right = account.right_to_group(name) if need.group else account.right_to_topic(name)
    source = _source(account, what, name, right)
    if right.allows(need.right):
        return f"{source}, and {need.right.text} is needed"
    raise Denied(
        f"No default permission for {what}:{shown(name)}",
        f"{need.right.text} is needed to {need.action.value}, and {source}",
    )


def _source(account: Account, what: str, name: str, right: Right) -> str:
    """Where an account's right to a topic or group comes from."""
    if what == "group" and RETRY_PREFIX + name in account.topics:
        entry = f"topicPerms has {RETRY_PREFIX}{name}={right.text}"
    elif name in (account.groups if what == "group" else account.topics):
        entry = f"{what}Perms has {name}={right.text}"
    else:
        entry = f"{what}Perms does not name {shown(name)} and default{what.capitalize()}Perm is {right.text}"
    return f"{entry} for the account {account.access_key}"
