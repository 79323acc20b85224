"""Checks that the topics of a redrive exist. Loads no Spark."""

from __future__ import annotations

from collections.abc import Mapping

from metaq.errors import ConfigError, NoRoute
from metaq.pipelines.options import access_of
from metaq.pipelines.redrive.options import RedriveOptions
from metaq.spark.cluster.client import ClusterClient


def check_source(options: RedriveOptions) -> None:
    """Check the topic to read. Raises NoRoute: it does not exist; with a group, it has no dead letters."""
    client = ClusterClient(options.servers, options.retry_seconds, access=access_of(options))
    try:
        client.queues([options.source], 0.0)
    except NoRoute as fault:
        if not options.group:
            raise
        raise NoRoute(
            f"the group {options.group} has no dead letters: there is no topic {options.source} at name servers {options.servers}"
        ) from fault
    finally:
        client.close()


def check_targets(client: ClusterClient, targets: Mapping[str, int]) -> None:
    """Check the topics to send to. Args: targets: topic → number of messages.

    Raises ConfigError: one of them does not exist, or is not writable.
    """
    for topic, messages in sorted(targets.items()):
        try:
            # Asked first: `writable` guesses queues for a topic that does not exist.
            client.queues([topic], 0.0)
            client.writable(topic, 0.0)
        except NoRoute:
            raise ConfigError(
                f"the topic {topic}, which {messages:,} of the chosen messages go to, does not exist or cannot be sent to; nothing "
                "was sent. Make it (metaq topic create), name another by to, or leave them out by where"
            ) from None
