"""`metaq meta1`: partitions that are closed and opened at a running broker."""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.metaq1 import OurServer, TextConnection
from tests.support import run_metaq


def test_closed_partitions_take_and_give_nothing_until_they_are_opened(tmp_path: Path) -> None:
    """What cannot be closed is said, with what there is."""
    with OurServer(tmp_path, None, {"test": {"numPartitions": 3}}) as server, TextConnection(server.text) as text:

        def meta1(command: str, *words: str) -> list[int]:
            done = run_metaq("meta1", command, "test", *words, server.broker, "--json")
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)["closed"]

        assert text.ask("put test 1 2 0 1", b"hi").code == 200
        assert meta1("close-partitions", "1", "7") == [1, 2]
        for line, body in (("put test 1 2 0 2", b"hi"), ("get test g 1 0 100 3", b"")):
            answer = text.ask(line, body)
            assert (answer.code, answer.text) == (403, "Partition[0-1] has been closed")
        assert text.ask("offset test g 1 5 4").text == "0"
        assert text.ask("put test -1 2 0 5", b"hi").text.split()[1] == "0"
        assert meta1("close-partitions", "0", "0") == [0, 1, 2]
        assert text.ask("put test -1 2 0 6", b"hi").code == 403
        assert meta1("open-partitions") == []
        assert text.ask("get test g 1 0 100 7").body.endswith(b"hi")
        for words, why in ((("none", "0", "0"), "none"), (("test", "3", "9"), "partitions 0 to 2")):
            done = run_metaq("meta1", "close-partitions", *words, server.broker)
            assert done.returncode == 1
            assert why in done.stderr
