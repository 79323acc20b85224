"""Store folders as releases have left them, committed small: `tests/store/kept/RELEASE.json.gz`.

A JSON object: `files`, of which each name has the size and the runs [place, hex] that are not zeros; and `bodies`, the CRC-32 of each message's body
by queue. `python -m tests.store.upkeep.kept RELEASE` keeps the folder of the release at hand; one that was kept is never written anew.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import sys
import tempfile
import zlib
from typing import Any

from metaq.clock import FakeClock
from metaq.store.upkeep.scrub import scrub
from tests.store.support import START_MS, message, open_store, read_all
from tests.store.upkeep.support import with_tables

KEPT = pathlib.Path(__file__).parents[1] / "kept"
_RUN = re.compile(rb"[^\0](?:[^\0]|\0{1,15}(?=[^\0]))*", re.DOTALL)


def unpacked(release: str, root: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
    """Write the folder that a release has left to `root`, its holes as holes. Returns it, and what is known of it."""
    kept = json.loads(gzip.decompress((KEPT / f"{release}.json.gz").read_bytes()))
    for name, (size, runs) in kept["files"].items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
            for place, data in runs:
                file.seek(place)
                file.write(bytes.fromhex(data))
    return root, kept


def keep(release: str) -> pathlib.Path:
    """Make a folder with each kind of file, and keep it. Raises FileExistsError: this release has one already."""
    with tempfile.TemporaryDirectory() as scratch:
        root, clock = pathlib.Path(scratch) / "store", FakeClock(START_MS)
        with open_store(root, clock) as store:
            for number in range(700):
                clock.advance(0.5)
                body = b"%d:" % number + bytes(range(256))[: number % 200]
                store.writer.put([message("orders", number % 2, body, tag="ab"[number % 3 % 2], key=f"k{number}")])
            bodies = [[zlib.crc32(body) for body in read_all(store, "orders", queue_id)] for queue_id in range(2)]
        with_tables(root)
        scrub(root)
        files = {}
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            data = path.read_bytes()
            runs = [(found.start(), found.group().hex()) for found in _RUN.finditer(data)]
            files[str(path.relative_to(root))] = [len(data), runs]
        text = json.dumps({"files": files, "bodies": bodies})
    KEPT.mkdir(exist_ok=True)
    path = KEPT / f"{release}.json.gz"
    with path.open("xb") as file:
        file.write(gzip.compress(text.encode(), mtime=0))
    return path


if __name__ == "__main__":
    print(keep(sys.argv[1]))
