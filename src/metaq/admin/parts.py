"""What the parts of `Admin` have in common: each is a class of methods about one subject, which `Admin` inherits."""

from __future__ import annotations

import abc
from collections.abc import Coroutine
from typing import Any, TypeVar

from metaq.client.shared.core import ClientCore

Result = TypeVar("Result")


class AdminPart(abc.ABC):
    """Methods of `Admin` about one subject."""

    @property
    @abc.abstractmethod
    def _open(self) -> ClientCore:
        """Return the connections. Raises ClientClosed."""

    @abc.abstractmethod
    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work on the loop of the connections, and wait for it."""
