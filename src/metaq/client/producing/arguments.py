"""What users pass to a producer, checked, with errors for users."""

from __future__ import annotations

from metaq.client.conversation.sending.sending import Template
from metaq.client.identity.names import checked
from metaq.client.identity.options import check_flag, check_whole, checked_seconds
from metaq.client.producing.accumulator import SendLimits
from metaq.client.shared.sending import SendRules
from metaq.errors import ConfigError
from metaq.model.topics.topic import QUEUES_MAX, check_topic


def waits_when_full(when_full: str) -> bool:
    """Raises ConfigError."""
    if when_full not in {"block", "raise"}:
        raise ConfigError(f"when_full={when_full!r}: need 'block' or 'raise'")
    return when_full == "block"


def check_limits(limits: SendLimits) -> None:
    """Raises ConfigError, TypeError."""
    for name, seconds in (("timeout", limits.timeout), ("linger", limits.linger)):
        checked_seconds(name, seconds, least=0.0)
    sizes = {
        "batch_bytes": limits.batch_bytes,
        "max_pending_bytes": limits.max_pending_bytes,
        "compress_over": limits.compress_over,
        "max_message_bytes": limits.message_bytes_max,
    }
    for name, size in sizes.items():
        check_whole(name, size)
    if min(limits.timeout, limits.batch_bytes, limits.max_pending_bytes, limits.message_bytes_max) <= 0:
        raise ConfigError("timeout, batch_bytes, max_pending_bytes and max_message_bytes must be positive")


def send_rules(
    *, retries: int, another_when_not_ok: bool, avoid_slow: bool, create_topic_key: str, queues: int, unit_mode: bool
) -> SendRules:
    """Raises ConfigError, TypeError. Arguments as those of a producer, some by shorter names."""
    check_whole("retries", retries)
    check_whole("default_topic_queue_nums", queues)
    check_flag("retry_another_broker_when_not_store_ok", another_when_not_ok)
    check_flag("send_latency_fault_enable", avoid_slow)
    if retries < 0:
        raise ConfigError(f"retries={retries}: must not be negative")
    if not 1 <= queues <= QUEUES_MAX:
        raise ConfigError(f"default_topic_queue_nums={queues}: need 1..{QUEUES_MAX}")
    template = Template(checked(check_topic, create_topic_key), queues, unit_mode)
    return SendRules(retries=retries, another_when_not_ok=another_when_not_ok, avoid_slow=avoid_slow, template=template)
