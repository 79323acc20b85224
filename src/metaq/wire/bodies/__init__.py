"""The JSON bodies of the remoting protocol: values in, bytes out, and back (reference: RocketMQ 4.9, section 2.8).

For a body X, `x(...)` encodes and `x_of(body)` decodes. Encoders write compact standard JSON unless Java's readers need
one of fastjson's odd forms. Decoders take all that fastjson takes, by its rules for types (`metaq.wire.beans`), and raise
BadRequest for a wrong part; it names body and field. `x_tree` gives the parsed form and `x_of_tree` takes it, as a
`beans.Value`; the configuration files share them.
"""

from metaq.wire.bodies.clients import (
    client_check_of,
    connections_of,
    consumer_connections,
    consumer_ids,
    consumer_ids_of,
    heartbeat,
    heartbeat_names_of,
    heartbeat_of,
    producer_connections,
    subscription_of_tree,
    subscription_tree,
)
from metaq.wire.bodies.groups import (
    group_list,
    group_list_of,
    group_of,
    group_of_tree,
    group_table,
    group_table_of_tree,
    group_table_tree,
    group_tree,
)
from metaq.wire.bodies.locks import (
    locked_queues,
    locked_queues_of,
    queue_locks,
    queue_locks_of,
)
from metaq.wire.bodies.offsets import (
    delay_offsets,
    delay_offsets_of_tree,
    delay_offsets_tree,
    group_offsets,
    group_offsets_of_tree,
    group_offsets_tree,
    queue_offset_list,
    queue_offsets,
    queue_offsets_of,
    topics_and_groups,
)
from metaq.wire.bodies.parts import (
    data_version,
    data_version_of,
    data_version_of_tree,
    data_version_tree,
    kv_table,
    kv_table_of,
    settings_of,
)
from metaq.wire.bodies.register import (
    registration,
    registration_of,
)
from metaq.wire.bodies.routes import (
    cluster_info,
    cluster_info_of,
    route,
    route_of,
)
from metaq.wire.bodies.stats import (
    consume_stats,
    consume_stats_of,
    queue_key,
    topic_stats,
    topic_stats_of,
)
from metaq.wire.bodies.topics import (
    topic_list,
    topic_list_of,
    topic_of_tree,
    topic_table,
    topic_table_of_tree,
    topic_table_tree,
    topic_tree,
)

__all__ = [
    "client_check_of",
    "cluster_info",
    "cluster_info_of",
    "connections_of",
    "consume_stats",
    "consume_stats_of",
    "consumer_connections",
    "consumer_ids",
    "consumer_ids_of",
    "data_version",
    "data_version_of",
    "data_version_of_tree",
    "data_version_tree",
    "delay_offsets",
    "delay_offsets_of_tree",
    "delay_offsets_tree",
    "group_list",
    "group_list_of",
    "group_of",
    "group_of_tree",
    "group_offsets",
    "group_offsets_of_tree",
    "group_offsets_tree",
    "group_table",
    "group_table_of_tree",
    "group_table_tree",
    "group_tree",
    "heartbeat",
    "heartbeat_names_of",
    "heartbeat_of",
    "kv_table",
    "kv_table_of",
    "locked_queues",
    "locked_queues_of",
    "producer_connections",
    "queue_key",
    "queue_locks",
    "queue_locks_of",
    "queue_offset_list",
    "queue_offsets",
    "queue_offsets_of",
    "registration",
    "registration_of",
    "route",
    "route_of",
    "settings_of",
    "subscription_of_tree",
    "subscription_tree",
    "topic_list",
    "topic_list_of",
    "topic_of_tree",
    "topic_stats",
    "topic_stats_of",
    "topic_table",
    "topic_table_of_tree",
    "topic_table_tree",
    "topic_tree",
    "topics_and_groups",
]
