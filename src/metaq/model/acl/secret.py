"""Secrets that no log, error or debugger's listing shows by accident."""

from __future__ import annotations

import hmac
from typing import Final, NoReturn

from msgspec import Struct


class Secret:
    """A secret key or token. Its text comes out by `reveal` only; it can be compared, but not copied into other formats."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def reveal(self) -> str:
        """Return the secret. Wherever this is called is worth a second look."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        # In constant time: who can measure a comparison must not find out the secret character by character.
        return isinstance(other, Secret) and hmac.compare_digest(_raw(self._text), _raw(other._text))

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _memo: object) -> Secret:
        return self


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


NO_SECRET: Final = Secret("")


class Credentials(Struct, frozen=True):
    """What a client signs its requests with."""

    access_key: str
    """Name of the account."""
    secret_key: Secret
    """What requests are signed with."""
    security_token: Secret = NO_SECRET
    """Of a temporary account, as clouds hand them out. It is sent, and signed with the rest."""
