"""Options of MetaQ 1.x that also mean the broker and its store: a broker has one identity and one log for both
generations.

They hold unless [broker] or [store] say otherwise. docs/metaq1-configuration.md has the table.
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
import platform
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from metaq.model.metaq1.settings import PartitionRules
from metaq.net.address import is_address, is_loopback
from metaq.options import BrokerOptions, Metaq1Options, StoreOptions
from metaq.store.offline.segments import FRAME_BYTES_MAX

_FOR_HTTP: Final = ("starlette", "uvicorn", "httptools", "prometheus_client")
_PARTITION_FOLDER: Final = re.compile(r".+-\d+")


def implied(options: Metaq1Options, given: Collection[str], rules: PartitionRules) -> dict[str, dict[str, Any]]:
    """Return values for [broker] and [store], by section and field.

    Args:
        options: of [metaq1].
        given: fields of `options` that the configuration names.
        rules: of topics.
    """
    name = f"broker-{options.broker_id}" if "broker_id" in given else platform.node() or None
    if options.slave_id is not None:
        # It has a log of its own: to RocketMQ's tools it is no replica.
        name = f"{name}-slave{options.slave_id}"
    broker: dict[str, Any] = {"broker_name": name}
    if "dashboard_http_port" in given and not missing_for_http():
        broker["http_port"] = options.dashboard_http_port
    store: dict[str, Any] = {}
    # Another name is for 1.x clients alone: records have room for an address only.
    if options.host_name is not None and is_address(options.host_name):
        broker["broker_ip1"] = options.host_name
    if "data_path" in given:
        store["store_path_root_dir"] = options.data_path
    if options.data_log_path is not None:
        store["store_path_commit_log"] = str(pathlib.PurePath(options.data_log_path) / "commitlog")
    if "max_segment_size" in given:
        store["mapped_file_size_commit_log"] = options.max_segment_size
    if "delete_policy" in given:
        store["file_reserved_time"] = math.ceil(rules.default.delete_policy.keep_seconds / 3600)
    intervals = [settings.unflush_interval_ms for settings in rules.topics.values()]
    if "unflush_interval" in given or any(interval != options.unflush_interval for interval in intervals):
        store["flush_interval_commit_log"] = min(options.unflush_interval, *intervals, options.unflush_interval)
    if options.slave_id is not None:
        store["max_message_size"] = FRAME_BYTES_MAX  # whatever the master has taken
    if options.fast_boot:
        store["check_crc_on_recover"] = False
    if options.load_message_stores_in_parallel:
        store["load_queues_in_parallel"] = True
    return {"broker": broker, "store": store}


def missing_for_http() -> str:
    """Return the package that the HTTP server needs and that is not installed; "": it has all."""
    return next((name for name in _FOR_HTTP if importlib.util.find_spec(name) is None), "")


def http_notices(options: Metaq1Options, broker: BrokerOptions) -> Iterator[str]:
    """Yield what somebody should know who had the pages of an original broker at its dashboardHttpPort."""
    if package := missing_for_http():
        yield (
            f"dashboardHttpPort={options.dashboard_http_port}: nothing listens there, for want of the package {package}: "
            "pip install 'pymetaq[http]'"
        )
    elif broker.http_port == options.dashboard_http_port and is_loopback(broker.http_bind_address):
        yield (
            f"dashboardHttpPort={broker.http_port}: the HTTP server listens at {broker.http_bind_address} alone, where the original "
            "has all addresses: httpBindAddress opens it"
        )


def settled(options: Metaq1Options, broker: BrokerOptions, store: StoreOptions) -> Metaq1Options:
    """Return the options with the values of [broker] and [store] where those decide."""
    return options.replace(
        host_name=broker.broker_ip1 or options.host_name,
        data_path=store.store_path_root_dir,
        max_segment_size=store.mapped_file_size_commit_log,
    )


def old_data(folder: str) -> str:
    """Return a warning if messages of an original 1.x broker lie in the folder, else ""."""
    root = pathlib.Path(folder).expanduser()
    try:
        found = [
            path.name
            for path in root.iterdir()
            if _PARTITION_FOLDER.fullmatch(path.name) and next(path.glob("*.meta"), None) is not None
        ]
    except OSError:  # opening the store will say what is wrong with it
        return ""
    if not found:
        return ""
    return (
        f"{folder} has messages of an original MetaQ 1.x broker ({', '.join(sorted(found)[:3])}"
        f"{' ...' if len(found) > 3 else ''}), which nobody gets from there: metaq store import-meta takes them over"
    )
