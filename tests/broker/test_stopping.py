"""A broker stops at a request: of who may, where somebody can stop it."""

from __future__ import annotations

import pytest

from metaq.broker.gatekeeper import Gatekeeper, administered_locally
from metaq.broker.process.stopping import Stopping
from metaq.errors import Reason, Refused
from metaq.model.access import Caller

HERE, FAR = Caller("127.0.0.1:5", loopback=True), Caller("10.0.0.66:5", loopback=False)


def test_a_stop_is_asked_for_on_this_machine_only():
    """Without accounts; a broker whose process nobody can stop refuses."""
    stopping, stopped = Stopping(Gatekeeper(administration=administered_locally)), []
    with pytest.raises(Refused, match="stop its process"):
        stopping.ask(HERE)
    stopping.by(stopped.append)
    with pytest.raises(Refused) as refused:
        stopping.ask(FAR)
    assert refused.value.reason is Reason.NO_PERMISSION
    assert stopped == []
    stopping.ask(HERE)
    assert stopped == ["a stop request from 127.0.0.1:5"]
