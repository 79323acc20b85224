"""Pages about MetaQ 1.x: a real ZooKeeper, a server of ours, a producer and a consumer of 1.x."""

from __future__ import annotations

from typing import NamedTuple

import httpx
import pytest

from tests.interop.metaq1 import TextServer, Zookeeper

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]


class Site1(NamedTuple):
    zookeeper: Zookeeper
    server: TextServer
    client: httpx.Client
