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

    name_servers: str = option("", "Name servers of the cluster, `host:port`, separated by `;`. Required.")
    acl_file: str | None = option(
        None,
        "Path of a file with the keys of the account by which requests are signed, in the form of RocketMQ's `tools.yml`. "
        "Driver and executors read it, so each needs it at this path.",
    )
    access_key: str | None = option(
        None,
        "Access key of the account by which requests are signed. Without it and `aclFile`, METAQ_ACL_FILE or METAQ_ACCESS_KEY "
        "in the environment of each process counts.",
    )
    secret_key: str | None = option(
        None,
        "Secret key of the account `accessKey`. A file (`aclFile`) is safer, because Spark passes options on.",
        secret=True,
    )
    security_token: str | None = option(
        None, "Security token of the account `accessKey`, if it is a temporary one.", secret=True
    )
    tls: bool | None = option(
        None,
        "Connect to name servers and brokers with TLS. If it is not given, METAQ_TLS in the environment of each process counts.",
    )
    tls_ca: str | None = option(
        None,
        "Path of a PEM file with the certificates that are trusted, at driver and executors. Default: those of the system.",
    )
    tls_cert: str | None = option(
        None, "Path of a PEM file with the certificate that Spark shows if a server asks for one."
    )
    tls_key: str | None = option(
        None, "Path of a PEM file with the key of `tlsCert`; its password is read from METAQ_TLS_KEY_PASSWORD only."
    )
    tls_verify: str | None = option(
        None,
        "What is checked of a server's certificate: `full`, who issued it, and that it is for the address to which Spark "
        "connects; `ca`, only the former; `none`, nothing.",
        choices=VERIFY,
    )
    tls_crl: str | None = option(
        None,
        "Path of a PEM file with lists of revoked certificates, one of each authority; a server whose certificate is in one of "
        "them is refused.",
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
