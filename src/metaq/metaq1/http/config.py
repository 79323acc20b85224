"""Settings of session factories over HTTP, under the names of MetaQ 1.x's HTTP client in Python's spelling."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from msgspec import structs

from metaq.client.identity.options import checked_seconds
from metaq.errors import ConfigError
from metaq.metaq1.config import MetaClientConfig, check_number, check_text
from metaq.model.acl.secret import NO_SECRET, Secret

GROUP: Final = "httpgroup"
"""Group of a consumer that is given none, as in Java."""
_MEANINGLESS: Final = (
    "zk_config", "partitions_info", "max_reconnect_times", "loopback_connection", "local_message_path", "async_storage_path",
    "save_to_local_when_failed",
)  # fmt: skip
"""Of other session factories: HTTP has no ZooKeeper, no connection that is kept up, and neither one-way nor ordered producers."""


class HttpClientConfig(MetaClientConfig, frozen=True, kw_only=True):
    """Settings of a session factory over HTTP. Those of `MetaClientConfig` that mean something here mean the same."""

    server_url: str | None = None
    """URL of a broker's gateway, or of a load balancer before several: `http://host:port` or `https://host:port`. A path at its end is
    put before the paths of all requests."""
    timeout: float = 30.0
    """Seconds that one send may take, connecting included."""
    connect_timeout: float = 3.0
    """Seconds that connecting may take. Java: connectTimeout."""
    max_connections: int = 20
    """Number of open connections of this factory; further requests wait for a free one. Java: maxTotalConnections, maxHostConnections."""
    keep_alive: float = 60.0
    """Seconds after which an idle connection is closed. Java: pollingIntervalTime, four times which it takes."""
    access_key: str = ""
    """Account at a broker with access control. It is sent by HTTP Basic, so use https if the broker is on another machine."""
    secret_key: Secret | str = NO_SECRET
    """Secret of the account. It does not appear in logs, errors or the repr."""
    ca_file: str = ""
    """Path of a PEM file with the certificates that are trusted for https; empty: those of the system."""

    def _check_servers(self) -> None:
        check_text("server_url", self.server_url)
        assert self.server_url is not None, "it is text"
        base_url(self.server_url)
        usual = {field.name: field.default for field in structs.fields(MetaClientConfig)}
        for name in _MEANINGLESS:
            value = getattr(self, name)
            if value and value != usual[name]:
                raise ConfigError(f"{name} means nothing over HTTP: leave it out")
        for name in ("access_key", "ca_file"):
            check_text(name, getattr(self, name))
        if isinstance(self.secret_key, str):
            structs.force_setattr(self, "secret_key", Secret(self.secret_key))
        if ":" in self.access_key:
            raise ConfigError("access_key has a colon, which HTTP Basic does not carry")
        for name in ("timeout", "connect_timeout", "keep_alive"):
            checked_seconds(name, getattr(self, name), least=0.001)
        check_number("max_connections", self.max_connections, 1)

    @property
    def address(self) -> str:
        """The URL below which the gateway's paths begin."""
        assert self.server_url is not None, "it is checked"
        return base_url(self.server_url)


def base_url(url: str) -> str:
    """Return a gateway's URL without a slash at its end. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"server_url={url!r:.200}: {error}") from None
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(
            f"server_url={url.rpartition('@')[2]!r:.200}: need http://host:port of a gateway, without account, ? and #"
        )
    return url.rstrip("/")
