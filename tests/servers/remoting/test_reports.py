"""Figures and settings in the words of RocketMQ's tools."""

from __future__ import annotations

from metaq.model.facts import BrokerFacts, BrokerSettings, LevelProgress, Rates
from metaq.options import BrokerOptions, StoreOptions
from metaq.servers.remoting.reports import runtime_table, settings_text
from metaq.servers.remoting.rocketmq_settings import DEFAULTS

NOTHING = Rates(0, 0, 0)
FACTS = BrokerFacts(
    now_ms=1_000_000 + 90_061_500, started_ms=1_000_000, puts=Rates(1.5, 2, 3), gets=NOTHING, get_hits=Rates(1, 2, 3),
    get_misses=Rates(10, 20, 30), put_messages=4, put_bytes=1000, put_failures=2, got_messages=7, log_min=100,
    log_end=5000, log_flushed=952, earliest_ms=9, disk_ratio=0.25, held_pulls=3, staged_parts=11, staged_bytes=2200, held_for="long",
    held_bytes=77,
    delay_levels={3: LevelProgress(5, 8)}, unsaved={"topics.json": "broken", "delayOffset.json": "full"}, trouble="lost",
)  # fmt: skip


def test_figures_stand_under_rocketmqs_names():
    """28: rates, ages and sizes as its tools parse them, and what is only ours."""
    table = runtime_table(FACTS)
    assert {
        "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]", "putTps": "1.500000 2.000000 3.000000",
        "getTotalTps": "11.000000 22.000000 33.000000", "putMessageAverageSize": "250.0",
        "remainHowManyDataToFlush": "4.0 KiB", "commitLogDiskRatio": "0.2500", "scheduleMessageOffset_3": "5,8",
        "unsavedFiles": "topics.json: broken; delayOffset.json: full", "metaqTrouble": "lost", "heldPulls": "3",
        "metaqStagedParts": "11", "metaqStagedBytes": "2200",
    }.items() <= table.items()  # fmt: skip


def test_settings_are_rocketmqs_defaults_below_ours():
    """26: one sorted line each; where we have such a setting, its value is told instead."""
    options = BrokerOptions(broker_name="ignored", flush_consumer_offset_interval=777)
    text = settings_text(BrokerSettings(options, StoreOptions(), "broker-a", "10.0.0.1", 10911, "/data"))
    lines = text.splitlines()
    assert lines == sorted(lines)
    table = dict(line.split("=", 1) for line in lines)
    assert DEFAULTS.keys() <= table.keys()
    assert (table["brokerName"], table["brokerIP2"], table["haListenPort"]) == ("broker-a", "10.0.0.1", "10912")
    assert (table["flushConsumerOffsetInterval"], table["storePathRootDir"]) == ("777", "/data")
