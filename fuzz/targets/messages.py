"""Messages of any producer that pipelines read, and segments of MetaQ 1.x, plain and zipped."""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile
import zipfile
from collections.abc import Iterator

import msgspec
from fuzz.target import Feed, Target, parser
from fuzz.targets.metaq1 import some_frames
from tests.pipelines.changes import bodies

from metaq.pipelines.changes.change import NotAChange, Statement
from metaq.pipelines.changes.decoding import Decoder
from metaq.store.offline.damage import Damage
from metaq.store.offline.segments import SegmentPiece, SegmentReader, read_segment, segment_at
from metaq.wire.metaq1.frame import LIVE, NAME_DIGITS, ZIPPED

DECODERS = (Decoder(), Decoder(keys={"": ("id",)}, sequence="source.lsn"), Decoder(sequenced=False))
WORDS = (b'"op":', b'"key":', b'"row":', b'"seq":', b'"payload":', b'"schema":', b'"source":', b'"ts_ms":', b'"before":', b'"after":', b'"data":', b'"old":', b'"pkNames":', b'"mysqlType":', b'"isDdl":true', b'"type":"UPDATE"', b'"scale":', b'"io.debezium.time.Date"', b'"org.apache.kafka.connect.data.Decimal"')  # fmt: skip


def change(data: bytes) -> None:
    """A message of row changes, in every format, with and without a sequence."""
    refused: list[Exception] = []
    for decoder in DECODERS:
        try:
            for one in decoder.decode(data, ('{"payload":{"id":1}}',)):
                repr(one)
        except (NotAChange, Statement) as error:
            refused.append(error)
    if len(refused) == len(DECODERS):
        raise refused[0]


def some_changes() -> list[bytes]:
    found = []
    for name, value in sorted(vars(bodies).items()):
        if name.isupper() and isinstance(value, dict):
            found.append(msgspec.json.encode(value))
        elif name.isupper() and isinstance(value, bytes):
            found.append(value)
    plain = {"op": "update", "table": "t", "key": {"id": 7}, "seq": 42, "row": {"state": "paid", "l": [1]}}
    return [*found, msgspec.json.encode(plain), b"null", b'{"op":"d","key":7,"seq":43}']


@contextlib.contextmanager
def segments() -> Iterator[Feed]:
    """A data file of a 1.x broker, as it is, and as an archived one."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "orders-0"
        folder.mkdir()

        def feed(data: bytes) -> None:
            for suffix in (LIVE, ZIPPED):
                path = folder / f"{0:0{NAME_DIGITS}d}{suffix}"
                path.write_bytes(data)
                segment = segment_at(path)
                assert segment is not None
                whole = list(SegmentReader(segment))
                runs = list(read_segment(SegmentPiece(segment, 0, 1 << 40), block_bytes=64))
                rows = sum(0 if isinstance(run, Damage) else run.rows for run in runs)
                assert rows >= len(whole)

        yield feed


def some_segments() -> list[bytes]:
    made = []
    for frames in some_frames():
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", method) as zipped:
                zipped.writestr(zipfile.ZipInfo(f"{0:0{NAME_DIGITS}d}{LIVE}"), frames, method)
            made.append(file.getvalue())
    return [*some_frames(), *made]


TARGETS = [
    parser("row-changes", change, some_changes, NotAChange, Statement, words=WORDS),
    Target(
        "segments",
        segments,
        some_segments,
        (),
        words=(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"\xff\xff\xff\xff"),
    ),
]
