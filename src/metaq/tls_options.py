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
        "Path of a RocketMQ `tls.properties` with any of the keys of this section; a value that is set elsewhere has priority. It is read "
        "again when it changes, but what it says about modes needs a restart. Default: `/etc/rocketmq/tls.properties`, if it exists and the "
        "configuration file is RocketMQ's.",
        aliases=("tls.config.file",),
    )
    tls_server_mode: str | None = option(
        None,
        "What the ports of the server accept: `disabled` plain text, `enforcing` TLS, `permissive` both. Default: `permissive` with "
        "tls.server.certPath or tls.test.mode.enable, otherwise `disabled`.",
        aliases=("tls.server.mode",),
        choices=("disabled", "permissive", "enforcing"),
    )
    tls_server_cert_path: str | None = option(
        None,
        "Path of a PEM file with the server's certificate, followed by the certificates of intermediate authorities.",
        aliases=("tls.server.certPath",),
    )
    tls_server_key_path: str | None = option(
        None, "Path of a PEM file with the private key of tls.server.certPath.", aliases=("tls.server.keyPath",)
    )
    tls_server_key_password: str | None = option(
        None,
        "Password of the key in tls.server.keyPath, if it is encrypted. Only in a file, not by `-o`.",
        aliases=("tls.server.keyPassword",),
        secret=True,
    )
    tls_server_need_client_auth: str = option(
        "none",
        "Whether clients must show a certificate: `none`, no; `optional`, they may; `require`, they must. tls.server.authClient says "
        "whether it is verified.",
        aliases=("tls.server.need.client.auth",),
        choices=("none", "optional", "require"),
    )
    tls_server_auth_client: bool = option(
        False,
        "Verify the certificates that clients show (tls.server.need.client.auth). With `require` this must be `true`, or "
        "tls.server.trustCertPath be set, or the server does not start; RocketMQ accepts any certificate then.",
        aliases=("tls.server.authClient",),
    )
    tls_server_trust_cert_path: str | None = option(
        None,
        "Path of a PEM file with the certificates of the authorities that issue certificates to clients. Default: those that the system "
        "trusts.",
        aliases=("tls.server.trustCertPath",),
    )
    tls_server_crl_path: str | None = option(
        None,
        "Path of a PEM file with the lists of revoked certificates of clients, one list of each authority. Used only if certificates of "
        "clients are verified; RocketMQ has no such option.",
        aliases=("tls.server.crlPath",),
    )
    tls_test_mode_enable: bool = option(
        False,
        "For tests: make a certificate at each start that nobody can verify, if tls.server.certPath is not set, and verify no certificates "
        "of other servers, if tls.client.trustCertPath is not set. On by default in RocketMQ. Needs the extra `tls`.",
        aliases=("tls.test.mode.enable",),
    )
    tls_handshake_timeout: int = option(
        10_000, "Time in ms after which a TLS handshake that is not complete ends with its connection.", low=100
    )
    tls_handshakes_max: int = option(
        500,
        "Number of TLS handshakes in progress; above it, each new one ends the oldest one with its connection.",
        low=1,
    )
    tls_ha_enable: bool = option(
        False,
        "Use TLS for replication, too: haListenPort accepts what tls.server.mode says, and a slave connects to its master with TLS. "
        "RocketMQ's masters and slaves have no TLS for this.",
        aliases=("tls.ha.enable", "haTls"),
    )
    tls_metaq1_enable: bool = option(
        False,
        "Use TLS for clients of MetaQ 1.x, too: serverPort accepts what tls.server.mode says. MetaQ 1.x's own clients speak plain text "
        "only.",
        aliases=("tls.metaq1.enable",),
    )
    tls_enable: bool | None = option(
        None,
        "Use TLS for the connections that this server makes to name servers and other brokers. Default: `true` with "
        "tls.server.mode=enforcing, otherwise `false`.",
        aliases=("tls.enable", "useTLS"),
    )
    tls_client_auth_server: bool = option(
        True,
        "Verify the certificates of the servers that this server connects to (tls.enable). Off by default in RocketMQ.",
        aliases=("tls.client.authServer",),
    )
    tls_client_check_host_name: bool = option(
        True,
        "Verify also that the certificate of a server is for the host or address to which this server connects. Used only with "
        "tls.client.authServer; RocketMQ never does it.",
        aliases=("tls.client.checkHostName",),
    )
    tls_client_trust_cert_path: str | None = option(
        None,
        "Path of a PEM file with the certificates of the authorities that issue certificates to servers. Default: those that the system "
        "trusts.",
        aliases=("tls.client.trustCertPath",),
    )
    tls_client_crl_path: str | None = option(
        None,
        "Path of a PEM file with the lists of revoked certificates of servers, one list of each authority. Used only with "
        "tls.client.authServer; RocketMQ has no such option.",
        aliases=("tls.client.crlPath",),
    )
    tls_client_cert_path: str | None = option(
        None,
        "Path of a PEM file with the certificate that this server shows to the servers it connects to, if they ask for one.",
        aliases=("tls.client.certPath",),
    )
    tls_client_key_path: str | None = option(
        None, "Path of a PEM file with the private key of tls.client.certPath.", aliases=("tls.client.keyPath",)
    )
    tls_client_key_password: str | None = option(
        None,
        "Password of the key in tls.client.keyPath, if it is encrypted. Only in a file, not by `-o`.",
        aliases=("tls.client.keyPassword",),
        secret=True,
    )


NO_TLS = TlsOptions()
"""Plain text only."""
