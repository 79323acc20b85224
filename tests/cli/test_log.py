"""`metaq broker log`."""

from __future__ import annotations

import json
import pathlib

import pytest

from metaq.cli.commands import run
from metaq.testing import EmbeddedBroker


def test_the_last_lines_are_printed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker(tmp_path / "store", options={"brokerName": "b"}) as server:

        def metaq(*words: str) -> tuple[int, str]:
            code = run(["broker", "log", *words, "-n", server.namesrv])
            said = capsys.readouterr()
            return code, said.out + said.err

        code, text = metaq("b")
        assert code == 0 and "INFO metaq.app.serving: the remoting server listens at" in text
        code, text = metaq("b", "--lines", "1", "--json")
        (line,) = json.loads(text)
        assert (code, line["level"]) == (0, "INFO") and line["text"] and line["atMs"] > 1_700_000_000_000
        assert metaq("b", "--level", "critical") == (0, "")
        assert metaq("nobody")[0] == 3
        assert metaq("b", "--level", "loud")[0] == 2
        assert metaq("b", "--lines", "501")[0] == 2
