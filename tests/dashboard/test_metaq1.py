"""Pages about MetaQ 1.x: a real ZooKeeper, a server of ours, a producer and a consumer of 1.x."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from metaq.dashboard.rendering.renderer import segment
from metaq.dashboard.settings import DashboardSettings
from metaq.errors import ConfigError
from metaq.metaq1 import Consumer, Producer
from metaq.metaq1.config import ZKConfig
from tests.dashboard.running import browsing, dashboard, looping
from tests.interop.metaq1 import TextServer, Zookeeper
from tests.support import eventually

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]


class Site1(NamedTuple):
    zookeeper: Zookeeper
    server: TextServer
    client: httpx.Client
