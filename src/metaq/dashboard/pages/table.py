"""All pages. The order is that of the menu, and of looking for whom a path belongs to."""

from __future__ import annotations

from typing import Final

from metaq.dashboard.page import Page
from metaq.dashboard.pages import (
    accounts,
    broker,
    brokers,
    clients,
    differences,
    events,
    group,
    groups,
    metaq1,
    metaq1_topic,
    name_servers,
    overview,
    pipeline,
    pipelines,
    quotas,
    topic,
    topics,
    zookeeper,
)

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE, topics.PAGE, topic.PAGE, groups.PAGE, group.PAGE, brokers.PAGE, differences.PAGE, broker.PAGE, name_servers.PAGE,
    events.PAGE, pipelines.PAGE, pipeline.PAGE, metaq1.PAGE, metaq1_topic.PAGE, zookeeper.PAGE,
    clients.PAGE, accounts.PAGE, quotas.PAGE,
)  # fmt: skip
