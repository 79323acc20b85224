"""Sharing out queues as the classes of RocketMQ's own client do, so that members in Java and Python share a group."""

import subprocess
from pathlib import Path

import pytest

from tests.client.consumer.membership import shares
from tests.interop import maven
from tests.support import PATIENCE

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def java_shares(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that reads cases and writes them with RocketMQ's shares."""
    folder = tmp_path_factory.mktemp("shares")
    classpath = f"{maven.jars(*maven.CLIENT)}/*"
    compiler = [maven.java(compiler=True), "-cp", classpath, "-d", str(folder), str(HERE / "java" / "Shares.java")]
    subprocess.run(compiler, check=True, timeout=PATIENCE)
    return [maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{classpath}", "Shares"]


def _by_java(command: list[str], lines: list[str]) -> list[str]:
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, encoding="utf-8", timeout=PATIENCE, check=True
    )  # fmt: skip
    return done.stdout.splitlines()


def test_every_share_is_that_of_rocketmqs_class(java_shares: list[str]) -> None:
    """Thousands of cases: average, circle, consistent hash, machine room and nearby, the order of ids and queues."""
    lines = shares.cases(seed=4, count=400)
    theirs = _by_java(java_shares, lines)
    assert len(theirs) == len(lines)
    different = [(line, shares.share(line)) for line in theirs if shares.share(line) != line]
    assert not different, f"{len(different)} of {len(lines)}, RocketMQ's first: {different[0]}"


def test_recorded_shares_are_what_java_still_says(java_shares: list[str]) -> None:
    """tests/client/shares.txt, by which machines without Java test the same."""
    recorded = shares.RECORDED.read_text("utf-8").splitlines()
    assert _by_java(java_shares, [line.rpartition("|")[0] for line in recorded]) == recorded
