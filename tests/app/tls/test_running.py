"""The files of TLS: what is in force, what a broken one changes (nothing), and what the log says of it."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import shutil
import ssl

import pytest

from metaq.app.tls import made
from metaq.app.tls.running import RunningTls, files_of, read, with_file
from metaq.errors import ConfigError
from metaq.net.tls.server import Mode
from metaq.tls_options import TlsOptions
from tests.certificates import FOR_CLIENTS, Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def options(authority, tmp_path) -> TlsOptions:
    """Of a server with a certificate of its own, at paths that a test may write to."""
    issued = authority.issue("first")
    shutil.copy(issued.cert, tmp_path / "server.pem")
    shutil.copy(issued.key, tmp_path / "server.key")
    shutil.copy(authority.cert, tmp_path / "trust.pem")
    return TlsOptions(
        tls_server_cert_path=str(tmp_path / "server.pem"),
        tls_server_key_path=str(tmp_path / "server.key"),
        tls_server_need_client_auth="require",
        tls_server_auth_client=True,
        tls_server_trust_cert_path=str(tmp_path / "trust.pem"),
    )


def running(options: TlsOptions) -> RunningTls:
    return RunningTls(options, lambda act: act())


def written(path: str | None, data: bytes) -> None:
    """As editors do: another file under the same name."""
    assert path is not None
    fresh = pathlib.Path(path).with_suffix(".fresh")
    fresh.write_bytes(data)
    fresh.rename(path)


def broken(way: str, authority: Authority, options: TlsOptions) -> str:
    """Break a file; return what the log must say."""
    cert, key, trust = (
        options.tls_server_cert_path,
        options.tls_server_key_path,
        options.tls_server_trust_cert_path,
    )
    good = pathlib.Path(cert).read_bytes()
    ways = {
        "certificate gone": lambda: (pathlib.Path(cert).unlink(), "server.pem cannot be read")[1],
        "certificate empty": lambda: (written(cert, b""), "server.pem is empty")[1],
        "certificate cut": lambda: (written(cert, good[: len(good) // 2]), "damaged")[1],
        "certificate of binary": lambda: (written(cert, bytes(range(256))), "must be a PEM file")[1],
        "certificate too long": lambda: (written(cert, good + b"#" * (9 << 20)), "larger than")[1],
        "certificate expired": lambda: (replaced(authority.issue("old", days=(-9, -1)), cert, key), "has expired")[1],
        "certificate for clients": lambda: (
            replaced(authority.issue("clients", usage=FOR_CLIENTS), cert, key),
            "of no use to a server",
        )[1],
        "key gone": lambda: (pathlib.Path(key).unlink(), "server.key cannot be read")[1],
        "key of another certificate": lambda: (
            written(key, authority.issue("other").key.read_bytes()),
            "the key is not that of the certificate",
        )[1],
        "key of another kind": lambda: (
            written(key, authority.issue("other", kind="rsa").key.read_bytes()),
            "of another kind|not that of the certificate",
        )[1],
        "key of a curve that TLS has not": lambda: (
            replaced(authority.issue("curve", kind="secp256k1"), cert, key),
            "no TLS client can use",
        )[1],
        "key with a password": lambda: (
            replaced(authority.issue("locked", password="hidden-word"), cert, key),
            "password is missing or wrong|password of the key is wrong",
        )[1],
        "trust gone": lambda: (pathlib.Path(trust).unlink(), "trustCertPath .*cannot be read")[1],
        "trust damaged": lambda: (
            written(trust, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "trust.pem cannot be used",
        )[1],
    }
    return ways[way]()


def replaced(issued, cert, key) -> None:
    written(key, issued.key.read_bytes())
    written(cert, issued.cert.read_bytes())


WAYS = (
    "certificate gone", "certificate empty", "certificate cut", "certificate of binary", "certificate too long",
    "certificate expired", "certificate for clients", "key gone", "key of another certificate", "key of another kind",
    "key of a curve that TLS has not", "key with a password", "trust gone", "trust damaged",
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_broken_file_changes_nothing_and_the_log_says_file_and_reason(way, authority, options, caplog) -> None:
    """Once, not twice a second. When it is whole again, it is in force."""
    tls = running(options)
    before = tls.server.context
    says = broken(way, authority, options)
    with caplog.at_level(logging.ERROR):
        tls.look()
        tls.look()
    assert tls.server.context is before
    (record,) = caplog.records
    assert "TLS goes on with what it has: " in record.getMessage()
    assert re.search(says, record.getMessage())
    assert "hidden-word" not in caplog.text
    shutil.copy(authority.cert, options.tls_server_trust_cert_path)
    replaced(authority.issue("whole"), options.tls_server_cert_path, options.tls_server_key_path)
    tls.look()
    assert tls.server.context is not before


@pytest.mark.parametrize("way", [way for way in WAYS if way != "certificate expired"])
def test_no_start_with_a_broken_file(way, authority, options) -> None:
    says = broken(way, authority, options)
    with pytest.raises(ConfigError, match=says):
        running(options)


def test_a_start_with_an_expired_certificate_is_told_as_an_error(authority, options, caplog) -> None:
    """RocketMQ's clients do not verify it, and go on."""
    broken("certificate expired", authority, options)
    with caplog.at_level(logging.ERROR):
        assert running(options).server is not None
    assert "has expired: clients that verify it, as ours do, will refuse it" in caplog.text


def test_what_is_not_changed_is_not_read_again(options) -> None:
    tls = running(options)
    before = tls.server.context
    tls.look()
    assert tls.server.context is before


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raise ssl.SSLError if a client with this context does not come to terms with a server with that one."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


@pytest.mark.parametrize(
    "more",
    [{"tls_ha_enable": True}, {"tls_enable": True}, {"tls_ha_enable": True, "tls_enable": True}],
    ids=lambda more: " ".join(more),
)
def test_each_context_is_exchanged_for_that_of_the_new_files(more, authority, tmp_path) -> None:
    """That by which a slave connects, too, where nothing else connects with TLS: certificates and trust of another authority."""
    other = Authority(tmp_path, "others")
    mine = [authority.issue("mine"), other.issue("its")]
    cert, key, trust = (str(tmp_path / name) for name in ("own.pem", "own.key", "trust.pem"))

    def put(number: int) -> None:
        replaced(mine[number], cert, key)
        written(trust, (authority, other)[number].cert.read_bytes())

    put(0)
    tls = running(
        TlsOptions(
            tls_server_cert_path=cert,
            tls_server_key_path=key,
            tls_server_need_client_auth="require",
            tls_server_auth_client=True,
            tls_server_trust_cert_path=trust,
            tls_client_trust_cert_path=trust,
            tls_client_cert_path=cert,
            tls_client_key_path=key,
            **more,
        )
    )
    clients = [client for client in (tls.client, tls.ha_client) if client is not None]
    assert len(clients) == len(more)
    first = tls.server.context
    for client in clients:
        handshake(first, client.context)
    put(1)
    tls.look()
    for client in clients:
        handshake(tls.server.context, client.context)
        with pytest.raises(ssl.SSLError):
            handshake(first, client.context)


def test_all_files_that_options_name_are_watched(tmp_path) -> None:
    """Of the options, and of the file that they name."""
    paths = {name for name in TlsOptions().values() if name.endswith("_path")}
    config = tmp_path / "tls.properties"
    assert files_of(TlsOptions(**{name: f"/{name}" for name in paths})) == {f"/{name}" for name in paths}
    keys = [alias for item in TlsOptions.listed() if item.name in paths for alias in item.metadata["aliases"]]
    config.write_text("".join(f"{key}=/{key}\n" for key in keys))
    assert files_of(TlsOptions(tls_config_file=str(config))) == {str(config), *(f"/{key}" for key in keys)}
    config.write_text("tls.nonsense=1\n")
    assert files_of(TlsOptions(tls_config_file=str(config))) == {str(config)}


@pytest.mark.parametrize("more", [{"tls_client_auth_server": False}, {"tls_test_mode_enable": True}])
def test_a_list_of_revoked_servers_of_whom_none_is_verified(authority, more) -> None:
    """It would keep nobody out."""
    with pytest.raises(ConfigError, match=r"tls\.client\.crlPath, and no certificate of a server is verified"):
        running(TlsOptions(tls_enable=True, tls_client_crl_path=str(authority.revoke()), **more))


def test_a_file_that_changes_while_it_is_read_is_read_again(authority, options, monkeypatch) -> None:
    """At the start, and at a look: what was read may be what stood there before."""
    issued = iter([authority.issue("while starting"), authority.issue("while looking")])

    def read_and_change(*args: object, **more: object) -> object:
        found = read(*args, **more)
        if (one := next(issued, None)) is not None:
            replaced(one, options.tls_server_cert_path, options.tls_server_key_path)
        return found

    monkeypatch.setattr("metaq.app.tls.running.read", read_and_change)
    tls = running(options)
    contexts = [tls.server.context]
    for _ in range(3):
        tls.look()
        contexts.append(tls.server.context)
    assert contexts[0] is not contexts[1] is not contexts[2] is contexts[3]


def test_a_file_that_tls_properties_names_anew_is_in_force_once_it_is_there(authority, tmp_path, caplog) -> None:
    """The certificate may come after the line that names it."""
    first, second = authority.issue("there"), authority.issue("later")
    path, late = tmp_path / "tls.properties", tmp_path / "late.pem"
    text = "tls.server.certPath={}\ntls.server.keyPath={}\n"
    path.write_text(text.format(first.cert, first.key))
    tls = running(TlsOptions(tls_config_file=str(path)))
    before = tls.server.context
    written(str(path), text.format(late, second.key).encode())
    tls.look()
    assert tls.server.context is before
    assert "late.pem cannot be read" in caplog.text
    shutil.copy(second.cert, late)
    tls.look()
    assert tls.server.context is not before


def test_rocketmqs_tls_properties_as_they_stand(authority, tmp_path, caplog) -> None:
    """With a password; what stands elsewhere beats it. It is watched, too: files that it names anew are in force."""
    first, second = authority.issue("one", password="hidden-word"), authority.issue("two", password="hidden-word")
    path = tmp_path / "tls.properties"
    text = (
        "tls.test.mode.enable=false\ntls.server.need.client.auth=none\ntls.server.keyPath={key}\n"
        "tls.server.keyPassword=hidden-word\ntls.server.certPath={cert}\ntls.client.authServer=false\n"
        "tls.server.authClient=false\ntls.server.trustCertPath=\n"
    )
    path.write_text(text.format(key=first.key, cert=first.cert))
    options = TlsOptions(tls_config_file=str(path), tls_server_mode="enforcing")
    whole = with_file(options)
    assert (whole.tls_server_cert_path, whole.tls_server_mode) == (str(first.cert), "enforcing")
    assert "hidden-word" not in repr(whole)
    tls = running(options)
    assert tls.server.mode is Mode.ENFORCING
    assert tls.client is not None, "with enforcing, a broker connects with TLS, as RocketMQ's does"
    before = tls.server.context
    written(str(path), text.format(key=second.key, cert=second.cert).encode())
    tls.look()
    assert tls.server.context is not before
    after = tls.server.context
    with caplog.at_level(logging.ERROR):
        written(str(path), b"tls.server.certPath=\ntls.serverr.mode=x\n")
        tls.look()
    assert tls.server.context is after
    assert f"tls.serverr.mode in {path}: there is no such key" in caplog.text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tls_server_mode": "enforcing"}, "needs tls.server.certPath and tls.server.keyPath"),
        ({"tls_server_cert_path": "/nowhere.pem"}, "needs tls.server.certPath and"),
        ({"tls_config_file": "/nowhere/tls.properties"}, "tls.config.file /nowhere/tls.properties cannot be read"),
    ],
)
def test_options_that_do_not_go_together(more, says) -> None:
    with pytest.raises(ConfigError, match=says):
        running(TlsOptions(**more))


def test_a_certificate_that_nobody_judges_is_not_required(options) -> None:
    """RocketMQ's authClient=false with `require` keeps nobody out."""
    with pytest.raises(ConfigError, match="keeps nobody out"):
        running(options.replace(tls_server_auth_client=False, tls_server_trust_cert_path=None))


@pytest.mark.parametrize("auth", ["none", "require"])
def test_a_list_of_revoked_clients_that_is_never_asked_is_told(auth, options, authority, caplog) -> None:
    path = authority.revoke()
    with caplog.at_level(logging.WARNING):
        read(options.replace(tls_server_need_client_auth=auth, tls_server_crl_path=str(path)), at_start=True)
    assert ("tls.server.crlPath keeps nobody out" in caplog.text) is (auth == "none")


def test_which_mode_follows_from_what(options) -> None:
    assert read(options, at_start=True).mode is Mode.PERMISSIVE
    assert read(TlsOptions(), at_start=True).mode is Mode.DISABLED
    assert read(TlsOptions(tls_test_mode_enable=True), at_start=True).mode is Mode.PERMISSIVE
    disabled = read(options.replace(tls_server_mode="disabled"), at_start=True)
    assert (disabled.mode, disabled.server) == (Mode.DISABLED, None)


def test_the_mode_of_tests_says_what_it_needs(monkeypatch) -> None:
    """Without the library there is no start, rather than one without TLS."""

    def missing(clock) -> bytes:
        raise ImportError("No module named 'cryptography'")

    monkeypatch.setattr(made, "_made", missing)
    with pytest.raises(ConfigError, match=r"install pymetaq\[tls\]"):
        running(TlsOptions(tls_test_mode_enable=True))
