"""What every request is checked for, without a server."""

from __future__ import annotations

import pytest

from metaq.clock import FakeClock
from metaq.dashboard.requests import relative
from metaq.dashboard.security.guard import HEADERS, FormTokens, Hosts, is_cookie, is_own_origin
from metaq.dashboard.settings import DashboardSettings
from metaq.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True), ("localhost:8121", True), ("LOCALHOST.:8121", True), ("127.0.0.1:1", True), ("[::1]:8121", True), ("[::1]", True),
        ("10.1.2.3", True), ("mq.example.com", True), ("mq.example.com:80", True), ("evil.example", False), ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False), ("", False), ("evil.example:8121", False), ("[evil]", False), ("a:b:c", False), ("localhost:x", False),
    ],
)  # fmt: skip
def test_only_names_of_ours_are_answered(host: str, known: bool):
    assert Hosts(("mq.example.com",)).knows(host) is known


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        ("http://localhost:8121", True), ("https://localhost:8121", False), ("http://localhost:8122", False), ("http://localhost", False),
        ("null", False), (None, False), ("", False), ("http://evil.example", False), ("http://localhost:8121.evil.example", False),
        ("http://[::1", False),
    ],
)  # fmt: skip
def test_forms_come_from_pages_of_ours(origin: str | None, own: bool):
    assert is_own_origin(origin, "localhost:8121", "http") is own


def test_a_token_fits_one_visitor_of_one_dashboard():
    tokens, clock = FormTokens(FakeClock(seed=1)), FakeClock(seed=2)
    one, other = clock.token(), clock.token()
    assert tokens.fits(one, tokens.of(one))
    assert not tokens.fits(other, tokens.of(one))
    assert not tokens.fits(one, "")
    assert not tokens.fits("", tokens.of(""))
    assert not FormTokens(FakeClock(seed=3)).fits(one, tokens.of(one))
    assert not tokens.fits(one, tokens.of(one)[:-1] + "é")


def test_cookies_are_ours_or_none():
    assert is_cookie(FakeClock().token())
    assert not any(map(is_cookie, ("", "x" * 32, "a" * 31, "a" * 33, "A" * 32)))


@pytest.mark.parametrize("place", ["/", "/topics?q=a&page=2", "/topics/%25DLQ%25a"])
def test_visitors_are_led_on_here(place: str):
    assert relative(place) == place


@pytest.mark.parametrize(
    "place",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "evil",
        "",
        "/a\r\nset-cookie: b",
        "javascript:alert(1)",
        "/\t/evil.example",
    ],
)
def test_and_never_elsewhere(place: str):
    assert relative(place) == "/"


def test_browsers_are_told_to_run_nothing_inline_and_load_nothing_from_elsewhere():
    policy = HEADERS["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_another_address_needs_consent():
    with pytest.raises(ConfigError, match=r"would listen on 0.0.0.0 without TLS.*--insecure"):
        DashboardSettings(host="0.0.0.0").check()
    DashboardSettings(host="0.0.0.0", insecure=True).check()
    DashboardSettings(host="::1").check()


def test_an_account_of_the_dashboards_own_is_not_lent_to_the_network():
    from metaq.client.identity.options import client_options

    own = client_options(access_key="operator", secret_key="12345678")
    with pytest.raises(ConfigError, match="acts as its account operator") as told:
        DashboardSettings(host="0.0.0.0", insecure=True, login=False, client=own).check()
    assert "12345678" not in str(told.value)
    assert "12345678" not in repr(DashboardSettings(client=own))
