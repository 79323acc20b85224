"""The programs of docs/outbox.md run as they stand, one after the other."""

from __future__ import annotations

import re
import sqlite3

from metaq.testing import EmbeddedBroker
from tests.support import ROOT


def test_the_programs_of_the_page_run(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "outbox.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    with EmbeddedBroker() as broker:
        for block in blocks:
            exec(block.replace("localhost:9876", broker.namesrv), {})
    assert sqlite3.connect("bills.db").execute("SELECT item FROM bills").fetchall() == [("lamp",)]
    assert capsys.readouterr().out == "0 keys forgotten\n0 messages will be sent again\n"
