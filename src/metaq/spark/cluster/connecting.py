"""Options of `format("metaq")` that say which cluster, and as whom."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.client.identity.access import ENVIRONMENT, Access
from metaq.errors import ConfigError
from metaq.net.tls.settings import VERIFY
from metaq.option_table import OptionTable, camel, option


@dataclass(frozen=True, kw_only=True)
class ConnectingOptions(OptionTable):
    """Options of reads and writes."""

    name_servers: str = option("", "Name servers, `host:port`, `;`-separated. Required.")
    acl_file: str | None = option(
        None,
        "Sign with the keys in this file, of the form of RocketMQ's `tools.yml`. Driver and executors read it: each needs it, at "
        "this path.",
    )
    access_key: str | None = option(
        None,
        "Sign as this account; without it and `aclFile` as METAQ_ACL_FILE or METAQ_ACCESS_KEY say, in each process.",
    )
    secret_key: str | None = option(
        None, "The account's secret. Better in a file: Spark hands options on.", secret=True
    )
    security_token: str | None = option(None, "Of a temporary account.", secret=True)
    tls: bool | None = option(
        None, "Connect with TLS, to name servers and brokers; without it as METAQ_TLS says, in each process."
    )
    tls_ca: str | None = option(
        None,
        "File of the certificates that are trusted, at this path on driver and executors; by default the system's.",
    )
    tls_cert: str | None = option(None, "File of the certificate that Spark shows, if servers ask.")
    tls_key: str | None = option(None, "File of its key; its password only by METAQ_TLS_KEY_PASSWORD.")
    tls_verify: str | None = option(
        None,
        "What is checked of a server: `full` (its certificate's issuer and address), `ca` (only the former), `none`.",
        choices=VERIFY,
    )
    tls_crl: str | None = option(
        None, "File of lists of revoked certificates, one of each issuer: servers that show one of them are refused."
    )

    @property
    def access(self) -> Access:
        return Access(
            access_key=self.access_key,
            secret_key=self.secret_key,
            security_token=self.security_token,
            acl_file=self.acl_file,
            tls=self.tls,
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
            tls_verify=self.tls_verify,
            crl=self.tls_crl,
        )

    def check_connecting(self) -> None:
        """Raise ConfigError: no name server, half a pair of keys, settings of TLS without `tls`, or a file that cannot be read here."""
        if not self.name_servers:
            raise ConfigError("format('metaq') needs .option('nameServers', 'host:port')")
        self.access.credentials(names={name: camel(name) for name in ENVIRONMENT})
        if (settings := self.access.tls_settings()) is not None:
            settings.open()
