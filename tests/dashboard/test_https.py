"""HTTPS of the dashboard's own: plain text is refused, cookies go by HTTPS alone, a renewed certificate is taken."""

from __future__ import annotations

import logging
import pathlib
import shutil
import ssl
from collections.abc import Iterator

import httpx
import pytest

from metaq.dashboard.security.https import Https
from metaq.dashboard.settings import DashboardSettings
from metaq.errors import ConfigError
from tests.certificates import Authority
from tests.dashboard.running import Loop, dashboard, looping
from tests.support import PATIENCE

pytestmark = pytest.mark.xdist_group("dashboard")


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with looping() as loop:
        yield loop


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    return Authority(tmp_path)


def test_browsers_ask_by_https_and_plain_text_is_refused(loop: Loop, authority: Authority):
    issued = authority.issue("here")
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    with dashboard(loop, "127.0.0.1:1", https_cert=str(issued.cert), https_key=str(issued.key)) as running:
        assert running.url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=running.url, verify=trusting, timeout=PATIENCE) as client:
            answer = client.get("/")
            assert answer.status_code == 200
            assert "Secure" in answer.headers["set-cookie"]
        with pytest.raises(httpx.TransportError):
            httpx.get(running.url.replace("https:", "http:"), timeout=PATIENCE)


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(
    authority: Authority, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    first, second, old = authority.issue("first"), authority.issue("second"), authority.issue("old", days=(-9, -1))
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(cert_of: pathlib.Path, key_of: pathlib.Path) -> None:
        shutil.copy(cert_of, cert)
        shutil.copy(key_of, key)

    put(first.cert, first.key)
    https = Https(str(cert), str(key))
    before = https.tls.context
    https.look()
    assert https.tls.context is before
    put(old.cert, old.key)
    with caplog.at_level(logging.WARNING, "metaq.dashboard"):
        https.look()
        https.look()
    assert https.tls.context is before
    assert [str(cert) in one.getMessage() for one in caplog.records] == [True], "told once"
    put(second.cert, second.key)
    https.look()
    assert https.tls.context is not before
    cert.unlink()
    https.look()
    https.close()


def test_files_that_are_none_stop_the_start(authority: Authority, tmp_path: pathlib.Path):
    issued, other = authority.issue("here"), authority.issue("other")
    with pytest.raises(ConfigError, match=r"nowhere\.pem cannot be read"):
        Https(str(tmp_path / "nowhere.pem"), str(issued.key))
    with pytest.raises(ConfigError):
        Https(str(issued.cert), str(other.key))
    with pytest.raises(ConfigError, match="both"):
        DashboardSettings(https_cert=str(issued.cert)).check()


def test_with_https_and_log_in_it_may_listen_anywhere():
    with pytest.raises(ConfigError, match="add --login"):
        DashboardSettings(host="0.0.0.0", https_cert="c", https_key="k").check()
    DashboardSettings(host="0.0.0.0", https_cert="c", https_key="k", login=True).check()
