"""Wheels and source distributions whose bytes depend on what is in them, and not on when, where and by whom they were packed."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import tarfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_EARLIEST = 315532800
"""1980-01-01: zip knows no earlier one."""
_FILE = 0o100644


def repack_sdist(archive: Path, epoch: int) -> None:
    """Write `archive` (.tar.gz) again: entries by name, of time `epoch` (seconds, UTC), of nobody, mode 0644."""
    with tarfile.open(archive) as read:
        held = {
            one.name: content.read() for one in read.getmembers() if one.isfile() and (content := read.extractfile(one))
        }
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as write:
        for name in sorted(held):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(held[name]), epoch, 0o644
            write.addfile(entry, io.BytesIO(held[name]))
    with archive.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, epoch) as packed:
        packed.write(tar.getvalue())


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """What a wheel holds: name → content."""
    with zipfile.ZipFile(wheel) as read:
        return {name: read.read(name) for name in read.namelist() if not name.endswith("/")}


def write_wheel(folder: Path, pure: Path, tags: Sequence[str], added: Mapping[str, bytes], epoch: int) -> Path:
    """Write the wheel `pure` with the files `added`, for one Python and platform, into `folder`.

    `tags`: Python, ABI and platform. `epoch`: seconds, UTC, of every entry. Returns its path.
    """
    distribution, version, *_ = pure.name.split("-")
    about = f"{distribution}-{version}.dist-info"
    held = {**read_wheel(pure), **added}
    described = [
        line
        for line in held[f"{about}/WHEEL"].decode().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    described += ["Root-Is-Purelib: false", f"Tag: {'-'.join(tags)}"]
    held[f"{about}/WHEEL"] = ("\n".join(described) + "\n").encode()
    record = f"{about}/RECORD"
    held.pop(record, None)
    # What describes the wheel comes last, as the format recommends.
    names = sorted(held, key=lambda name: (name.startswith(f"{about}/"), name))
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    for name in names:
        digest = base64.urlsafe_b64encode(hashlib.sha256(held[name]).digest()).decode().rstrip("=")
        rows.writerow((name, f"sha256={digest}", len(held[name])))
    rows.writerow((record, "", ""))
    held[record] = lines.getvalue().encode()
    path = folder / f"{distribution}-{version}-{'-'.join(tags)}.whl"
    when = time.gmtime(max(epoch, _EARLIEST))[:6]
    with zipfile.ZipFile(path, "w") as write:
        for name in (*names, record):
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr, entry.create_system = _FILE << 16, 3  # Unix, whatever packs
            write.writestr(entry, held[name], zipfile.ZIP_DEFLATED, 9)
    return path
