"""Spark with executors in other processes: a session costs some twenty seconds, so a module's tests share one."""

from __future__ import annotations

import pytest

from tests.spark.standalone.servers import Standalone, driver
from tests.spark.standalone.topics import Copies


@pytest.fixture(scope="module")
def local_cluster(tmp_path_factory):
    """A driver with two executors of one core each."""
    with driver("local-cluster[2,1,1024]", tmp_path_factory.mktemp("local-cluster"), {}) as running:
        yield running


@pytest.fixture(scope="session")
def standalone(tmp_path_factory):
    """A master and two workers, each on a host of its own."""
    with Standalone(tmp_path_factory.mktemp("standalone")) as servers:
        yield servers


@pytest.fixture
def copies(metaq_broker, tmp_path):
    return Copies(metaq_broker.namesrv, tmp_path)
