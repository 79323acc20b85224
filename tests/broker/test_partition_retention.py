"""deletePolicy and deleteWhen of a configuration of MetaQ 1.x, on a store."""

from __future__ import annotations

from msgspec import structs

from metaq.broker.metaq1_settings import Metaq1Settings
from metaq.broker.partition_retention import keep_as_configured
from metaq.clock import FakeClock
from metaq.model.partition_settings import DeletePolicy, PartitionRules, PartitionSettings
from metaq.options import Metaq1Options
from tests.store.support import START_MS, open_store, put


def rules(sections: bool = True, **policies: str) -> PartitionRules:
    default = structs.replace(PartitionSettings.of(Metaq1Options()), delete_when="0 0 * * * ?")
    topics = {
        name: structs.replace(default, delete_policy=DeletePolicy.parse(policy)) for name, policy in policies.items()
    }
    return PartitionRules(default, topics, sections=sections)


def fill(store, clock):
    for _ in range(12):
        for topic in ("short", "long"):
            put(store, topic, 0, bytes(8_000))
        clock.advance(3600)


def look(store, clock):
    clock.advance(3600)
    store.retain(clock.now_ms())


def test_topics_are_kept_as_their_sections_say_and_a_reload_changes_it(tmp_path):
    """Both the topic's own time and one that it gets later."""
    clock = FakeClock(START_MS)
    with open_store(tmp_path, clock) as store:
        settings = Metaq1Settings(Metaq1Options(), rules(short="delete,4"))
        keep_as_configured(store, settings)
        fill(store, clock)
        look(store, clock)
        assert store.floor("short") > store.floor("long") == 0
        settings.exchange(rules(short="delete,4", long="delete,30m"), b"")
        look(store, clock)
        assert store.min_log > 0


def test_without_sections_the_brokers_own_time_holds_unless_another_is_set(tmp_path):
    """`[metaq1] enable` alone deletes nothing earlier or later than before."""
    with open_store(tmp_path) as store:
        keep_as_configured(store, Metaq1Settings(Metaq1Options(), rules(sections=False)))
        fill(store, store.clock)
        look(store, store.clock)
        assert store.holding is None
        keep_as_configured(store, Metaq1Settings(Metaq1Options(delete_policy="delete,1", delete_when="0 0 * * * ?")))
        look(store, store.clock)
        assert store.min_log > 0
