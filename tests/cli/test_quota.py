"""`metaq quota`: set, shown with what is taken, removed; and what is no quota."""

from __future__ import annotations

import json
import pathlib

import pytest

from metaq.cli.commands import run
from metaq.testing import EmbeddedBroker


def test_a_quota_is_set_shown_and_removed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker(tmp_path / "store") as server:

        def metaq(*words: str) -> tuple[int, str]:
            code = run(["quota", *words, "-n", server.namesrv])
            said = capsys.readouterr()
            return code, said.out + said.err

        code, text = metaq("set", "address", "*", "requestsPerSecond=1000", "bytesInPerSecond=10M", "--json")
        assert code == 0, text
        assert json.loads(text)["limits"] == "requestsPerSecond=1000,bytesInPerSecond=10M"
        code, text = metaq("show", "--json")
        assert code == 0, text
        ((default, own),) = json.loads(text).values()
        assert (default["kind"], default["name"], default["own"]) == ("address", "*", True)
        assert default["limits"] == {"requestsPerSecond": 1000, "bytesInPerSecond": 10 << 20}
        assert (own["name"], own["connections"]) == ("127.0.0.1", 1)
        code, text = metaq("show")
        assert code == 0
        assert "requestsPerSecond=1000,bytesInPerSecond=10485760" in text
        code, text = metaq("remove", "address", "*")
        assert code == 0, text
        assert "has no quota of its own any more" in text
        code, text = metaq("remove", "address", "*")
        assert code == 3
        assert "the address * has no quota of its own" in text
        assert metaq("remove", "client", "nobody")[0] == 3
        code, text = metaq("set", "client", "c@1", "speed=1")
        assert code == 2
        assert "'speed' is no limit of a client" in text
        code, text = metaq("set", "client", "c@1", "heldPulls=1", "--broker", "nobody")
        assert code == 3, text
