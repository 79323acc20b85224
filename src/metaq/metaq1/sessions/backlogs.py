"""The backlog of a factory: where messages of its producers wait that are not sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from metaq.metaq1.producing.backlog import Backlog
from metaq.metaq1.shared.core import FactoryCore

Kind = TypeVar("Kind", bound=Backlog)


class SharedBacklog(Generic[Kind]):
    """One for all producers of a factory, made with the first of them; it ends after them."""

    def __init__(self, core: FactoryCore, make: Callable[[], Kind]) -> None:
        self._core, self._make = core, make
        self._lock = threading.Lock()
        self._backlog: Kind | None = None

    def get(self) -> Kind:
        """Raises ClientClosed, ClientForked."""
        self._core.check_open()
        with self._lock:
            if self._backlog is None:
                self._backlog = self._make()
                self._core.last_ends.append(self._backlog._end)  # noqa: SLF001  as of a factory's children
            return self._backlog
