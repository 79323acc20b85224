"""Options of MetaQ 1.x that also mean the broker and its store: a broker has one identity and one log for both
generations.

They hold unless [broker] or [store] say otherwise. docs/metaq1-configuration.md has the table.
"""

from __future__ import annotations

import math
import pathlib
import platform
import re
from collections.abc import Collection
from typing import Any, Final

from metaq.model.metaq1.settings import PartitionRules
from metaq.net.address import is_address
from metaq.options import BrokerOptions, Metaq1Options, StoreOptions

_PARTITION_FOLDER: Final = re.compile(r".+-\d+")


def implied(options: Metaq1Options, given: Collection[str], rules: PartitionRules) -> dict[str, dict[str, Any]]:
    """Return values for [broker] and [store], by section and field.

    Args:
        options: of [metaq1].
        given: fields of `options` that the configuration names.
        rules: of topics.
    """
    broker: dict[str, Any] = {
        "broker_name": f"broker-{options.broker_id}" if "broker_id" in given else platform.node() or None
    }
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
    if options.fast_boot:
        store["check_crc_on_recover"] = False
    if options.load_message_stores_in_parallel:
        store["load_queues_in_parallel"] = True
    return {"broker": broker, "store": store}


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
