"""A consumer's options by RocketMQ's names (the tables in docs/groups.md and docs/client.md). Never secrets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from metaq.client.consumer.handling.watch import Watch
from metaq.client.consumer.options import GroupOptions
from metaq.client.consumer.telling.direct import Direct
from metaq.client.identity.options import ClientOptions
from metaq.client.shared.core import ClientCore
from metaq.model import ConsumeFrom

MIB: Final = 1024 * 1024
VERSION_NAME: Final = "V4_9_8"
"""The version of RocketMQ whose protocol we speak, by the name that its tools show."""


class Facts(Struct, frozen=True):
    """What the properties are made of, besides the options. `workers`: of `run`, now."""

    group: str
    client_id: str
    name_servers: tuple[str, ...]
    started_ms: int
    push: bool
    workers: int = 0
    batch: int = 1
    consume_timeout: float = 0.0
    """Seconds; 0: there is none."""


class Teller(Struct, frozen=True):
    """Tells the properties of a consumer, which it does not keep alive. A member has it, and the core has the member."""

    group: str
    core: ClientCore
    options: GroupOptions
    client: ClientOptions
    started_ms: int
    watch: Watch | None = None
    """None: a pull consumer's."""
    direct: Direct | None = None
    consume_timeout: float = 0.0
    more: tuple[Callable[[], Mapping[str, str]], ...] = ()
    """What the application tells besides."""

    def __call__(self) -> dict[str, str]:
        job = None if self.direct is None else self.direct.newest
        facts = Facts(
            group=self.group,
            client_id=self.core.client_id,
            name_servers=self.core.name_servers.addresses,
            started_ms=self.started_ms,
            push=self.watch is not None,
            workers=0 if self.watch is None else self.watch.workers,
            batch=1 if job is None else job.batch or 1,
            consume_timeout=self.consume_timeout,
        )
        told = properties_of(facts, self.options, self.client)
        for more in self.more:
            told = {**more(), **told}
        return told


def properties_of(facts: Facts, options: GroupOptions, client: ClientOptions) -> dict[str, str]:
    """Return name → value."""
    told = _of_client(facts, client) | _of_group(facts, options)
    if facts.push:
        told |= _of_pulling(facts, options)
    return {name: _text(value) for name, value in told.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_client(facts: Facts, client: ClientOptions) -> dict[str, object]:
    addresses = ";".join(facts.name_servers)
    return {
        "namesrvAddr": addresses,
        "PROP_NAMESERVER_ADDR": f"{addresses};",
        "PROP_CLIENT_VERSION": VERSION_NAME,
        "PROP_CONSUMER_START_TIMESTAMP": facts.started_ms,
        "language": "PYTHON",
        "clientIP": facts.client_id.split("@")[0],
        "instanceName": client.instance_name,
        "unitName": client.unit_name or None,
        "unitMode": client.unit_mode,
        "namespace": client.namespace.name or None,
        "clientCallbackExecutorThreads": client.client_callback_executor_threads,
        "pollNameServerInterval": _ms(client.poll_name_server_interval),
        "heartbeatBrokerInterval": _ms(client.heartbeat_broker_interval),
        "useTLS": client.tls is not None,
        "vipChannelEnabled": False,
    }


def _of_group(facts: Facts, options: GroupOptions) -> dict[str, object]:
    strategy = getattr(options.strategy, "__name__", None) or type(options.strategy).__name__
    return {
        "consumerGroup": facts.group,
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if facts.push else "CONSUME_ACTIVELY",
        "PROP_CONSUMEORDERLY": options.orderly,
        "PROP_THREADPOOL_CORE_SIZE": facts.workers,
        "messageModel": options.model.value,
        "consumeFromWhere": options.consume_from.value,
        "consumeTimestamp": _local_time(options.start_ms) if options.consume_from is ConsumeFrom.TIMESTAMP else None,
        "allocateMessageQueueStrategy": strategy,
        "persistConsumerOffsetInterval": _ms(options.seconds.persist),
        "maxReconsumeTimes": -1 if options.max_reconsume_times is None else options.max_reconsume_times,
    }


def _of_pulling(facts: Facts, options: GroupOptions) -> dict[str, object]:
    return {
        "consumeThreadMin": facts.workers,
        "consumeThreadMax": facts.workers,
        "consumeMessageBatchMaxSize": facts.batch,
        "consumeTimeout": f"{facts.consume_timeout / 60:g}",
        "pullBatchSize": options.pull_count,
        "pullInterval": _ms(options.pull_interval),
        "pullThresholdForQueue": options.queue_messages_max,
        "pullThresholdSizeForQueue": options.queue_bytes_max // MIB,
        "pullThresholdForTopic": -1 if options.topic_messages_max is None else options.topic_messages_max,
        "pullThresholdSizeForTopic": -1 if options.topic_bytes_max is None else options.topic_bytes_max // MIB,
        "consumeConcurrentlyMaxSpan": options.span_max,
    }


def _local_time(ms: int) -> str:
    """Return a time as RocketMQ's option has it: of the machine's time zone."""
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).astimezone().strftime("%Y%m%d%H%M%S")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
