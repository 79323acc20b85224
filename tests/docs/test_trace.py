"""The program of docs/trace.md runs as it stands, and its tables are true."""

from __future__ import annotations

import re
from typing import Any

import pytest

from metaq.admin import Admin, TraceNotFound
from metaq.client.observing.observing import Observing
from metaq.testing import EmbeddedBroker
from tests.support import ROOT, eventually

PAGE = (ROOT / "docs" / "trace.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def broker():
    """Of its own: the program has the topic that every page has."""
    with EmbeddedBroker() as running:
        yield running


def test_the_traced_program_can_be_followed(broker, capsys):
    """Sent, stored and delivered."""
    names: dict[str, Any] = {}
    exec(BLOCKS[0].replace("localhost:9876", broker.namesrv), names)
    assert capsys.readouterr().out == "b'...'\n"

    def probe():
        with Admin(broker.namesrv) as admin:
            try:
                return [event.what for event in admin.message_trace(names["receipt"].message_id).events]
            except TraceNotFound:
                return []

    eventually(lambda: probe() == ["sent", "stored", "delivered"], what="the timeline")


@pytest.mark.parametrize("name", ["trace", "trace_topic", "trace_rate", "message_log_rate"])
def test_defaults_of_the_page_are_those_of_the_code(name):
    """In the table, or in brackets behind the name."""
    default = getattr(Observing(), name)
    assert re.search(rf"`{name}` (\| `?|\(){re.escape(str(default))}", PAGE)
