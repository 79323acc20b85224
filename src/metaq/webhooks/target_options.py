"""How a target is asked. Loads no HTTP client: `metaq webhook show` and `check` work without one."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.webhooks.addresses import Network

REDIRECTS_MAX: Final = 3


class TargetOptions(Struct, frozen=True):
    """How a target is asked."""

    timeout: float = 10.0
    """Seconds for all of an attempt: name, connection, request, answer, redirects."""
    connections: int = 1
    redirects: int = 0
    """That are followed at most."""
    allowed: tuple[Network, ...] = ()
    """Networks that are no public ones, and that the target may be in."""
    retry_after_max: float = 300.0
    headers: tuple[tuple[str, str], ...] = ()
    """The user's own, which may be secret: no other host gets them."""

    def __repr__(self) -> str:
        return f"TargetOptions(timeout={self.timeout}, redirects={self.redirects}, allowed={self.allowed}, {len(self.headers)} header fields)"
