"""TLS of one server: its files, read together, and read again when one of them has changed."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from metaq.app.config_files.properties import read_properties
from metaq.app.tls.made import made_context
from metaq.app.watched_files import Marks, WatchedFiles, marks_of
from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.named_file import read_named
from metaq.net.tls.client import ClientTls
from metaq.net.tls.contexts import (
    ClientFiles,
    Context,
    Expired,
    Password,
    ServerFiles,
    client_context,
    expiry_ms,
    prove,
    server_context,
)
from metaq.net.tls.server import Mode, ServerTls
from metaq.tls_options import TlsOptions

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1024 * 1024
EXPIRES_DAYS: Final = 14
"""So long before a certificate expires its broker says so."""
_DAY_MS: Final = 86_400_000


class Contexts(NamedTuple):
    """What a reading of the files gives."""

    mode: Mode
    server: Context | None
    client: Context | None
    """Of the server's own connections; None: neither to servers nor to copy a log does it connect with TLS."""
    use: tuple[bool, bool, bool]
    """Whether TLS is used to connect to servers, for copies of the log, and on the port of MetaQ 1.x."""
    told: str
    """What the log says of them."""
    cert: str = ""
    """Path of the server's certificate."""
    until_ms: int | None = None
    """When it expires; None: there is none."""


def with_file(options: TlsOptions) -> TlsOptions:
    """Return the options with those of `tls.config.file` that stand nowhere else. Raises ConfigError: file and reason."""
    path = options.tls_config_file
    if not path:
        return options
    pairs = read_properties(_text(_path(path)), path)
    known = TlsOptions.spellings()
    for key in pairs:
        if key not in known and key.startswith("tls."):
            raise ConfigError(f"{key} in {path}: there is no such key of TLS, and what it asks for would not be done")
    found = TlsOptions.read({key: value for key, value in pairs.items() if value.strip()}, path)[0]
    unset = TlsOptions()
    mine = {name: value for name, value in options.values().items() if value != getattr(unset, name)}
    return found.replace(**mine)


def read(options: TlsOptions, *, at_start: bool) -> Contexts:
    """Read all files of these options.

    Args: at_start: take a certificate that has expired, with a warning: clients that do not verify it go on.
    Raises: ConfigError: file and reason, or which options do not go together.
    """
    options = with_file(options)
    mode, made = _mode(options), options.tls_test_mode_enable and not options.tls_server_cert_path
    server, told, cert, until_ms = None, "TLS is disabled", "", None
    if mode is not Mode.DISABLED and made:
        server, told = made_context(), f"TLS is {mode.value}, with a certificate made now that nobody can verify"
    elif mode is not Mode.DISABLED:
        files = _server_files(options)
        server, until = server_context(files), ""
        try:
            shown = prove(files)
            until, until_ms = f"until {shown}", expiry_ms(shown) if shown else None
        except Expired as error:
            if not at_start:
                raise
            log.error("%s: clients that verify it, as ours do, will refuse it", error)  # noqa: TRY400  no fault of ours
            until, until_ms = "which has expired", 0
        cert = files.cert
        told = f"TLS is {mode.value}, with the certificate {files.cert}, {until}"
    connects = options.tls_enable if options.tls_enable is not None else mode is Mode.ENFORCING
    client = None
    if connects or options.tls_ha_enable:
        client = client_context(_client_files(options))
    use = connects, options.tls_ha_enable, options.tls_metaq1_enable
    return Contexts(mode, server, client, use, told, cert, until_ms)


def files_of(options: TlsOptions) -> frozenset[str]:
    """Return the paths of all files that these options name: that of `tls.config.file`, if it can be read, names more."""
    named = {options.tls_config_file}
    with contextlib.suppress(ConfigError):
        options = with_file(options)
    named |= {
        options.tls_server_cert_path,
        options.tls_server_key_path,
        options.tls_server_trust_cert_path,
        options.tls_server_crl_path,
        options.tls_client_trust_cert_path,
        options.tls_client_crl_path,
        options.tls_client_cert_path,
        options.tls_client_key_path,
    }
    return frozenset(_path(path) for path in named if path)


def _mode(options: TlsOptions) -> Mode:
    has_files = bool(options.tls_server_cert_path or options.tls_server_key_path)
    if options.tls_server_mode is None:
        return Mode.PERMISSIVE if has_files or options.tls_test_mode_enable else Mode.DISABLED
    return Mode(options.tls_server_mode)


def _server_files(options: TlsOptions) -> ServerFiles:
    cert, key = options.tls_server_cert_path, options.tls_server_key_path
    if not cert or not key:
        raise ConfigError(
            "TLS needs tls.server.certPath and tls.server.keyPath, or, to try it out, tls.test.mode.enable=true (which is not on by "
            "itself as in RocketMQ)"
        )
    auth, trust = options.tls_server_need_client_auth, options.tls_server_trust_cert_path or ""
    if auth == "require" and not (options.tls_server_auth_client or trust):
        raise ConfigError(
            "tls.server.need.client.auth=require with tls.server.authClient=false takes any certificate in RocketMQ, which keeps nobody "
            "out: set tls.server.authClient=true, and tls.server.trustCertPath to the file of those who issue them"
        )
    if auth == "optional" and not options.tls_server_auth_client:
        auth = "none"  # whatever a client shows, nothing would come of it
    if auth == "none" and options.tls_server_crl_path:
        # RocketMQ takes it in silence: a tls.properties as it stands goes on working here.
        log.warning(
            "tls.server.crlPath keeps nobody out: clients are not asked for certificates; set tls.server.need.client.auth=require, "
            "and tls.server.authClient=true"
        )
    return ServerFiles(
        _path(cert),
        _path(key),
        _password(options.tls_server_key_password),
        auth,
        _path(trust) if trust else "",
        _path(options.tls_server_crl_path) if options.tls_server_crl_path else "",
    )


def _client_files(options: TlsOptions) -> ClientFiles:
    ca = options.tls_client_trust_cert_path
    verify = "full" if options.tls_client_check_host_name else "ca"
    if not options.tls_client_auth_server or (options.tls_test_mode_enable and not ca):
        verify = "none"
    cert, key, crl = options.tls_client_cert_path, options.tls_client_key_path, options.tls_client_crl_path
    if crl and verify == "none":
        raise ConfigError(
            "tls.client.crlPath, and no certificate of a server is verified: set tls.client.authServer=true, in test mode also "
            "tls.client.trustCertPath"
        )
    return ClientFiles(
        _path(ca) if ca else "",
        _path(cert) if cert else "",
        _path(key) if key else "",
        _password(options.tls_client_key_password),
        verify,
        _path(crl) if crl else "",
    )


def _password(text: str | None) -> Password | None:
    return None if text is None else lambda: text


def _path(path: str) -> str:
    return str(pathlib.Path(path).expanduser())


def _text(path: str) -> str:
    try:
        return read_named(path, FILE_BYTES_MAX, "tls.config.file").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"tls.config.file {path} cannot be read: {error}") from None


class RunningTls:
    """The TLS of a server: for its ports, for its own connections, and the watch over the files.

    Files that are changed are put in force for new connections. What cannot be used changes nothing, and the log says which
    file and why.

    Args:
        options: of the server.
        call_soon: brings a call from another thread to the event loop.
    Raises:
        ConfigError: the files cannot be used as they are at the start.
    """

    def __init__(self, options: TlsOptions, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._options = options
        self._named: tuple[Marks, frozenset[str]] = {}, files_of(options)
        """Marks of `tls.config.file`, and the files that it and the options name since."""
        marks = self._marks()
        first = read(options, at_start=True)
        options, self._mode = with_file(options), first.mode
        self.server: Final = (
            ServerTls(first.mode, first.server, options.tls_handshake_timeout / 1000, options.tls_handshakes_max)
            if first.server is not None
            else None
        )
        self._use = connects, self.for_ha, self.for_metaq1 = first.use
        self._connections: Final = ClientTls(first.client) if first.client is not None else None
        """Of all connections that this server makes: what is exchanged here is exchanged for each."""
        self.client: Final = self._connections if connects else None
        self.ha_client: Final = self._connections if self.for_ha else None
        self._cert, self._until_ms = first.cert, first.until_ms
        log.info("%s", first.told)
        stays = "TLS goes on with what it has"
        self._watched: Final = WatchedFiles("TLS", stays, self._marks, self._read, self._take, call_soon, marks)

    def reasons(self) -> Iterator[str]:
        """Yield why no client can connect: the certificate has expired, and nothing but TLS is taken."""
        if self._mode is Mode.ENFORCING and self._left_ms() <= 0:
            yield self._expired

    def notes(self) -> Iterator[str]:
        """Yield what an operator should know of the files."""
        left = self._left_ms()
        if left <= 0 and self._mode is not Mode.ENFORCING:
            yield self._expired
        elif 0 < left < EXPIRES_DAYS * _DAY_MS:
            hours = left // 3_600_000
            told = f"{hours // 24} days" if hours >= 48 else f"{hours} hours"
            yield f"the certificate {self._cert} expires in {told}: renew it, the new one is taken without a restart"
        if trouble := self._watched.trouble:
            yield trouble

    @property
    def _expired(self) -> str:
        return f"the certificate {self._cert} has expired: clients that verify it refuse it"

    def _left_ms(self) -> float:
        """Time until the server's certificate expires; without one, for ever."""
        return self._until_ms - SYSTEM.now_ms() if self._until_ms is not None else float("inf")

    def start(self) -> None:
        """Look from now on."""
        self._watched.start()

    def tick(self) -> None:
        """Let time pass."""
        self._watched.tick()

    def look(self) -> None:
        """Read the files again if one has changed since the last look."""
        self._watched.look()

    def stop(self) -> None:
        """Stop looking, and end the handshakes' thread."""
        self._watched.stop()
        if self.server is not None:
            self.server.close()

    def _marks(self) -> Marks:
        path = self._options.tls_config_file
        config = marks_of([_path(path)]) if path else {}
        if config != self._named[0]:  # reading it takes milliseconds
            self._named = config, files_of(self._options)
        return marks_of(self._named[1])

    def _read(self, _marks: Marks) -> Contexts:
        return read(self._options, at_start=False)

    def _take(self, found: Contexts) -> None:
        if found.mode is not self._mode or found.use != self._use:
            log.warning(
                "tls.server.mode, tls.enable, tls.ha.enable and tls.metaq1.enable are as they were until a restart"
            )
        if self.server is not None and found.server is not None:
            self.server.exchange(found.server)
            self._cert, self._until_ms = found.cert, found.until_ms
        if self._connections is not None and found.client is not None:
            self._connections.context = found.client
        log.info("the files of TLS were read again: for new connections, %s", found.told)
