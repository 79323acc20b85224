"""Who asks, what for, and who may: the words in which every server and path asks whether a request is allowed."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from metaq.errors import Reason, Refused

CallerKind: TypeAlias = tuple[str, bool, bool]


class Caller(Struct, frozen=True):
    """Who makes a request. A connection has one, made once, for all requests that name nobody else.

    RocketMQ signs requests and not connections: several callers may share a connection, as behind a proxy.
    """

    address: str
    """The peer's host, without a port."""
    loopback: bool
    """Whether it is this machine."""
    identity: str = ""
    """Whom it has proved to be; empty for nobody in particular."""
    encrypted: bool = False
    """Whether nobody on the way can read or change what it asks."""
    kind: CallerKind = ("", False, False)
    """All of it that a judgement may depend on. Computed, whatever is given."""

    def __post_init__(self) -> None:
        force_setattr(self, "kind", (self.identity, self.loopback, self.encrypted))


class Action(enum.Enum):
    """What a request does to the topic, group or table that it names."""

    __hash__ = (
        object.__hash__
    )  # members are single; enum's own hash is a Python call, and judgements are kept by action

    PUBLISH = "send messages to a topic"
    SUBSCRIBE = "receive messages of a topic, and keep a group's position in it"
    OBSERVE = "look at settings, routes and figures"
    ADMINISTER = "change settings"
    REGISTER = "make a broker known, or withdraw it"


Authorise: TypeAlias = Callable[[Caller, Action, str], None]
"""(caller, what for, the topic or group or, without one, the request's name): returns if it is allowed.

Raises Refused NO_PERMISSION. The answer is kept for all callers of the same `kind` until the rules change; the address is for
its text.
"""


def everybody(_caller: Caller, _action: Action, _resource: str) -> None:
    """Everybody may everything, as at a RocketMQ broker without ACL."""


def administered_locally(caller: Caller, action: Action, _resource: str) -> None:
    """Everybody may everything, except that settings are changed from this machine only.

    RocketMQ's open name server was the way into CVE-2023-37582.
    """
    if action is Action.ADMINISTER and not caller.loopback:
        raise Refused(Reason.NO_PERMISSION, f"taken from loopback addresses only, not from {caller.address}")
