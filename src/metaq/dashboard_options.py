"""Options of the dashboard that `metaq up` starts beside itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metaq.option_table import OptionTable, option


@dataclass(frozen=True, kw_only=True)
class DashboardOptions(OptionTable):
    """What `metaq up` starts a dashboard with."""

    section: ClassVar = "dashboard"

    dashboard_enable: bool | None = option(
        None,
        "Start a dashboard together with `metaq up`, in a process of its own. Needs the extra `dashboard`. Unset: it is started if "
        "dashboardPort is set, or if `metaq up` runs in a terminal and the extra is installed.",
    )
    dashboard_port: int | None = option(
        None,
        "Port of the dashboard of `metaq up`, at 127.0.0.1. 0: the system chooses a free port. Unset: 8121.",
        low=0,
        high=65535,
    )
    dashboard_allow_changes: bool = option(
        False,
        "Let visitors of the dashboard of `metaq up` change the cluster; with `false` it shows everything and changes nothing.",
    )
    dashboard_pipelines: str = option(
        "",
        "Folders of pipelines that the dashboard of `metaq up` shows, or folders that contain some, separated by `,`. Empty: none.",
    )
    dashboard_zookeeper: str = option(
        "",
        "ZooKeeper of MetaQ 1.x whose groups the dashboard of `metaq up` shows, `host:port,host:port`, with `/ROOT` at the end if the root "
        "is not `/meta`. Empty: none.",
    )
