"""Who counts as a caller on this machine."""

from __future__ import annotations

import pytest

from metaq.servers.server import caller_of
from tests.servers.support import FakePeer


@pytest.mark.parametrize(
    ("peer", "local", "here"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", True),
        ("::1", "::1", True),
        ("10.0.0.9", "10.0.0.9", True),
        ("10.0.0.8", "10.0.0.9", False),
        ("", "", False),
    ],
)
def test_this_machine_is_who_comes_from_the_address_that_it_comes_to(peer, local, here):
    """A broker may listen on its own address alone: an operator there is no stranger. Who has gone again is nobody."""
    fake = FakePeer()
    fake.address, fake.local = (peer, 40000), (local, 10911)
    assert caller_of(fake).loopback is here
