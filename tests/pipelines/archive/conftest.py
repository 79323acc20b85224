"""What tests of the archive share: a real HDFS, which costs a JVM with two servers. Each test has a folder of its own in it."""

from __future__ import annotations

import pytest

from tests.hadoop import hdfs as minis


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """One for each worker."""
    with minis.running(tmp_path_factory.mktemp("hdfs")) as running:
        yield running
