"""Callers of signed requests, by the rules of access control (docs/formats/acl.md)."""

from __future__ import annotations

from metaq.broker.acl import AccessControl
from metaq.model.access import Caller
from metaq.servers.remoting.dispatch import Identify
from metaq.wire.command import Command
from metaq.wire.signing import ACCESS_KEY, verify


def by_signature(access: AccessControl) -> Identify:
    """Return what finds the caller of a request: the account that has signed it, or whom a white list lets in.

    It raises Denied for everybody else, and so for all that is not signed and comes from elsewhere.
    """

    def identify(caller: Caller, command: Command) -> Caller:
        ext = command.ext
        return access.identify(caller, ext.get(ACCESS_KEY, ""), lambda secret: verify(ext, command.body, secret))

    return identify
