"""What takes part in a transaction over several systems: a resource for each system, a branch for each transaction in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from metaq.errors import ClientError, ConfigError

FORMAT: Final = 0x4D51
"""Format of our names of branches, `MQ`."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Handle_co = TypeVar("Handle_co", covariant=True)


class BranchName(Struct, frozen=True):
    """Name of a branch: its transaction's id and its number there. Letters and digits, short enough for every system."""

    transaction: str
    """Id of the transaction."""
    number: int
    """Number of the branch in it."""

    @property
    def text(self) -> str:
        """Both, with a colon between them."""
        return f"{self.transaction}:{self.number}"


class InDoubt(Struct, frozen=True):
    """A prepared branch that a resource has found. `text`: what `Resource.settle` takes."""

    transaction: str
    """Id of its transaction."""
    text: str


class Branch(Protocol[Handle_co]):
    """One transaction's part in a system. Its calls come from one thread, that which began it."""

    @property
    def handle(self) -> Handle_co:
        """What the application works with."""
        ...

    @property
    def text(self) -> str:
        """What `Resource.settle` finds it by, once it is prepared."""
        ...

    def prepare(self) -> bool:
        """End the work, and make it durable; True: it waits for its end, whatever happens. False: there is nothing to commit, and
        it is over. Any exception: it is to be rolled back."""
        ...

    def commit(self) -> None:
        """Make a prepared branch's work visible. Any exception: whether that happened is unknown; `settle` repeats it."""
        ...

    def rollback(self) -> None:
        """Undo the work, prepared or not. Any exception: `settle` repeats it, if it was prepared."""
        ...


class Resource(Protocol[Handle_co]):
    """A system that takes part. `name`: tells it from the others of a coordinator, in this process and the next."""

    @property
    def name(self) -> str:
        """By which a transaction's record knows it; never to change."""
        ...

    def begin(self, name: BranchName, note: Callable[[str], None]) -> Branch[Handle_co]:
        """Begin a branch.

        Args:
            name: of the branch. A resource that can list its branches by such names needs no more.
            note: for others: called with the branch's `text` before it is prepared. It is durable when the call returns.
        """
        ...

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:
        """Return the prepared branches there whose transactions' ids begin with `prefix`, and why these may not be all; "": they are.
        Empty for resources that note their branches. Any exception: it cannot be asked."""
        ...

    def settle(self, text: str, *, commit: bool) -> None:
        """End a prepared branch by its text. One that is over already is no error. Raises OtherwiseEnded; any other exception: it
        is tried again later."""
        ...


class OtherwiseEnded(ClientError):
    """A branch was ended by hand, and otherwise than its transaction: what the text says must be mended by hand, too."""


def checked_name(name: object) -> str:
    """Return the name of a resource. Raises TypeError, ConfigError."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}: pass text")
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"name={name!r}: need 1 to 64 of A-Z a-z 0-9 _ . -")
    return name
