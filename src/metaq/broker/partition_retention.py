"""How long topics are kept where a configuration of MetaQ 1.x says so."""

from __future__ import annotations

from metaq.broker.metaq1_settings import Metaq1Settings
from metaq.model.cron import Cron, parse_cron
from metaq.model.retention import Retentions, TopicRetention
from metaq.options import Metaq1Options
from metaq.store.message_store import MessageStore


class PartitionRetentions:
    """The rules in force, looked up at each question: a reload exchanges them."""

    def __init__(self, settings: Metaq1Settings) -> None:
        self._settings = settings
        self._crons: dict[str, Cron] = {}

    def of(self, topic: str) -> TopicRetention:
        """See `Retentions`."""
        settings = self._settings.rules.settings(topic)
        text = settings.delete_when
        cron = self._crons.get(text)
        if cron is None:  # every text was read once when the configuration was
            cron = self._crons[text] = parse_cron(text)
        return TopicRetention(settings.delete_policy, cron)


def keep_as_configured(store: MessageStore, settings: Metaq1Settings) -> None:
    """Have the store obey deletePolicy and deleteWhen, now and when they change.

    Without a server.ini, and with its default, `fileReservedTime` goes on to hold for all topics: `enable` alone must not
    change how long messages are kept. Raises ConfigError: deleteWhen of [system] cannot be read.
    """
    parse_cron(settings.options.delete_when)
    retentions = PartitionRetentions(settings)

    def choose() -> None:
        store.retain_by(_chosen(settings, retentions))

    settings.watch(lambda _names: choose())
    choose()


def _chosen(settings: Metaq1Settings, retentions: Retentions) -> Retentions | None:
    is_default = settings.options.delete_policy == Metaq1Options().delete_policy
    return None if is_default and not settings.rules.sections else retentions
