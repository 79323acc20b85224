"""Per-topic retention and archives of a broker that runs from a server.ini, as a client at the MetaQ 1.x server sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.metaq1 import OurServer, TextConnection
from tests.support import eventually, run_metaq

pytestmark = pytest.mark.interop
BODY_BYTES = 9_000
FRAME_BYTES = 20 + BODY_BYTES
TOPICS = {
    "short": {"deletePolicy": "archive,1s"},
    "zipped": {"deletePolicy": "archive,1s,true"},
    "long": {"deletePolicy": "delete,168"},
}


def put(text: TextConnection, topic: str, number: int) -> None:
    answer = text.ask(f"put {topic} 0 {BODY_BYTES} 0 1", b"%06d" % number * (BODY_BYTES // 6))
    assert answer is not None
    assert answer.code == 200, answer.text
    assert answer.text.split()[2] == str(number * FRAME_BYTES)


def first_kept(text: TextConnection, topic: str) -> int:
    """Position of the oldest message that can be had."""
    answer = text.ask(f"get {topic} g 0 0 {1 << 20} 2")
    assert answer is not None
    assert answer.code in {None, 301}, answer.text
    return int(answer.text) if answer.code == 301 else 0


def test_topics_let_go_at_their_own_times_and_archives_have_what_went(tmp_path: Path) -> None:
    """Positions go on as they were, also after kill -9; a long-lived topic keeps all of its messages."""
    system = {"maxSegmentSize": 1 << 17, "deleteWhen": "* * * * * ?", "maxTransferSize": 1 << 16}
    server = OurServer(tmp_path, None, TOPICS, system)
    server.options = ["cleanResourceInterval=100", "diskMaxUsedSpaceRatio=95"]
    rounds = 40
    with server:
        with TextConnection(server.text) as text:
            for number in range(rounds):
                for topic in TOPICS:
                    put(text, topic, number)
            for topic in ("short", "zipped"):
                eventually(lambda topic=topic: first_kept(text, topic) > (rounds - 12) * FRAME_BYTES)
            kept = {topic: first_kept(text, topic) for topic in TOPICS}
        assert kept["long"] == 0
        assert all(position % FRAME_BYTES == 0 for position in kept.values())
        server.kill()
        for topic in ("short", "zipped"):
            done = run_metaq("store", "dump", str(server.data / "archive"), "--topic", topic)
            assert done.returncode == 0, done.stderr
            shown = [json.loads(line) for line in done.stdout.splitlines()]
            archived = kept[topic] // FRAME_BYTES
            assert [one["position"] for one in shown][:archived] == [n * FRAME_BYTES for n in range(archived)]
            assert [one["body"][:6] for one in shown][:archived] == [f"{n:06d}" for n in range(archived)]
        endings = {path.name[20:] for path in (server.data / "archive").rglob("*") if path.is_file()}
        assert endings == {".meta.arc", ".meta.zip"}
        server.start()
        with TextConnection(server.text) as text:
            assert all(first_kept(text, topic) >= position for topic, position in kept.items())
            put(text, "short", rounds)
            answer = text.ask(f"get long g 0 {5 * FRAME_BYTES} {FRAME_BYTES} 3")
            assert answer is not None
            assert answer.body[20:26] == b"000005"
