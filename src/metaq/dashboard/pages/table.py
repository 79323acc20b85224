"""All pages. The order is that of the menu, and of looking for whom a path belongs to."""

from __future__ import annotations

from typing import Final

from metaq.dashboard.page import Page
from metaq.dashboard.pages import (
    accounts,
    broker,
    broker_log,
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
    reset,
    topic,
    topics,
    zookeeper,
)
from metaq.dashboard.pages.dead_letters import group as dead_group
from metaq.dashboard.pages.dead_letters import groups as dead_groups
from metaq.dashboard.pages.dead_letters import letter
from metaq.dashboard.pages.messages import message, search, send
from metaq.dashboard.pages.undelivered import delays, transactions

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE, topics.PAGE, topic.PAGE, groups.PAGE, group.PAGE, reset.PAGE, search.PAGE, message.PAGE, send.PAGE, dead_groups.PAGE,
    dead_group.PAGE, letter.PAGE, delays.PAGE, transactions.PAGE, brokers.PAGE, differences.PAGE, broker.PAGE, broker_log.PAGE, name_servers.PAGE,
    events.PAGE, pipelines.PAGE, pipeline.PAGE, metaq1.PAGE, metaq1_topic.PAGE, zookeeper.PAGE,
    clients.PAGE, accounts.PAGE, quotas.PAGE,
)  # fmt: skip
