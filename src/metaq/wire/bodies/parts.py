"""Parts that several bodies and configuration files share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaq.model import DataVersion
from metaq.model.topics.topic import QUEUES_MAX
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value

Body = bytes | memoryview
Tree = dict[Any, Any]


def queues_in(tree: Value, field: str, default: int) -> int:
    """Return a number of queues. Raises BadRequest above `QUEUES_MAX`: clients make a list of all of them."""
    count = tree.whole_in(field, default, 32)
    if not 0 <= count <= QUEUES_MAX:
        raise tree[field].wrong(f"0 to {QUEUES_MAX}")
    return count


def data_version_tree(version: DataVersion) -> Tree:
    return {"counter": version.counter, "timestamp": version.timestamp}


def data_version_of_tree(tree: Value) -> DataVersion:
    return DataVersion(tree.whole_in("timestamp"), tree.whole_in("counter"))


def data_version(version: DataVersion) -> bytes:
    return fastjson.dumps(data_version_tree(version))


def data_version_of(body: Body) -> DataVersion:
    return data_version_of_tree(beans.parse(body, "data version"))


def kv_table(table: Mapping[str, str]) -> bytes:
    """Encode the answers to GET_BROKER_RUNTIME_INFO (28), GET_KVLIST_BY_NAMESPACE (219) and REGISTER_BROKER (103)."""
    return fastjson.dumps({"table": dict(table)})


def settings_of(body: Body) -> dict[str, str]:
    """Decode the answer to GET_BROKER_CONFIG (26), lines `key=value`. Any other line is passed over."""
    # At the first `=`: values hold more of them.
    pairs = (line.partition("=") for line in bytes(body).decode("utf-8", "replace").splitlines())
    return {key.strip(): value.strip() for key, found, value in pairs if found}


def kv_table_of(body: Body) -> dict[str, str]:
    table = beans.parse(body, "table")["table"].entries(nulls=True)
    return {key.key(): value.text() for key, value in table}
