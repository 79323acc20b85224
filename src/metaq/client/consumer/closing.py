"""Consumers that are never closed: a warning, and a final offset commit nevertheless."""

from __future__ import annotations

import atexit
import contextlib
import warnings
import weakref
from abc import abstractmethod

from metaq.client.shared.core import ClientCore
from metaq.errors import MetaqError

EXIT_SECONDS = 5.0


class Closable:
    """A member of `group` while it is open. Constructors call `_opened` when it is complete."""

    group: str
    _open: bool = False
    _core: ClientCore

    def _opened(self) -> None:
        self._open = True
        # Weakly, so that being in it keeps no forgotten member alive.
        _open_members.add(self)

    @abstractmethod
    def _hand_out_no_more(self) -> None:
        """Any thread: let waiting takers return without messages."""

    @abstractmethod
    async def _close(self) -> None:
        """In the loop: keep the progress, leave the group, let the connections go."""

    def _forgotten(self) -> None:
        """Warn that nobody closed it, and hand out nothing more."""
        self._open = False
        self._hand_out_no_more()
        warnings.warn(
            f"{type(self).__name__} of group {self.group} was not closed: use `with`, or call close(), to be sure that "
            "its progress is kept",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )

    def __del__(self) -> None:
        # A forked child leaves its parent's members alone.
        if self._open and self._core.in_own_process:
            self._forgotten()
            if self._core.thread.alive:
                self._core.thread.start(self._close())


_open_members: weakref.WeakSet[Closable] = weakref.WeakSet()


@atexit.register
def _close_forgotten() -> None:
    """Close forgotten members at exit. The loop is a daemon thread: what was finished since the last commit would be
    delivered again."""
    for member in list(_open_members):
        if member._open and member._core.in_own_process:  # noqa: SLF001  the module's own class
            member._forgotten()  # noqa: SLF001  the module's own class
            with contextlib.suppress(MetaqError):
                member._core.thread.run(member._close(), EXIT_SECONDS)  # noqa: SLF001  the module's own class
