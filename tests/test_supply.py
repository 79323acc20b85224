"""What MetaQ is built from: pinned packages with hashes, and how an audit of them is judged."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import sys
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.audit import judged
from tools.install import EXTRAS, Pinned, install_pinned

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN = "pymetaq"
PIN = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?==(?P<version>[^ ;\\]+)(?P<marker> ;[^\\]*)?(?P<rest>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)


def pins(name: str) -> list[re.Match[str]]:
    return list(PIN.finditer((ROOT / "locks" / name).read_text()))


def wanted() -> list[Requirement]:
    """All direct dependencies, of every extra."""
    project = PROJECT["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [one for one in map(Requirement, lines) if canonicalize_name(one.name) != OWN]


@pytest.mark.parametrize("name", ["build.txt", "all.txt", *(f"{level}.txt" for level in EXTRAS)])
def test_a_lock_is_pins_with_hashes_and_nothing_else(name):
    """No address, no option, no package without a hash: pip takes what the machine's own index has, if it is the same bytes."""
    text = (ROOT / "locks" / name).read_text()
    left = [line for line in PIN.sub("", text).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert left == []
    assert "://" not in text
    assert pins(name)


@pytest.mark.parametrize("asked", wanted(), ids=str)
def test_every_dependency_is_pinned_within_its_bounds(asked):
    """A new one, or a new bound, wants `make lock`."""
    versions = [
        Version(pin["version"])
        for pin in pins("all.txt")
        if canonicalize_name(pin["name"]) == canonicalize_name(asked.name)
    ]
    assert versions
    assert all(version in asked.specifier for version in versions)


def exact(name: str) -> set[tuple[str, ...]]:
    return {(pin["name"], pin["version"], pin["marker"] or "", pin["rest"]) for pin in pins(name)}


def test_what_make_installs_is_a_part_of_the_whole():
    """The same releases with the same files, more from one environment to the next; a marker may say less where less asks for it."""
    whole = {one[:2] + one[3:] for one in exact("all.txt")}
    base, demo, test = ({one[:2] + one[3:] for one in exact(f"{level}.txt")} for level in ("base", "demo", "test"))
    assert base < demo < test < whole
    assert {one[:2] + one[3:] for one in exact("lint.txt")} < test


def made(folder: pathlib.Path) -> pathlib.Path:
    """The wheel of a package that nobody else has."""
    name, about = "metaqtried", "metaqtried-1.dist-info"
    wheel = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return wheel


@pytest.mark.parametrize(
    ("version", "right", "outcome"),
    [("1", True, Pinned.INSTALLED), ("2", True, Pinned.NOT_TO_BE_HAD), ("1", False, Pinned.OTHER_FILES)],
    ids=["as locked", "a lagging index", "another file"],
)
def test_pinned_packages_are_installed_as_they_are_or_not_at_all(version, right, outcome, tmp_path):
    """With the real pip: an index that lags is told apart from a file that is not the one."""
    there = made(tmp_path).read_bytes()
    found = hashlib.sha256(there if right else b"").hexdigest()
    locks = tmp_path / "build.txt", tmp_path / "base.txt"
    locks[0].write_text("")
    locks[1].write_text(f"metaqtried=={version} \\\n    --hash=sha256:{found}\n")
    target = tmp_path / "installed"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--find-links",
        str(tmp_path),
        "--target",
        str(target),
    ]
    assert install_pinned(pip, locks) is outcome
    assert (target / "metaqtried.py").exists() is (outcome is Pinned.INSTALLED)


def test_what_builds_is_pinned_too():
    """With --require-hashes alone pip would still take the newest setuptools to build a source distribution."""
    built = {canonicalize_name(pin["name"]): Version(pin["version"]) for pin in pins("build.txt")}
    for asked in map(Requirement, PROJECT["build-system"]["requires"]):
        assert built[canonicalize_name(asked.name)] in asked.specifier


KNOWN = {"name": "a", "version": "1", "vulns": []}
FAULTY = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([KNOWN], 0, "no known faults in 1 packages"),
        ([KNOWN, UNKNOWN], 0, "no known faults in 1 packages; nothing is known of c"),
        ([KNOWN, FAULTY], 1, "b 2: PYSEC-1"),
        ([UNKNOWN, UNKNOWN], 0, "skipped: nothing is known here of any of the 2 packages"),
    ],
)
def test_an_audit_says_what_it_does_not_know(packages, code, said):
    """A mirror without a list of faults is no clean audit."""
    found = judged(json.dumps({"dependencies": packages}), "")
    assert (found[0], said in found[1]) == (code, True)


def test_an_audit_without_data_is_skipped_with_the_reason():
    """No connection to a list of faults is no fault of a package."""
    assert judged("", "Traceback\nConnectionError: no such host\n") == (
        0, "skipped: pip-audit has no list of faults here: ConnectionError: no such host",
    )  # fmt: skip
