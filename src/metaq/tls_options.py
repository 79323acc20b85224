"""Options of TLS: RocketMQ's keys, and a few of ours. Of a broker and of a name server alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.option_table import OptionTable, option


@dataclass(frozen=True, kw_only=True)
class TlsOptions(OptionTable):
    """How a server's ports and its own connections use TLS."""

    section: ClassVar = "tls"

    tls_config_file: str | None = option(
        None,
        "RocketMQ's `tls.properties`, with any of these keys; what is said elsewhere beats it. It is read again when it changes. With "
        "a RocketMQ file, `/etc/rocketmq/tls.properties` if it is there.",
        aliases=("tls.config.file",),
    )
    tls_server_mode: str | None = option(
        None,
        "What the ports take: `disabled` plain text, `enforcing` TLS, `permissive` both. Unset: permissive with a certificate, "
        "disabled without.",
        aliases=("tls.server.mode",),
        choices=("disabled", "permissive", "enforcing"),
    )
    tls_server_cert_path: str | None = option(
        None, "The server's certificate and those of its issuers, PEM.", aliases=("tls.server.certPath",)
    )
    tls_server_key_path: str | None = option(None, "Its key, PEM.", aliases=("tls.server.keyPath",))
    tls_server_key_password: str | None = option(
        None, "Password of an encrypted key.", aliases=("tls.server.keyPassword",), secret=True
    )
    tls_server_need_client_auth: str = option(
        "none",
        "Whether clients show a certificate: `none`, `optional`, or `require`.",
        aliases=("tls.server.need.client.auth",),
        choices=("none", "optional", "require"),
    )
    tls_server_auth_client: bool = option(
        False,
        "Verify the certificates that clients show. With `require` it must be true, or tls.server.trustCertPath set: RocketMQ takes any.",
        aliases=("tls.server.authClient",),
    )
    tls_server_trust_cert_path: str | None = option(
        None,
        "Certificates of those who issue certificates to clients, PEM; by default the system's.",
        aliases=("tls.server.trustCertPath",),
    )
    tls_server_crl_path: str | None = option(
        None,
        "Lists of revoked certificates of clients, PEM: one of each issuer. Not in RocketMQ.",
        aliases=("tls.server.crlPath",),
    )
    tls_test_mode_enable: bool = option(
        False,
        "Make a certificate at each start that nobody can verify, and verify none; on by default in RocketMQ. Needs pymetaq[tls].",
        aliases=("tls.test.mode.enable",),
    )
    tls_handshake_timeout: int = option(
        10_000, "Milliseconds after which a handshake that is not over ends its connection.", low=100
    )
    tls_handshakes_max: int = option(
        500, "Handshakes under way; above it, the one that began first ends for each that begins.", low=1
    )
    tls_ha_enable: bool = option(
        False,
        "Use TLS for the copies of the log, too: haListenPort takes what tls.server.mode says, and a slave connects with TLS. "
        "RocketMQ's slaves and masters cannot.",
        aliases=("tls.ha.enable", "haTls"),
    )
    tls_metaq1_enable: bool = option(
        False,
        "serverPort takes what tls.server.mode says, too. MetaQ 1.x's own clients speak plain text.",
        aliases=("tls.metaq1.enable",),
    )
    tls_enable: bool | None = option(
        None,
        "Connect to name servers and other brokers with TLS. Unset: with tls.server.mode=enforcing.",
        aliases=("tls.enable", "useTLS"),
    )
    tls_client_auth_server: bool = option(
        True,
        "Verify the certificates of those servers; off by default in RocketMQ.",
        aliases=("tls.client.authServer",),
    )
    tls_client_check_host_name: bool = option(
        True,
        "And that they are for the address that is connected to; RocketMQ never does.",
        aliases=("tls.client.checkHostName",),
    )
    tls_client_trust_cert_path: str | None = option(
        None,
        "Certificates of those who issue certificates to servers, PEM; by default the system's.",
        aliases=("tls.client.trustCertPath",),
    )
    tls_client_crl_path: str | None = option(
        None,
        "Lists of revoked certificates of those servers, PEM: one of each issuer. Not in RocketMQ.",
        aliases=("tls.client.crlPath",),
    )
    tls_client_cert_path: str | None = option(
        None, "The certificate that this server shows there, PEM.", aliases=("tls.client.certPath",)
    )
    tls_client_key_path: str | None = option(None, "Its key, PEM.", aliases=("tls.client.keyPath",))
    tls_client_key_password: str | None = option(
        None, "Password of an encrypted key.", aliases=("tls.client.keyPassword",), secret=True
    )


NO_TLS = TlsOptions()
"""Plain text only."""
