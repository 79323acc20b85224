"""`metaq store` on files of MetaQ 1.x."""

from __future__ import annotations

import json
import zipfile

from metaq.wire.metaq1_frame import frame, with_attribute
from tests.support import run_metaq


def test_dump_prints_frames_of_each_kind_of_file_of_1x(tmp_path):
    """A data folder with live, archived and zipped files; a damaged one ends there, and the exit code says so."""
    folder = tmp_path / "test-0"
    folder.mkdir()
    one, two, three = frame(1, 0, b"one"), frame(-2, 1, with_attribute("red", b"two")), frame(3, 1, b"\xff")
    (folder / f"{0:020d}.meta.arc").write_bytes(one)
    with zipfile.ZipFile(folder / f"{len(one):020d}.meta.zip", "w") as archive:
        archive.writestr(f"{len(one):020d}.meta", two)
    last = folder / f"{len(one + two):020d}.meta"
    last.write_bytes(three)
    dumped = run_metaq("store", "dump", str(tmp_path))
    shown = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [(row["position"], row["message_id"], row["attribute"]) for row in shown] == [
        (0, 1, None),
        (23, -2, "red"),
        (53, 3, None),
    ]
    assert [row.get("body", row.get("body_base64")) for row in shown] == ["one", "two", "/w=="]
    assert run_metaq("store", "dump", str(last), "--from", "53").stdout.count("\n") == 1
    assert run_metaq("store", "dump", str(tmp_path), "--topic", "other").stdout == ""
    last.write_bytes(three + b"torn")
    torn = run_metaq("store", "dump", str(tmp_path))
    assert torn.returncode == 1
    assert f"{last} ends at position 74: 4 bytes that are no whole frame" in torn.stderr


def test_dump_of_a_folder_that_holds_neither_says_so(tmp_path):
    """And names what it looked for."""
    dumped = run_metaq("store", "dump", str(tmp_path))
    assert dumped.returncode != 0
    assert "holds no commit log" in dumped.stderr
