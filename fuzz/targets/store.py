"""A store's folder with damaged files: log, consume queues, index, checkpoint, marks. A start mends them, or says what is wrong."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import struct
import tempfile
from collections.abc import Iterator
from random import Random

from fuzz.target import Feed, Target
from tests.store.support import START_MS, open_store, put, read_all

from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreError
from metaq.store.offline.reader import StoreReader

EDIT = struct.Struct(">BBHB")
"""(file, way, place, bytes): an edit of one file, the bytes behind it. A byte before all edits: its lowest bit says that the broker
was killed."""
QUEUES = tuple((topic, queue) for topic in ("orders", "bills") for queue in (0, 1))


def template(root: pathlib.Path) -> list[pathlib.Path]:
    """Make a small store that was closed in order. Returns its files."""
    with open_store(root) as store:
        for number in range(60):
            store.clock.advance(0.5)
            topic, queue = QUEUES[number % 4]
            put(store, topic, queue, b"%d" % number * 40, tag="a" if number % 3 else "", key=f"k{number}")
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")


def edited(files: list[pathlib.Path], data: bytes) -> None:
    at = 1
    while at + EDIT.size <= len(data):
        number, way, place, size = EDIT.unpack_from(data, at)
        at += EDIT.size
        path, piece = files[number % len(files)], data[at : at + size]
        at += size
        if not path.exists():
            continue
        match way % 6:
            case 0 | 1:
                old = path.read_bytes()
                place = place % max(1, len(old))
                path.write_bytes((old[:place] + piece + old[place + len(piece) :])[: len(old)])
            case 2:
                path.write_bytes(piece)
            case 3:
                path.write_bytes(path.read_bytes()[:place])
            case 4:
                path.unlink()
            case 5:
                old = path.read_bytes()
                path.write_bytes(old[:place] + bytes(len(old[place:])))


@contextlib.contextmanager
def opened() -> Iterator[Feed]:
    with tempfile.TemporaryDirectory() as name:
        made, used = pathlib.Path(name) / "made", pathlib.Path(name) / "used"
        places = [path.relative_to(made) for path in template(made)]

        def feed(data: bytes) -> None:
            shutil.rmtree(used, ignore_errors=True)
            shutil.copytree(made, used)
            edited([used / place for place in places], data)
            if data[:1] and data[0] & 1:
                (used / "abort").touch()
                (used / "config" / "metaqTails.json").unlink(missing_ok=True)
            with contextlib.suppress(StoreError):
                for message in StoreReader(used).records():
                    repr(message)
            with open_store(used, FakeClock(START_MS + 100_000)) as store:
                for topic, queue in QUEUES:
                    read_all(store, topic, queue)
                store.reader.query("orders", "k4", 10, 0, 1 << 62)
                put(store, "orders", 0, b"after")

        yield feed


def an_edit(chance: Random, data: bytes) -> bytes:
    """One more edit, or a changed one."""
    piece = chance.choice(
        (
            b"\0" * 8,
            b"\xff" * 4,
            b"\x7f\xff\xff\xff",
            b"\x80",
            chance.randbytes(chance.randrange(1, 24)),
            b"{}",
            b"[" * 200,
        )
    )
    more = (
        EDIT.pack(
            chance.randrange(256),
            chance.choice((0, 0, 0, 0, 2, 3, 4, 5)),
            chance.randrange(1 << chance.choice((4, 8, 14, 16))),
            len(piece),
        )
        + piece
    )
    return bytes([chance.randrange(2)]) + data[1:200] * (chance.random() < 0.3) + more


def seeds() -> list[bytes]:
    return [
        b"\0",
        b"\1",
        *(bytes([killed]) + EDIT.pack(file, 0, 4, 4) + b"\xff" * 4 for file in range(12) for killed in (0, 1)),
    ]


TARGETS = [
    Target("store", opened, seeds, (StoreError, ConfigError), an_edit, bytes_max=400, stretched=False, slow=True)
]
