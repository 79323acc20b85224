"""What MetaQ is built from: pinned packages with hashes, and how an audit of them is judged."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.audit import judged

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


@pytest.mark.parametrize("name", ["build.txt", "all.txt"])
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
