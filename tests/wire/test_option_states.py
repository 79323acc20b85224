"""Bodies about options: of 25, 318 and 30022."""

from __future__ import annotations

import pytest

from metaq.errors import BadRequest, LocalProtocolError
from metaq.model.servers.option_state import AT_ONCE, OptionState
from metaq.wire import bodies, extensions
from metaq.wire.bodies.parts import CHANGES_BYTES_MAX


def test_states_go_there_and_back():
    states = [
        OptionState("fileReservedTime", "store", "48", "72", "file", AT_ONCE, "/etc/broker.conf"),
        OptionState("brokerIP1", "broker", None, None, "default", "restart"),
    ]
    body = extensions.option_states(states)
    assert extensions.option_states_of(body) == states
    assert (
        b'{"key":"brokerIP1","section":"broker","value":null,"default":null,"origin":"default","changes":"restart"}'
        in body
    )


@pytest.mark.parametrize("body", [b"", b"{}", b"[{}]", b'[{"key":5}]', b"\xff", b"[" * 100_000])
def test_what_is_no_list_of_states_is_refused(body):
    with pytest.raises(BadRequest, match="no list of options"):
        extensions.option_states_of(body)


def test_a_rocketmq_reads_java_properties():
    """Its escapes, and Latin-1: whatever it is, the value arrives."""
    assert bodies.option_changes({"regionId": "ä\\b😀 c"}, escaped=True) == b"regionId=\\u00e4\\\\b\\ud83d\\ude00 c\n"
    assert bodies.option_changes({"regionId": "ä\\b"}) == "regionId=ä\\b\n".encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a", "1\nb=2"), ("a", "1\rb=2"), ("a", "\0"), ("a", "\N{PARAGRAPH SEPARATOR}"), ("", "1"), ("#a", "1"), ("!a", "1"),
        ("a=b", "1"), ("a\nb", "1"), ("a b", "1"), ("a:b", "1"), ("a\\", "1"), ("a", "x" * CHANGES_BYTES_MAX),
    ],
)  # fmt: skip
def test_nothing_makes_two_options_of_one(key, value):
    with pytest.raises(LocalProtocolError):
        bodies.option_changes({key: value})
