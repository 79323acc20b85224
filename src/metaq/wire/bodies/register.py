"""What a broker tells name servers of itself (103)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from metaq.errors import BadRequest
from metaq.model import DataVersion, TopicConfig
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, data_version_of
from metaq.wire.bodies.topics import topic_of_tree, topic_table_of_tree, topic_table_tree
from metaq.wire.compression import inflate

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
"""Largest registration after inflating: some 400 000 topics."""


def registration(version: DataVersion, topics: Mapping[str, TopicConfig], filter_servers: Iterable[str] = ()) -> bytes:
    """The body of 103."""
    return fastjson.dumps(
        {"filterServerList": list(filter_servers), "topicConfigSerializeWrapper": topic_table_tree(topics, version)}
    )


def registration_of(body: Body, *, compressed: bool, bare: bool) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """Decode the body of 103. `bare`: a broker before V3_0_11, which sends the table without its wrapper.

    An empty body is an empty table. Raises BadRequest, also for a compressed body that grows beyond 64 MiB.
    """
    if not len(body):
        return DataVersion(), {}
    if compressed:
        return _compressed_registration_of(body)
    tree = beans.parse(body, "registration")
    return topic_table_of_tree(tree if bare else tree["topicConfigSerializeWrapper"])


def _compressed_registration_of(body: Body) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """i32 n, n bytes DataVersion JSON; i32 topics; per topic i32 n, `name readQ writeQ perm filterType`; filter servers."""
    data = inflate(body, REGISTRATION_BYTES_MAX)
    topics: dict[str, TopicConfig] = {}
    try:
        at, piece = _piece(data, 0)
        version = data_version_of(piece)
        (count,) = struct.unpack_from(">i", data, at)
        at += 4
        for _ in range(count):
            at, piece = _piece(data, at)
            name, reads, writes, perm, filter_type = bytes(piece).decode().split(" ")
            tree = {"readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicFilterType": filter_type}
            topics[name] = topic_of_tree(Value(tree, f"the compressed registration of {name:.60}"), name)
    except (struct.error, ValueError) as error:
        raise BadRequest(f"the compressed registration is broken: {error}") from None
    return version, topics


def _piece(data: bytes, at: int) -> tuple[int, bytes]:
    (size,) = struct.unpack_from(">i", data, at)
    end = at + 4 + size
    if size < 0 or end > len(data):
        raise ValueError(f"a part of {size} bytes at {at}")
    return end, data[at + 4 : end]
