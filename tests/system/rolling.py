"""A group of replicas or a pair, and a producer that sends to it all the time."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self

import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import ConfigError, MetaqError
from metaq.testing import Cluster, free_port
from metaq.testing.zookeeper import java, zookeeper_jars
from tests.support import PATIENCE, eventually

TOPIC = "orders"
POLL_SECONDS = 0.5
"""Between two questions for routes: 30 s for who says nothing."""
FAILOVER = {"failover": "zookeeper", "failoverSessionTimeout": 2000, "inSyncTimeout": 2000}


@contextlib.contextmanager
def group(members: int = 2, environment: Mapping[str, str] | None = None, **options: object) -> Iterator[Cluster]:
    """A group with failover, whose members are in sync. Skips the test where there is no ZooKeeper to start."""
    try:
        java()
        zookeeper_jars()
    except ConfigError as error:
        pytest.skip(str(error))
    http = [{"httpPort": free_port()} for _ in range(members)]
    with running(
        Cluster(
            replicas=members,
            zookeeper=True,
            options={**FAILOVER, **options},
            broker_options=http,
            environment=environment,
        )
    ) as made:
        wait_in_sync(made)
        yield made


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with a topic."""
    with cluster, Admin(cluster.namesrv) as admin:
        # Whoever leads registers behind the others.
        eventually(lambda: admin.create_topic(TOPIC, queues=2), PATIENCE)
        yield cluster


def wait_in_sync(cluster: Cluster) -> None:
    """Return when all members of a group are in the in-sync set, and registered."""
    everyone = tuple(range(1, cluster.replicas + 1))

    def is_so() -> bool:
        with Admin(cluster.namesrv) as admin:
            (standing,) = admin.list_groups_of_replicas()
            return standing.in_sync == everyone and not standing.out_of_sync and len(standing.members) == len(everyone)

    eventually(is_so, PATIENCE, what="all members are in sync")


class Load:
    """Sends numbers until it is left. `failed`: errors; `longest`: seconds of the slowest send."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._over = cluster, threading.Event()
        self.sent: list[int] = []
        self.failed: list[str] = []
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: len(self.sent) > 20 or self.failed, PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with metaq.Producer(self._cluster.namesrv, poll_name_server_interval=POLL_SECONDS) as producer:
            while not self._over.wait(0.002):
                began = time.monotonic()
                try:
                    producer.send(TOPIC, b"%d" % number)
                except MetaqError as error:
                    self.failed.append(str(error))
                else:
                    self.sent.append(number)
                self.longest = max(self.longest, time.monotonic() - began)
                number += 1

    def check(self) -> None:
        """All that was acknowledged is there, and nothing has failed. When it is left."""
        assert not self.failed
        missing = set(self.sent)
        with metaq.Reader(self._cluster.namesrv, TOPIC, start="earliest") as reader:
            end = time.monotonic() + PATIENCE
            while missing and time.monotonic() < end:
                message = reader.receive(timeout=1)
                if message is not None:
                    missing.discard(int(message.body))
        assert not missing, f"{len(missing)} of {len(self.sent)} are lost"


def events(stderr: str) -> list[dict[str, object]]:
    """Return what a command has told with --json."""
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
