"""The URL of a target: what of one is taken, and how it is shown."""

from __future__ import annotations

import urllib.parse
from typing import Final, Self

from msgspec import Struct

from metaq.errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}
_CHARS_MAX: Final = 2000


class TargetUrl(Struct, frozen=True):
    """A URL that messages are posted to."""

    scheme: str
    host: str
    """Without brackets."""
    port: int
    path: str
    """With what is behind `?`, which may be secret."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a URL. Raises ConfigError, which repeats nothing that may be secret."""
        if not text:
            raise ConfigError("url is missing: where messages are posted to, such as https://shop.example/hooks/orders")
        if len(text) > _CHARS_MAX or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(
                f"url: need at most {_CHARS_MAX} printable ASCII characters; other characters of a path are written %C3%A9, "
                "those of a host as its xn-- name"
            )
        try:
            parts = urllib.parse.urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"url: {error}") from None
        if parts.scheme not in _PORTS or not parts.hostname or port == 0:
            raise ConfigError("url: need http:// or https://, a host, perhaps a port, and a path")
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "url: it has a name or password before the host, where logs would show it: put `Authorization: ...` into a file "
                "and name it in headersFile"
            )
        if parts.fragment:
            raise ConfigError("url: what is behind # never reaches a server: leave it out")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)

    @property
    def origin(self) -> str:
        """Scheme, host, and the port where it is another than the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    @property
    def full(self) -> str:
        """All of it."""
        return self.origin + self.path

    def __str__(self) -> str:
        """Return it without what is behind `?`: tokens stand there."""
        path, _, query = self.path.partition("?")
        return f"{self.origin}{path}{'?…' if query else ''}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def joined(self, location: str) -> TargetUrl:
        """Return where a redirect leads. Raises ConfigError: nowhere that this can follow."""
        return TargetUrl.of(urllib.parse.urljoin(self.full, location.strip()))
