"""What a dashboard is started with."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from metaq.client.identity.options import ClientOptions
from metaq.errors import ConfigError
from metaq.net.address import is_loopback

PORT_DEFAULT: Final = 8121
HOST_DEFAULT: Final = "127.0.0.1"


class DashboardSettings(Struct, frozen=True, kw_only=True):
    """All that a dashboard is started with.

    `namesrv`: name servers of the cluster; None: those in NAMESRV_ADDR. `names`: host names in the URLs of browsers that are accepted, beside
    `localhost` and IP addresses.

    `login`: whether visitors log in with an account of the cluster, and act as it. None: they do if the cluster has accounts. `insecure`:
    allow an address that other machines can reach, without TLS. `client`: how the dashboard connects to the cluster; its account, if
    there is one, is the dashboard's own.

    `pipelines`: folders of pipelines, or folders that contain some. `zookeeper`: ZooKeeper of MetaQ 1.x, `host:port,…`, `/ROOT` may follow;
    "": none. `schemas`: path of a file that says which topics have which schema. `https_cert`, `https_key`: paths of PEM files; with them the
    dashboard serves HTTPS.
    """

    namesrv: str | None = None
    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT
    names: tuple[str, ...] = ()
    allow_changes: bool = False
    login: bool | None = None
    insecure: bool = False
    schemas: str | None = None
    https_cert: str = ""
    https_key: str = ""
    client: ClientOptions = ClientOptions()
    pipelines: tuple[str, ...] = ()
    zookeeper: str = ""

    def check(self) -> None:
        """Raise ConfigError: these would let anybody in."""
        here = self.host == "localhost" or is_loopback(self.host)
        if bool(self.https_cert) is not bool(self.https_key):
            raise ConfigError("HTTPS needs both a certificate (--https-cert) and its key (--https-key)")
        if not here and not self.insecure and self.https_cert and not self.login:
            raise ConfigError(
                f"the dashboard would listen on {self.host}, and show the cluster to whoever reaches it if that has no accounts: add --login, "
                "so that visitors log in, or --insecure if it is meant"
            )
        if not here and not self.insecure and not self.https_cert:
            raise ConfigError(
                f"the dashboard would listen on {self.host} without TLS, and show the cluster to whoever reaches it: add --insecure if that "
                "is meant, or --https-cert and --login, or listen on 127.0.0.1 and put a proxy with TLS, or an SSH tunnel, in front of it"
            )
        if not here and self.login is False and self.client.credentials is not None:
            raise ConfigError(
                f"the dashboard would listen on {self.host}, where whoever reaches it acts as its account {self.client.credentials.access_key}: "
                "have visitors log in, or listen on 127.0.0.1"
            )
