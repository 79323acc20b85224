"""Parts that several bodies and configuration files share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metaq.errors import BadRequest, LocalProtocolError
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


CHANGES_BYTES_MAX: Final = 64 * 1024
"""Largest body with changes of options."""


def option_changes(pairs: Mapping[str, str], *, escaped: bool = False) -> bytes:
    """Encode UPDATE_BROKER_CONFIG (25) and UPDATE_NAMESRV_CONFIG (318): lines `key=value`, as Java properties.

    Args: escaped: with the escapes of those, which a RocketMQ reads and ours does not.
    Raises LocalProtocolError: a key or value that such a line cannot have, or too many bytes.
    """
    for key, value in pairs.items():
        if not key or key[0] in "#!" or not key.isprintable() or set(key) & set("=: \\"):
            raise LocalProtocolError(f"{key[:60]!r} is no name of an option")
        if not value.isprintable():
            raise LocalProtocolError(f"{key}={value[:60]!r}: the value has a line break or another control character")
    made = "".join(f"{key}={_escaped(value) if escaped else value}\n" for key, value in pairs.items()).encode()
    if len(made) > CHANGES_BYTES_MAX:
        raise LocalProtocolError(f"the options take {len(made)} bytes, allowed are {CHANGES_BYTES_MAX}")
    return made


def _escaped(value: str) -> str:
    # Java reads such lines as Latin-1.
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 127 else f"\\u{code:04x}" for code in codes)


def option_changes_of(body: Body) -> dict[str, str]:
    """Decode them; lines that are empty or begin with `#` are passed over. Raises BadRequest."""
    if len(body) > CHANGES_BYTES_MAX:
        raise BadRequest(f"the options take {len(body)} bytes, allowed are {CHANGES_BYTES_MAX}")
    try:
        lines = bytes(body).decode().split("\n")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the options are not UTF-8: {error.reason} at byte {error.start}") from None
    pairs: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] == "#":
            continue
        key, found, value = text.partition("=")
        if not found or not key.strip():
            raise BadRequest(f"line {number} of the options is {text[:60]!r}, need key=value")
        pairs[key.strip()] = value.strip()
    return pairs


def kv_table_of(body: Body) -> dict[str, str]:
    table = beans.parse(body, "table")["table"].entries(nulls=True)
    return {key.key(): value.text() for key, value in table}
