"""What an operator should know of a broker's process, beside its services: for the health pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from metaq.app.registration import NameServerRegistration
from metaq.app.supervision.loop_watch import LoopWatch

if TYPE_CHECKING:
    from metaq.app.acl.files import AclWatch
    from metaq.app.tls.running import RunningTls


class Concerns:
    """A `metaq.servers.server.Watched`.

    Args:
        loop: of the event loop.
        announced: the registration at the name servers.
        acl, tls: None: there are no accounts, no TLS.
    """

    def __init__(
        self, loop: LoopWatch, announced: NameServerRegistration, acl: AclWatch | None, tls: RunningTls | None
    ) -> None:
        self.loop, self._announced, self._acl, self._tls = loop, announced, acl, tls

    def reasons(self) -> Iterator[str]:
        """Yield what keeps clients from being served."""
        if self._tls is not None:
            yield from self._tls.reasons()

    def notes(self) -> Iterator[str]:
        """Yield what somebody should look after, and does not keep clients from it."""
        if trouble := self.loop.trouble:
            yield trouble
        yield from self._announced.notes()
        if self._acl is not None:
            yield from self._acl.notes()
        if self._tls is not None:
            yield from self._tls.notes()
