"""Small stores for tests, and the ways to hurt them."""

from __future__ import annotations

import errno
import pathlib
import shutil
from typing import Any

import msgspec

from metaq.clock import FakeClock
from metaq.model.message import host_bytes
from metaq.options import StoreOptions
from metaq.store.log.writer import Put, PutRecord
from metaq.store.message_store import MessageStore
from metaq.store.offline.reader import StoreReader
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire import hot
from metaq.wire.record import decode_record

HOST = host_bytes("127.0.0.1", 10911)
BORN = host_bytes("127.0.0.1", 50000)
START_MS = 1_700_000_000_000


def small_options(root: pathlib.Path, **changes: Any) -> StoreOptions:
    """Files so small that a test crosses their borders; the background threads only when the test says so."""
    values: dict[str, Any] = {
        "store_path_root_dir": str(root),
        "mapped_file_size_commit_log": 64 * 1024,
        "mapped_file_size_consume_queue": 100 * 20,
        "max_hash_slot_num": 50,
        "max_index_num": 300,
        "flush_interval_consume_queue": 3_600_000,
        "flush_interval_commit_log": 3_600_000,
    }
    return StoreOptions(**{**values, **changes})


def open_store(root: pathlib.Path, clock: FakeClock | None = None, disk: Any = None, **changes: Any) -> MessageStore:
    return MessageStore(small_options(root, **changes), clock or FakeClock(START_MS), HOST, "DefaultCluster", disk=disk)


def message(topic: str, queue_id: int, body: bytes, tag: str = "", key: str = "", **more: Any) -> PutRecord:
    """A plain message as the broker would put it."""
    pairs = [pair for pair in (("TAGS", tag), ("KEYS", key)) if pair[1]]
    return PutRecord(
        topic, queue_id, body, "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode(), 0, 0, 1, BORN,
        tags_code=hot.java_hash(tag.encode()) if tag else 0, keys=(f"{topic}#{key}".encode(),) if key else (), **more,
    )  # fmt: skip


def put(store: MessageStore, topic: str, queue_id: int, *bodies: bytes, **more: Any) -> Put:
    return store.writer.put([message(topic, queue_id, body, **more) for body in bodies])


def answer(pulled: ReadResult) -> ReadResult:
    """The answer itself, also of a pull that belongs into a thread."""
    return pulled.job() if pulled.status is ReadStatus.COLD and pulled.job else pulled


def bodies_of(data: bytes | memoryview) -> list[bytes]:
    found, start = [], 0
    while start < len(data):
        record = decode_record(data, start)
        found.append(record.body)
        start += int.from_bytes(data[start : start + 4], "big")
    return found


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Every body of a queue, by pulls, from its min offset on."""
    queue = store.reader.existing_queue(topic, queue_id)
    if queue is None:
        return []
    offset, found = queue.min_offset, []
    while True:
        pulled = answer(store.reader.pull(topic, queue_id, offset, 32))
        found += bodies_of(pulled.body)
        if pulled.next_offset <= offset:
            return found
        offset = pulled.next_offset


def dumped(root: pathlib.Path) -> list[tuple[str, int, int, bytes]]:
    """(topic, queue id, queue offset, body) of every record in the folder."""
    return [(m.topic, m.queue_id, m.queue_offset, m.body) for m in StoreReader(root).records()]


def copy_running(folder: pathlib.Path, to: pathlib.Path) -> None:
    """Copy the folder of a store that goes on: deleted queues and renamed files may vanish while it is copied."""
    try:
        shutil.copytree(folder, to)
    except shutil.Error as error:
        if any(f"[Errno {errno.ENOENT}]" not in why for _, _, why in error.args[0]):
            raise


def crash(store: MessageStore, to: pathlib.Path) -> pathlib.Path:
    """Copy the folder of a running store, as kill -9 leaves it, and end the store. Returns the copy."""
    copy_running(store.folder.root, to)
    store.close()
    return to


def restart_machine(root: pathlib.Path) -> None:
    """Have a folder that a kill has left count as found after a power cut: its page cache is not that of the killed broker."""
    for path in (root / "config").glob("metaqTails.json*"):
        change_json(path, boot="another")


def change_json(path: pathlib.Path, **changes: Any) -> None:
    """Change keys of one of our configuration files by hand: without the checksum that it had."""
    found = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({key: found[key] for key in found if key not in {"v", "crc"}} | changes))


def checkpoint(store: MessageStore) -> None:
    """Make everything durable and write it down now, as the background thread does every second."""
    store.keeper.checkpoint()


def log_file(root: pathlib.Path, start: int = 0) -> pathlib.Path:
    return root / "commitlog" / f"{start:020d}"


def overwrite(path: pathlib.Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)
