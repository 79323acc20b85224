"""`metaq meta1`: partitions that are closed and opened at a running broker."""

from __future__ import annotations

import json
from pathlib import Path

from metaq.wire.hot import crc31
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
        answer = text.ask("put test 1 2 0 2", b"hi")
        assert (answer.code, answer.text[-43:]) == (403, "failed.Detail:partition[0-1] has been closed"[-43:])
        answer = text.ask("get test g 1 0 100 3")
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


def test_stats_tell_what_jmx_told(tmp_path: Path) -> None:
    """Prepared and open transactions of our broker beside the figures of the text protocol."""
    with OurServer(tmp_path, None, {"test": {"numPartitions": 1}}) as server, TextConnection(server.text) as text:
        assert "none is open" in run_metaq("meta1", "stats", server.text, "--broker", server.broker).stdout
        key = "XID:1:6162:63:q"
        assert text.ask(f"transaction {key} session-1 BEGIN q 1").code == 200
        assert text.ask(f"put test 0 2 0 {crc31(b'hi')} {key} 2", b"hi").code == 200
        assert text.ask(f"transaction {key} session-1 PREPARE q 4").code == 200
        done = run_metaq("meta1", "stats", server.text, "--broker", server.broker, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["broker"]["tx_xa_begin"] == 1
        assert found["transactions"] == {"prepared": [key]}
        assert "prepared: 1 transaction, such as XID:" in run_metaq(
            "meta1", "stats", server.text, "--broker", server.broker
        ).stdout  # fmt: skip


def test_stats_of_what_is_no_such_server(tmp_path: Path, metaq_broker) -> None:
    """Said in a sentence, without a traceback."""
    for words, code, why in (
        (("127.0.0.1:1",), 1, "cannot be reached"),
        ((metaq_broker.broker,), 1, "does not answer `stats` as a MetaQ 1.x server"),
        (("nowhere",), 2, "nowhere"),
        (("127.0.0.1:1", "--topic", "offsets"), 2, "offsets"),
        (("127.0.0.1:1", "--topic", "a b"), 2, "a b"),
    ):
        done = run_metaq("meta1", "stats", *words)
        assert done.returncode == code, done.stderr
        assert why in done.stderr
        assert done.stderr.startswith("metaq: ")
        assert done.stderr.count("\n") == 1
