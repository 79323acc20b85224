"""Access: the caller of a request, what it does, and the function that allows it. Every server asks in these terms."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from metaq.errors import Reason, Refused

CallerKind: TypeAlias = tuple[str, bool, bool]

WHITE: Final = "*"
"""Begins identities of callers that were let in by a white list, for their address. No access key does."""


class Caller(Struct, frozen=True):
    """Caller of a request. A connection has one for all requests that are not signed.

    RocketMQ signs requests, not connections: several callers may share a connection, as behind a proxy.
    """

    address: str
    """The peer's host, without a port."""
    loopback: bool
    """The peer is this machine."""
    identity: str = ""
    """Proven identity; empty if none was claimed."""
    encrypted: bool = False
    """The connection is under TLS or another layer."""
    kind: CallerKind = ("", False, False)
    """All that a judgement may depend on, and the key under which it is kept. Computed, whatever is given."""

    @property
    def client(self) -> str:
        """Name of the client that limits per client count for: its proven identity, else its host.

        Never its connection, of which it can open thousands, nor the client id that it says of itself. Callers of a white list
        are known by their address alone: each host is a client.
        """
        return self.address if self.identity.startswith(WHITE) else self.identity or self.address

    def __post_init__(self) -> None:
        # Where the address was the proof, the judgement of one does not hold for another.
        proven = f"{self.identity} {self.address}" if self.identity.startswith(WHITE) else self.identity
        force_setattr(self, "kind", (proven, self.loopback, self.encrypted))


class Action(enum.Enum):
    """What a request does to the topic, group or table that it names."""

    # Members are singletons. The hash of enum.Enum is a call of Python code, and judgements are looked up by action.
    __hash__ = object.__hash__

    PUBLISH = "send messages to a topic"
    SUBSCRIBE = "receive messages of a topic, and keep a group's position in it"
    OBSERVE = "look at settings, routes and figures"
    ADMINISTER = "change settings"
    REGISTER = "make a broker known, or withdraw it"


Authorise: TypeAlias = Callable[[Caller, Action, str], None]
"""(caller, action, resource): returns if it is allowed, raises Refused NO_PERMISSION or DENIED if not.

The resource is a topic, or a group as its retry topic (`%RETRY%group`); "" for what has neither. What changes settings is named
by its request instead. The answer is kept for all callers of the same `kind` until the rules change.
"""


def everybody(_caller: Caller, _action: Action, _resource: str) -> None:
    """Allow everything, as a RocketMQ broker without ACL does."""


def administered_locally(caller: Caller, action: Action, _resource: str) -> None:
    """Allow everything, but changes of settings from this machine only.

    RocketMQ's name server takes them from anybody, which was the way into CVE-2023-37582.
    """
    if action is Action.ADMINISTER and not caller.loopback:
        raise Refused(
            Reason.NO_PERMISSION,
            f"taken from loopback addresses only, not from {caller.address}, unless the server is started with --insecure "
            "or remoteAdministrationEnable=true",
        )
