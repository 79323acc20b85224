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
        "Start a dashboard beside `metaq up`, in a process of its own. Unset: if dashboardPort is set, or `metaq up` runs in a "
        "terminal and pymetaq[dashboard] is installed.",
    )
    dashboard_port: int | None = option(
        None, "Port of the dashboard, at 127.0.0.1; 0 takes a free one. Unset: 8121.", low=0, high=65535
    )
    dashboard_allow_changes: bool = option(False, "Show forms that change the cluster, and accept them.")
    dashboard_pipelines: str = option(
        "", "Folders of pipelines that it shows, or folders with those in them, several joined by `,`."
    )
    dashboard_zookeeper: str = option(
        "", "ZooKeeper of MetaQ 1.x that it shows, `host:port,host:port`, with `/ROOT` behind it if that is not /meta."
    )
