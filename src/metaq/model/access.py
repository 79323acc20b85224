"""Who asks, what for, and who may: the words in which every server and path asks whether a request is allowed."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from metaq.errors import Reason, Refused


class Identity(NamedTuple):
    """Who asks, as far as it is known."""

    address: str
    """The peer's host, without a port."""
    loopback: bool
    """Whether it is this machine."""
    name: str = ""
    """Whom it has proved to be; empty for nobody in particular."""


class Action(enum.Enum):
    """What a request does to the topic, group or table that it names."""

    PUBLISH = "send messages to a topic"
    SUBSCRIBE = "receive messages of a topic, and keep a group's position in it"
    OBSERVE = "look at settings, routes and figures"
    ADMINISTER = "change settings"
    REGISTER = "make a broker known, or withdraw it"


Authorise: TypeAlias = Callable[[Identity, Action, str], None]
"""(who, what for, the topic or group or, without one, the request's name): returns if it is allowed.

Raises Refused NO_PERMISSION. The answer is kept for all who have the same name and are, or are not, on this machine; the
address is for its text.
"""


def everybody(_who: Identity, _action: Action, _resource: str) -> None:
    """Everybody may everything, as at a RocketMQ broker without ACL."""


def administered_locally(who: Identity, action: Action, _resource: str) -> None:
    """Everybody may everything, except that settings are changed from this machine only.

    RocketMQ's open name server was the way into CVE-2023-37582.
    """
    if action is Action.ADMINISTER and not who.loopback:
        raise Refused(Reason.NO_PERMISSION, f"taken from loopback addresses only, not from {who.address}")
