"""Messages kept in a local file: order, durability when the process is killed, damage, limits, names."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.errors import BufferFull, ClientClosed, StoreFailed, StoreFull, StoreLocked
from metaq.metaq1 import Message
from metaq.metaq1.storages.kept import KeptMessages, kept_path

HOSTILE = [
    "..",
    ".",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "a@b",
    "",
    "t" * 500,
    "名字",
    "-rf",
    "%2e%2e",
    "~",
]


def bodies(kept: KeptMessages) -> list[bytes]:
    return [one.message.data for one in kept.oldest(1000)]


def test_messages_come_back_in_their_order(tmp_path):
    path = tmp_path / "new" / "t@0-1.sqlite"
    with KeptMessages(path) as kept:
        first = kept.add(-(2**63), Message("t", b"a", "blue"))
        second = kept.add(2**63 - 1, Message("u", b"", ""))
        third = kept.add(-1, Message("t", b"\0c"))
        assert first < second < third
        assert len(kept) == 3
    with KeptMessages(path) as kept:
        assert len(kept) == 3
        assert kept.oldest(2) == [
            (first, -(2**63), Message("t", b"a", "blue")),
            (second, 2**63 - 1, Message("u", b"", "")),
        ]
        kept.remove([first, third, 99999])
        assert [one.number for one in kept.oldest(10)] == [second]
        assert kept.add(0, Message("t", b"d")) > third, "a number is never given twice"
        assert len(kept) == 2


def test_any_attribute_comes_back(tmp_path):
    with KeptMessages(tmp_path / "t") as kept:
        kept.add(1, Message("t", b"", "\udcff\ud800"))
        assert kept.oldest(1)[0].message.attribute == "\udcff\ud800"


def test_many_are_added_and_removed_at_once(tmp_path):
    with KeptMessages(tmp_path / "t") as kept:
        numbers = kept.add_all((number, Message("t", b"%d" % number)) for number in range(1200))
        assert [one.message_id for one in kept.oldest(2000)] == list(range(1200))
        kept.remove(numbers)
        assert len(kept) == 0
        assert kept.oldest(1) == []


def test_the_limit_is_said(tmp_path):
    with KeptMessages(tmp_path / "t", 2) as kept:
        numbers = [kept.add(1, Message("t", b"a")), kept.add(2, Message("t", b"b"))]
        with pytest.raises(BufferFull, match="may keep 2"):
            kept.add(3, Message("t", b"c"))
        with pytest.raises(BufferFull):
            kept.add_all([(3, Message("t", b"c"))])
        kept.remove(numbers[:1])
        kept.add(3, Message("t", b"c"))
        assert bodies(kept) == [b"b", b"c"]


def test_a_closed_one_says_so(tmp_path):
    kept = KeptMessages(tmp_path / "t")
    kept.close()
    kept.close()
    with pytest.raises(ClientClosed, match="closed"):
        kept.add(1, Message("t", b""))


# ---------------------------------------------------------------- names


def test_no_name_leaves_the_folder(tmp_path):
    """And each pair of names has a file of its own."""
    paths = {kept_path(tmp_path, topic, name) for topic in HOSTILE for name in HOSTILE}
    assert len(paths) == len(HOSTILE) ** 2
    for path in paths:
        assert path.parent == tmp_path
        assert path.resolve().parent == tmp_path.resolve()
        assert len(path.name.encode()) < 240
    for topic in HOSTILE:
        with KeptMessages(kept_path(tmp_path / "made", topic, topic)) as kept:
            kept.add(1, Message("t", topic.encode()))
    for topic in HOSTILE:
        with KeptMessages(kept_path(tmp_path / "made", topic, topic)) as kept:
            assert bodies(kept) == [topic.encode()]
    assert {one.name for one in tmp_path.iterdir()} == {"made"}


def test_a_name_that_needs_no_care_stays_readable(tmp_path):
    assert kept_path(tmp_path, "orders.eu", "0-3").name == "orders.eu@0-3.sqlite"


# ---------------------------------------------------------------- processes

ADDING = """
import sys
from pathlib import Path
from metaq.metaq1 import Message
from metaq.metaq1.storages.kept import KeptMessages
kept = KeptMessages(Path(sys.argv[1]))
print("open", flush=True)
number = 0
while True:
    kept.add(number, Message("t", b"%d" % number))
    print(number, flush=True)
    number += 1
    if number % 7 == 0:
        oldest = kept.oldest(3)
        print("removing", oldest[-1].message_id, flush=True)
        kept.remove([one.number for one in oldest])
        print("removed", oldest[-1].message_id, flush=True)
"""


def adding(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", ADDING, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("lines", [1, 2, 5, 8, 9, 10, 11, 40, 101, 400])
def test_what_was_added_survives_a_kill(tmp_path, lines):
    """Whatever was said to be added is there in order, whatever was said to be removed is not."""
    path = tmp_path / "t"
    child = adding(path)
    assert child.stdout is not None
    said = [child.stdout.readline() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    said += child.stdout.readlines()
    child.wait()
    words = [line.split() for line in said if line.endswith("\n")]
    added = max((int(line[0]) for line in words if line[0].isdecimal()), default=-1)
    removed = max((int(line[1]) for line in words if line[0] == "removed"), default=-1)
    removing = max((int(line[1]) for line in words if line[0] == "removing"), default=-1)
    with KeptMessages(path) as kept:
        ids = [one.message_id for one in kept.oldest(100_000)]
        assert len(kept) == len(ids)
        first, last = (ids[0], ids[-1]) if ids else (added + 1, added)
        assert ids == list(range(first, last + 1))
        assert first in {removed + 1, removing + 1}
        assert last in {added, added + 1}
        assert [one.message.data for one in kept.oldest(3)] == [b"%d" % number for number in ids[:3]]


def test_a_file_belongs_to_one_process(tmp_path):
    path = tmp_path / "t"
    child = adding(path)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=f"{path} is in use by another process"):
            KeptMessages(path)
    finally:
        child.kill()
        child.communicate()
    KeptMessages(path).close()


def test_a_file_is_not_opened_twice_in_a_process(tmp_path):
    with KeptMessages(tmp_path / "t") as kept:
        with pytest.raises(StoreLocked):
            KeptMessages(tmp_path / "t")
        kept.add(1, Message("t", b"x"))
        assert bodies(kept) == [b"x"]


# ---------------------------------------------------------------- damage


def other_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE message (x)")
    database.commit()
    database.close()


def newer(path: Path) -> None:
    KeptMessages(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=7")
    database.close()


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.write_bytes(b"not a database, " * 500), other_database, newer],
    ids=["garbage", "another database", "newer"],
)
def test_a_file_that_is_none_is_put_aside(tmp_path, caplog, spoil):
    path = tmp_path / "t"
    spoil(path)
    before = path.read_bytes()
    for number in (1, 2):
        with KeptMessages(path) as kept:
            assert len(kept) == 0
            kept.add(1, Message("t", b"x"))
            assert bodies(kept) == [b"x"]
        assert f"{path} is damaged" in caplog.text
        assert (tmp_path / f"t.damaged-{number}").exists()
        spoil(path.unlink() or path)
    assert len((tmp_path / "t.damaged-1").read_bytes()) == len(before)


def test_damage_that_shows_later_is_put_aside_then(tmp_path, caplog):
    """The pages of messages are spoilt while the file is closed; its head is whole."""
    path = tmp_path / "t"
    with KeptMessages(path) as kept:
        kept.add_all((number, Message("t", b"x" * 3000)) for number in range(100))
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 5] + b"\xff" * (len(data) - 4096 * 5))
    with KeptMessages(path) as kept:
        kept.oldest(1000)
        kept.add(1, Message("t", b"new"))
        assert bodies(kept)[-1] == b"new"
    assert f"{path} is damaged" in caplog.text
    assert (tmp_path / "t.damaged-1").exists()


def test_a_row_that_is_no_message_is_damage(tmp_path, caplog):
    path = tmp_path / "t"
    KeptMessages(path).close()
    database = sqlite3.connect(path)
    database.execute("INSERT INTO message (message_id, topic, data) VALUES (1, 'two words', x'00')")
    database.commit()
    database.close()
    with KeptMessages(path) as kept:
        assert kept.oldest(5) == []
    assert "message 1 in it is none" in caplog.text


def test_a_full_disk_is_said(tmp_path):
    """And what was kept stays; there is room again when something goes."""
    with KeptMessages(tmp_path / "t") as kept:
        kept.add(0, Message("t", b"first"))
        pages = kept._opened().execute("PRAGMA page_count").fetchone()[0]
        kept._opened().execute(f"PRAGMA max_page_count={pages + 3}")
        with pytest.raises(StoreFull, match="Make room"):
            kept.add(1, Message("t", b"x" * 100_000))
        assert bodies(kept) == [b"first"]
        assert len(kept) == 1
        kept.add(2, Message("t", b"small"))
        assert bodies(kept) == [b"first", b"small"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFailed, match="cannot be made"):
        KeptMessages(tmp_path / "file" / "t")
