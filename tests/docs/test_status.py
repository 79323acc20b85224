"""docs/status.md lists every request of RocketMQ's tools and clients that is refused, and no other."""

from __future__ import annotations

import re

from metaq.clock import FakeClock
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.wire.codes import RequestCode
from metaq.wire.files import KV_CONFIG
from tests.broker.support import MemoryFile
from tests.servers.support import open_server
from tests.support import ROOT

TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}
"""Sent by brokers only."""


def test_refused_requests_are_those_of_the_table(tmp_path):
    """Also none that is served by now."""
    clock = FakeClock()
    names = NamesrvServer(NameService(NamesrvOptions(), clock, KvTable(TableFile(MemoryFile(), KV_CONFIG), clock)))
    with open_server(tmp_path) as (_, server):
        served = server.handling.handlers.keys() | names.handling.handlers.keys()
    page = (ROOT / "docs" / "status.md").read_text()
    _, _, section = page.partition("## Requests that are refused")
    listed = {int(code): name for code, name in re.findall(r"^\| (\d+) ([A-Z_]+) \|", section, re.MULTILINE)}
    refused = {int(code): code.name for code in set(RequestCode) - TO_CLIENTS if code not in served}
    assert listed == refused
    assert re.search(rf"^{len(listed)} codes? ", page, re.MULTILINE)
