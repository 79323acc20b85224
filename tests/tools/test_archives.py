"""Archives with the same content are the same bytes, whoever packed them when and from where; and they are what pip and auditwheel expect."""

from __future__ import annotations

import base64
import hashlib
import os
import tarfile
import zipfile

from tools.archives import read_wheel, repack_sdist, write_wheel

EPOCH = 1_900_000_000
ABOUT = "tried-1.0.dist-info"
TAGS = ("cp311", "cp311", "manylinux_2_17_aarch64")


def sdist(folder, names, umask, when):
    """A source distribution as somebody's machine makes it."""
    before = os.umask(umask)
    root = folder / "tried-1.0"
    root.mkdir(parents=True)
    os.umask(before)
    for name in names:
        (root / name).write_text(name)
        os.utime(root / name, (when, when))
        (root / name).chmod(0o777 & ~umask)
    archive = folder / "tried-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            tar.add(root / name, f"tried-1.0/{name}")
    return archive


def test_a_source_distribution_is_the_same_bytes_from_any_machine(tmp_path):
    """Another order, mode, owner and time, and another name of the folder."""
    one = sdist(tmp_path / "a", ["x.py", "y.py", "z" * 150], 0o022, 1_000_000_000)
    other = sdist(tmp_path / "b" / "c", ["z" * 150, "y.py", "x.py"], 0o077, 1_700_000_000)
    assert one.read_bytes() != other.read_bytes()
    for archive in (one, other):
        repack_sdist(archive, EPOCH)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as tar:
        assert [entry.name for entry in tar] == ["tried-1.0/x.py", "tried-1.0/y.py", f"tried-1.0/{'z' * 150}"]
        assert {(entry.mtime, entry.mode, entry.uid, entry.uname) for entry in tar} == {(EPOCH, 0o644, 0, "")}
        assert tar.extractfile("tried-1.0/x.py").read() == b"x.py"


def pure(folder, names):
    folder.mkdir(parents=True)
    wheel = folder / "tried-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, f"# {name}")
        archive.writestr(f"{ABOUT}/METADATA", "Metadata-Version: 2.1\nName: tried\nVersion: 1.0\n")
        archive.writestr(
            f"{ABOUT}/WHEEL", "Wheel-Version: 1.0\nGenerator: one\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n"
        )
        archive.writestr(f"{ABOUT}/RECORD", "to be made anew")
    return wheel


def test_a_wheel_is_the_same_bytes_and_says_what_it_is(tmp_path):
    """Its record has the sum and size of every file; its tags are those of its name; its modules are no pure Python."""
    added = {"tried/_c.so": b"\x7fELF"}
    wheels = [
        write_wheel(tmp_path / number, pure(tmp_path / number, names), TAGS, added, EPOCH)
        for number, names in (("1", ["tried/__init__.py", "tried/b.py"]), ("2", ["tried/b.py", "tried/__init__.py"]))
    ]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert wheels[0].name == "tried-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"
    held = read_wheel(wheels[0])
    assert held["tried/_c.so"] == b"\x7fELF"
    assert held[f"{ABOUT}/WHEEL"].decode().splitlines() == [
        "Wheel-Version: 1.0", "Generator: one", "Root-Is-Purelib: false", "Tag: cp311-cp311-manylinux_2_17_aarch64",
    ]  # fmt: skip
    rows = [line.split(",") for line in held[f"{ABOUT}/RECORD"].decode().splitlines()]
    assert {row[0] for row in rows} == held.keys()
    for name, digest, size in rows[:-1]:
        of = base64.urlsafe_b64encode(hashlib.sha256(held[name]).digest()).decode().rstrip("=")
        assert (digest, size) == (f"sha256={of}", str(len(held[name])))
    assert rows[-1] == [f"{ABOUT}/RECORD", "", ""]


def test_what_a_wheel_holds_decides_its_bytes(tmp_path):
    """Not only when it was made: another content is another file."""
    made = [
        write_wheel(
            tmp_path / number, pure(tmp_path / number, ["tried/__init__.py"]), TAGS, {"tried/_c.so": content}, EPOCH
        )
        for number, content in (("1", b"one"), ("2", b"two"))
    ]
    assert made[0].read_bytes() != made[1].read_bytes()
