"""Figures and settings in the words of RocketMQ's tools."""

from __future__ import annotations

from msgspec import structs

from metaq.broker.stats import Stats
from metaq.clock import FakeClock
from metaq.model.facts import BrokerFacts, BrokerSettings, LevelProgress, Mornings, PutLatencies, Rates
from metaq.model.leadership import Epoch, ReplicaState, SlaveState
from metaq.model.scrub import ScrubState
from metaq.options import BrokerOptions, NamesrvOptions, StoreOptions
from metaq.servers.remoting.reports import namesrv_settings_text, runtime_table, settings_text
from metaq.servers.remoting.rocketmq_settings import DEFAULTS
from tests.servers.support import Client, open_server

NOTHING = Rates(0, 0, 0)
FACTS = BrokerFacts(
    now_ms=1_000_000 + 90_061_500, started_ms=1_000_000, puts=Rates(1.5, 2, 3), gets=NOTHING, get_hits=Rates(1, 2, 3),
    get_misses=Rates(10, 20, 30), put_messages=4, put_bytes=1000, put_failures=2, got_messages=7,
    put_mornings=Mornings(1, 3), got_mornings=Mornings(2, 5), log_min=100,
    log_end=5000, log_flushed=952, earliest_ms=9, disk_step="ok", disk_ratio=0.25, disk_bytes=(3 << 40, 5 << 29),
    log_folder="/d/commitlog", put_latencies=PutLatencies(0.001_234, 0.0256, 0.4), held_pulls=3, staged_parts=11, staged_bytes=2200, held_for="long",
    held_bytes=77, open_halves=5, draining=True,
    delay_levels={3: LevelProgress(5, 8)}, unsaved={"topics.json": "broken", "delayOffset.json": "full"}, trouble="lost",
    scrub=ScrubState(1, 2, 3),
    replica=ReplicaState(
        "broker-a", 0, "SYNC_MASTER", True, 100, 5000, 10912, (Epoch(7, 0, "x", 0),), "10.0.0.4:10911", 5100,
        slaves=(SlaveState("10.0.0.2:40000", 4900, 250), SlaveState("10.0.0.3:40000", 5000, 0)),
    ),
)  # fmt: skip


def test_figures_stand_under_rocketmqs_names():
    """28: rates, ages and sizes as its tools parse them, and what is only ours."""
    table = runtime_table(FACTS, 12)
    assert table["metaqConnections"] == "12"
    assert {
        "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]", "putTps": "1.5 2.0 3.0",
        "getTotalTps": "11.0 22.0 33.0",
        "msgPutTotalYesterdayMorning": "1", "msgPutTotalTodayMorning": "3", "msgPutTotalTodayNow": "4",
        "msgGetTotalYesterdayMorning": "2", "msgGetTotalTodayMorning": "5", "msgGetTotalTodayNow": "7",
        "putMessageAverageSize": "250.0",
        "remainHowManyDataToFlush": "4.0 KiB", "commitLogDiskRatio": "0.2500", "scheduleMessageOffset_3": "5,8",
        "unsavedFiles": "topics.json: broken; delayOffset.json: full", "metaqDiskStep": "ok", "metaqTrouble": "lost", "heldPulls": "3",
        "metaqSlaves": "10.0.0.2:40000 4900 250; 10.0.0.3:40000 5000 0", "metaqEpoch": "7",
        "metaqMaster": "10.0.0.4:10911 5100",
        "metaqStagedParts": "11", "metaqStagedBytes": "2200", "metaqOpenHalves": "5", "metaqDraining": "true", "commitLogDiskRatio_/d/commitlog": "0.2500",
        "commitLogDirCapacity": "Total : 3.0 TiB, Free : 2.5 GiB.", "putLatency99": "1.23", "putLatency999": "25.60",
        "putMessageEntireTimeMax": "400",
    }.items() <= table.items()  # fmt: skip


def test_rates_are_written_as_java_writes_them():
    """Double.toString: with an exponent below 0.001 and from ten million on."""
    rates = Rates(0.09999000099990002, 0.0004, 12345678.9)
    assert runtime_table(structs.replace(FACTS, puts=rates))["putTps"] == "0.09999000099990002 4.0E-4 1.23456789E7"
    rates = Rates(1e-5, 9999999.5, 2e16)
    assert runtime_table(structs.replace(FACTS, puts=rates))["putTps"] == "1.0E-5 9999999.5 2.0E16"
    rates = Rates(0.001, 10_000_000, 0)
    assert runtime_table(structs.replace(FACTS, puts=rates))["putTps"] == "0.001 1.0E7 0.0"


def test_settings_are_rocketmqs_defaults_below_ours():
    """26: one sorted line each; where we have such a setting, its value is told instead."""
    options = BrokerOptions(broker_name="ignored", flush_consumer_offset_interval=777)
    text = settings_text(
        BrokerSettings(options, StoreOptions(), "broker-a", "10.0.0.1", 10911, "10.0.0.9", 10913, "/data", "/log")
    )
    lines = text.splitlines()
    assert lines == sorted(lines)
    table = dict(line.split("=", 1) for line in lines)
    assert DEFAULTS.keys() <= table.keys()
    assert (table["brokerName"], table["brokerIP2"], table["haListenPort"]) == ("broker-a", "10.0.0.9", "10913")
    assert (table["brokerIP1"], table["brokerRole"]) == ("10.0.0.1", "ASYNC_MASTER")
    assert (table["flushConsumerOffsetInterval"], table["storePathRootDir"]) == ("777", "/data")
    assert table["storePathCommitLog"] == "/log"
    assert table["rocketmqHome"].endswith("metaq")


def test_a_name_servers_settings_have_every_key_of_rocketmqs():
    """319, as a RocketMQ 4.9.7 told them."""
    told = namesrv_settings_text(NamesrvOptions(listen_port=7))
    table = dict(line.split("=", 1) for line in told.splitlines())
    assert table["listenPort"] == "7"
    assert table.keys() >= {
        "clusterTest", "configStorePath", "kvConfigPath", "listenPort", "orderMessageEnable", "productEnvName",
        "rocketmqHome", "serverAsyncSemaphoreValue", "serverCallbackExecutorThreads", "serverChannelMaxIdleTimeSeconds",
        "serverOnewaySemaphoreValue", "serverPooledByteBufAllocatorEnable", "serverSelectorThreads",
        "serverSocketBacklog", "serverSocketRcvBufSize", "serverSocketSndBufSize", "serverWorkerThreads",
        "useEpollNativeSelector", "writeBufferHighWaterMark", "writeBufferLowWaterMark",
    }  # fmt: skip


def test_put_latencies_are_of_real_sends(tmp_path):
    """One append of each tick is timed; with SYNC_FLUSH, how long answers waited for the disk."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        assert broker.stats.put_latencies() == PutLatencies(0, 0, 0)
        for _ in range(3):
            broker.tick()
            client.send("orders")
            client.send("orders")
        assert len(broker.stats._put_seconds) == 3


def test_percentiles_of_latencies():
    stats = Stats(FakeClock())
    for number in range(1000):
        stats.took(number / 1000)
    assert stats.put_latencies() == PutLatencies(0.989, 0.998, 0.999)
