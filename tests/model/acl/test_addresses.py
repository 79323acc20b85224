"""Address patterns of white lists. What RocketMQ makes of each was observed of a 4.9.7."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.acl.addresses import CHOICES_MAX, AddressList, BadPattern, parse_pattern, parts_of


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.10.103.*", ["10.10.103.0", "10.10.103.255", "::ffff:10.10.103.7"], ["10.10.104.1", "::1", "10.10.10.3"]),
        ("10.10.*.*", ["10.10.1.2"], ["10.11.1.2"]),
        ("10.*.*.*", ["10.1.2.3"], ["11.1.2.3"]),
        ("10.10.1.1-10", ["10.10.1.1", "10.10.1.10"], ["10.10.1.0", "10.10.1.11"]),
        ("10.1-2.3-4.5", ["10.2.3.5"], ["10.3.3.5"]),
        ("10.10.1.{1,2}", ["10.10.1.1", "10.10.1.2"], ["10.10.1.12"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
        ("10.0.0.1", ["10.0.0.1"], ["10.0.0.10", "10.0.0", ""]),
        ("*", ["10.0.0.1", "::1"], ["no address", ""]),
        ("*.*.*.*", ["10.0.0.1", "::1"], [""]),
        ("*:*:*:*:*:*:*:*", ["10.0.0.1", "::1"], [""]),
        ("", [], ["10.0.0.1", "::", "0.0.0.0", ""]),
        ("  ", [], ["10.0.0.1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("2001:DB8::1", ["2001:db8:0:0:0:0:0:1"], ["2001:db8::10"]),
        ("2001:db8::{1,A}", ["2001:db8::a", "2001:db8::1"], ["2001:db8::2"]),
        ("2001:db8::1,2001:db8::2", ["2001:db8::2"], ["2001:db8::3"]),
        ("5::7:6:1-200:*", ["5:0:0:0:7:6:100:9"], ["5:0:0:0:7:6:300:9", "5:0:0:7:6:100:9:0"]),
        ("2001:db8:*", ["2001:db8::1", "2001:db8:ffff::"], ["2001:db9::1"]),
        ("2001:db8::*", ["2001:db8::7"], ["2001:db8::1:7"]),
        ("2001:db8:1:2:3:4:5:1-ff", ["2001:db8:1:2:3:4:5:fe"], ["2001:db8:1:2:3:4:5:100"]),
    ],
)
def test_patterns_that_rocketmq_takes_match_what_they_match_there(pattern, inside, outside):
    """Addresses of either family, however they are written."""
    parsed = parse_pattern(pattern)
    assert [address for address in inside if not parsed.matches(address)] == []
    assert [address for address in outside if parsed.matches(address)] == []
    assert parsed.text in {pattern, ""}


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.10.1-5.7", ["10.10.3.7"], ["10.10.3.99"]),  # RocketMQ lets .99 in: it looks at the range only
        ("10.10.1.0-0", ["10.10.1.0"], ["10.10.1.1"]),  # RocketMQ fails at every request
        ("*.1.2.3", ["9.1.2.3"], ["9.1.2.4"]),  # the same
        ("10.10.*", ["10.10.1.2"], ["10.1.1.2"]),  # RocketMQ refuses this and the next ones
        ("10.10.1.{1, 2}", ["10.10.1.2"], ["10.10.1.3"]),
        ("10.0.0.1, 10.0.0.2", ["10.0.0.2"], ["10.0.0.3"]),
        ("10.10.1.*,10.10.2.*", ["10.10.2.3"], ["10.10.3.3"]),
        ("2001:db8:*:*:*:*:*:*", ["2001:db8::1"], ["2001:db9::1"]),
        ("::ffff:10.0.0.1", ["10.0.0.1"], ["10.0.0.2"]),
        ("::ffff:a00:1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.2"]),
        ("fe80::1", ["fe80::1%eth0", "fe80::1"], ["fe80::2%eth0"]),
    ],
)
def test_patterns_that_are_taken_otherwise_than_by_rocketmq(pattern, inside, outside):
    """Each matches what it says, where RocketMQ matches more, fails or refuses."""
    parsed = parse_pattern(pattern)
    assert all(map(parsed.matches, inside))
    assert not any(map(parsed.matches, outside))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("300.1.1.1", "'300' is above 255"),
        ("10.10.300.*", "'300' is above 255"),
        ("10.10.1.1-300", "'1-300' is above 255"),
        ("10.10.10.10-1", "ends before it begins"),
        ("10.10.-1.1", "'-1' is no part"),
        ("10.10.1-.1", "'1-' is no part"),
        ("10.10.1", "3 parts, IPv4 has 4"),
        ("10.10.1.", "'' is no part"),
        ("1.2.3.4.5", "5 parts"),
        ("01.2.3.4", "leading zeros"),
        ("localhost", "1 parts, IPv4 has 4"),
        ("10.0.0.0/8", "networks are not written with '/'"),
        ("2001:db8::/48", "networks are not written with '/'"),
        ("fe80::1%eth0", "a zone"),
        ("10.10.{1,2}.3", "as the last part only"),
        ("10.10.1.{1,2", "as the last part only"),
        ("10.10.1.1,", "before or after a comma"),
        ("10.10.1.1,*", "must stand alone"),
        ("10.10.1.{}", "'' is no part"),
        ("1:2:3:4:5:6:7:8:9", "9 parts, IPv6 has 8"),
        ("1:2:3:4:5:6:7", "7 parts, IPv6 has 8"),
        ("1::2::3", "may stand once"),
        ("1:::2", "may stand once"),
        ("1:2:3:4::5:6:7:8", "leaves no part out"),
        ("2001:db8::12345", "'12345' is no part"),
        ("2001:db8::g", "'g' is no part"),
        ("::ffff:300.1.1.1", "is not an IP address"),
        ("10.0.0.{" + ",".join(map(str, range(255))) + "},10.0.1.{1,2,3}", f"more than {CHOICES_MAX}"),
        ("1" * 5000, "5000 characters"),
    ],
)
def test_bad_patterns_are_refused_with_the_reason(pattern, why):
    """RocketMQ takes some of them over the wire, and fails to read its file afterwards."""
    with pytest.raises(BadPattern) as caught:
        parse_pattern(pattern)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 250


@given(st.ip_addresses())
def test_every_address_is_a_pattern_of_itself_and_in_a_list(address):
    """Of both families, long and short."""
    for text in {str(address), address.exploded}:
        parsed = parse_pattern(text)
        assert parsed.matches(str(address))
        assert AddressList([parse_pattern("192.0.2.1-2"), parsed]).find(address.exploded) is not None
        assert not parsed.matches(str(address + 1 if int(address) % 65536 != 65535 else address - 1))


@given(st.text(max_size=40) | st.from_regex(r"[0-9a-f.:*{},-]{0,30}", fullmatch=True))
def test_any_text_is_a_pattern_or_refused(text):
    """Nothing else comes out of the parser than its own error, and what it takes can be asked."""
    try:
        parsed = parse_pattern(text)
    except BadPattern:
        return
    for address in ("10.0.0.1", "::1", text):
        parsed.matches(address)


def test_a_list_finds_the_entry_that_matches():
    """Single addresses, choices, ranges and everything; None without one."""
    white = AddressList(map(parse_pattern, ["10.0.0.1", "10.0.1.{1,2}", "10.0.2.*", "", "::1"]))
    found = {
        address: white.find(address) for address in ("10.0.0.1", "10.0.1.2", "10.0.2.9", "10.0.3.1", "::1", "", "x")
    }
    assert {address: entry and entry.text for address, entry in found.items()} == {
        "10.0.0.1": "10.0.0.1", "10.0.1.2": "10.0.1.{1,2}", "10.0.2.9": "10.0.2.*", "10.0.3.1": None, "::1": "::1",
        "": None, "x": None,
    }  # fmt: skip
    assert AddressList([parse_pattern("*")]).find("192.0.2.1") is not None
    assert AddressList([]).find("10.0.0.1") is None


def test_parts_are_those_of_the_address():
    """IPv4 has 4, IPv6 8; what is no address has none."""
    assert parts_of("10.0.0.1") == (10, 0, 0, 1)
    assert parts_of("2001:db8::1") == (0x2001, 0xDB8, 0, 0, 0, 0, 0, 1)
    assert parts_of(str(ipaddress.ip_address("::ffff:10.0.0.1"))) == (10, 0, 0, 1)
    assert parts_of("10.0.0.1:10911") == ()
