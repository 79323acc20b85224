"""Sharing out partitions as the classes of MetaQ's own Java client do, so that members in Java and Python share a group."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop import maven
from tests.interop.metaq1 import CLIENT
from tests.metaq1.rebalance import shares
from tests.support import PATIENCE

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def java_shares(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that reads cases and writes them with the shares of MetaQ's classes."""
    folder = tmp_path_factory.mktemp("shares")
    classpath = f"{maven.jars(*CLIENT)}/*"
    source = str(HERE / "java" / "Metaq1Shares.java")
    compiler = [maven.java(compiler=True), "-encoding", "UTF-8", "-cp", classpath, "-d", str(folder), source]
    subprocess.run(compiler, check=True, timeout=PATIENCE)
    command = [maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
    return [*command, "-cp", f"{folder}:{classpath}", "Metaq1Shares"]


def _by_java(command: list[str], lines: list[str]) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, encoding="utf-8", timeout=PATIENCE, check=True)
    return done.stdout.splitlines()


def test_every_share_is_that_of_metaqs_class(java_shares: list[str]) -> None:
    """Thousands of cases: both strategies, up to 1 000 partitions, odd ids, one who is no member."""
    lines = shares.cases(seed=31, count=1500)
    theirs = _by_java(java_shares, lines)
    assert len(theirs) == len(lines)
    different = [(line, shares.share(line)) for line in theirs if shares.share(line) != line]
    assert not different, f"{len(different)} of {len(lines)}, Java's first: {different[0]}"


def test_recorded_shares_are_what_java_still_says(java_shares: list[str]) -> None:
    """tests/metaq1/rebalance/shares.txt, by which machines without Java test the same."""
    recorded = shares.RECORDED.read_text("utf-8").splitlines()
    assert _by_java(java_shares, [line.rpartition("|")[0] for line in recorded]) == recorded
