"""Which address a client is told, by where it comes from and where it comes in."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.model.topics.advertised import ADVERTISED_MAX, Advertised, Origin

TEXT = "outside=broker.example.com:30911, 10.0.0.0/8=10.1.2.3:10911; 10.9.0.0/16=10.9.0.1:10911,2001:db8::/32=[2001:db8::1]:10911"


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        (Origin("192.168.0.1"), None),
        (Origin("10.1.1.1"), "10.1.2.3:10911"),
        (Origin("10.9.1.1"), "10.9.0.1:10911"),  # the narrower network
        (Origin("2001:db8::77"), "[2001:db8::1]:10911"),
        (Origin("fe80::1%eth0"), None),
        (Origin("10.9.1.1", "outside"), "broker.example.com:30911"),  # where it comes in, before where it comes from
        (Origin("10.9.1.1", "elsewhere"), "10.9.0.1:10911"),
        (Origin("", ""), None),
        (Origin("no address"), None),
    ],
)
def test_the_address_that_fits_is_told(origin, address):
    assert Advertised.of(TEXT, "advertisedAddresses").fitting(origin) == address


def test_text_comes_back_and_empty_is_none():
    advertised = Advertised.of(TEXT, "x")
    assert Advertised.of(str(advertised), "x") == advertised
    assert "[2001:db8::1]:10911" in advertised.addresses
    assert len(advertised.addresses) == 4
    assert not Advertised.of("", "x")
    assert not Advertised.of(" , ", "x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.1:10911", "is not name=host:port"),
        ("=10.0.0.1:10911", "is not name=host:port"),
        ("outside=", "is not host:port"),
        ("outside=host", "is not host:port"),
        ("outside=host:0", "is not host:port"),
        ("outside=host:70000", "is not host:port"),
        ("outside=ho st:10911", "is not host:port"),
        ("10.0.0.0/40=host:10911", "neither a network"),
        ("out side=host:10911", "neither a network"),
        ("outside=a:1,outside=b:1", "two addresses for outside"),
        ("10.0.0.0/8=a:1,10.1.0.0/8=b:1", "two addresses for 10.1.0.0/8"),
        (",".join(f"l{n}=a:1" for n in range(ADVERTISED_MAX + 1)), f"more than {ADVERTISED_MAX}"),
    ],
)
def test_what_is_no_address_is_named(text, why):
    with pytest.raises(ConfigError, match=why):
        Advertised.of(text, "advertisedAddresses")
