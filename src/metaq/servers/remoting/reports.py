"""Figures and settings of a broker, and settings of a name server, as RocketMQ's tools read them: texts by name (26, 28, 319)."""

from __future__ import annotations

import os
import pathlib
from typing import Final

from metaq.model.facts import BrokerFacts, BrokerSettings, Rates
from metaq.options import GIB, KIB, MIB, NamesrvOptions
from metaq.servers.remoting.rocketmq_settings import DEFAULTS
from metaq.wire.command import VERSION
from metaq.wire.extensions import OUR_MARK, scrub_state

NO_POOL: Final = "0"
"""Figure of a thread pool. We have none, but mqadmin and the dashboard parse the figures of some."""
HOME: Final = os.environ.get("ROCKETMQ_HOME") or str(pathlib.Path(__file__).parents[2])
"""What RocketMQ's tools call the home of the installation."""
POOLS: Final = ("send", "pull", "query")


def runtime_table(facts: BrokerFacts, connections: int = 0) -> dict[str, str]:
    """Return the answer to GET_BROKER_RUNTIME_INFO (28). `brokerVersionDesc` names the RocketMQ that we answer as,
    METAQ our level. `connections`: that are open at the remoting server."""
    age = (facts.now_ms - facts.started_ms) // 1000
    asked = Rates(*map(sum, zip(facts.get_hits, facts.get_misses, strict=True)))
    table = {
        "brokerVersionDesc": "V4_9_8",
        "brokerVersion": str(VERSION),
        "bootTimestamp": str(facts.started_ms),
        "startAcceptSendRequestTimeStamp": "0",
        "runtime": f"[ {age // 86400} days, {age // 3600 % 24} hours, {age // 60 % 60} minutes, {age % 60} seconds ]",
        "putTps": _three(facts.puts),
        "getTransferedTps": _three(facts.gets),
        "getFoundTps": _three(facts.get_hits),
        "getMissTps": _three(facts.get_misses),
        "getTotalTps": _three(asked),
        # clusterList -m parses the six totals as integers. As RocketMQ's, they count from the start of the broker.
        "msgPutTotalYesterdayMorning": str(facts.put_mornings.yesterday),
        "msgPutTotalTodayMorning": str(facts.put_mornings.today),
        "msgPutTotalTodayNow": str(facts.put_messages),
        "msgGetTotalYesterdayMorning": str(facts.got_mornings.yesterday),
        "msgGetTotalTodayMorning": str(facts.got_mornings.today),
        "msgGetTotalTodayNow": str(facts.got_messages),
        "putMessageTimesTotal": str(facts.put_messages),
        "putMessageFailedTimes": str(facts.put_failures),
        "putMessageSizeTotal": str(facts.put_bytes),
        "putMessageAverageSize": f"{facts.put_bytes / max(1, facts.put_messages):.1f}",
        "putMessageEntireTimeMax": f"{facts.put_latencies.longest * 1000:.0f}",
        "putLatency99": f"{facts.put_latencies.p99 * 1000:.2f}",
        "putLatency999": f"{facts.put_latencies.p999 * 1000:.2f}",
        "getMessageEntireTimeMax": "0",
        "putMessageDistributeTime": "",
        "pageCacheLockTimeMills": "0",
        # Units and index entries are written with the record, in one call: nothing is ever behind.
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "commitLogMinOffset": str(facts.log_min),
        "commitLogMaxOffset": str(facts.log_end),
        "earliestMessageTimeStamp": str(facts.earliest_ms),
        "remainHowManyDataToFlush": _size(facts.log_end - facts.log_flushed),
        # RocketMQ's own value where its transient store pool is off; 0 would look like a pool that has run dry.
        "remainTransientStoreBufferNumbs": str(2**31 - 1),
        "EndTransactionQueueSize": NO_POOL,
        "EndTransactionThreadPoolQueueCapacity": NO_POOL,
        "commitLogDiskRatio": f"{facts.disk_ratio:.4f}",
        f"commitLogDiskRatio_{facts.log_folder}": f"{facts.disk_ratio:.4f}",
        "commitLogDirCapacity": f"Total : {_size(facts.disk_bytes[0])}, Free : {_size(facts.disk_bytes[1])}.",
        "consumeQueueDiskRatio": f"{facts.disk_ratio:.4f}",
        "heldPulls": str(facts.held_pulls),
        "unsavedFiles": "; ".join(f"{name}: {why}" for name, why in facts.unsaved.items()),
        "metaqDiskStep": facts.disk_step,
        "metaqTrouble": facts.trouble,
        "metaqConnections": str(connections),
        "metaqEpoch": str(facts.replica.epoch),
        "metaqSlaves": "; ".join(f"{one.address} {one.copied} {one.behind_ms}" for one in facts.replica.slaves),
        "metaqMaster": f"{facts.replica.master} {facts.replica.master_end}" if facts.replica.master else "",
        "metaqScrub": "" if facts.replica.leads else scrub_state(facts.scrub),
        "metaqStagedParts": str(facts.staged_parts),
        "metaqStagedBytes": str(facts.staged_bytes),
        "metaqOpenHalves": str(facts.open_halves),
        "metaqDraining": str(facts.draining).lower(),
        "metaqHeldForTopic": facts.held_for,
        "metaqHeldForTopicBytes": str(facts.held_bytes),
        **OUR_MARK,
    }
    for pool in POOLS:
        table |= {
            f"{pool}ThreadPoolQueueSize": NO_POOL,
            f"{pool}ThreadPoolQueueCapacity": NO_POOL,
            f"{pool}ThreadPoolQueueHeadWaitTimeMills": NO_POOL,
        }
    for level, progress in facts.delay_levels.items():
        table[f"scheduleMessageOffset_{level}"] = f"{progress.delivered},{progress.end}"
    return table


def found_out(settings: BrokerSettings) -> dict[str, str]:
    """Return values that a broker has found out itself, by RocketMQ's names."""
    return {
        "brokerName": settings.name,
        "brokerIP1": settings.host,
        "brokerIP2": settings.ha_host,
        "listenPort": str(settings.port),
        "haListenPort": str(settings.ha_port),
        "storePathRootDir": settings.folder,
        "storePathCommitLog": settings.log_folder,
    }


def settings_text(settings: BrokerSettings) -> str:
    """Return the answer to GET_BROKER_CONFIG (26): `key=value` lines of all our options, and of RocketMQ's others by
    default."""
    own = {
        "checkCRCOnRecover": str(settings.store.check_crc_on_recover).lower(),
        "clientCallbackExecutorThreads": str(
            os.cpu_count() or 1
        ),  # mqadmin's exportMetrics takes it for the number of cores
        "rocketmqHome": HOME,
    }
    # The later entry of a name wins: what we have ourselves is told as it is.
    table = DEFAULTS | settings.options.properties() | settings.store.properties() | own | found_out(settings)
    return "".join(f"{key}={value}\n" for key, value in sorted(table.items()))


NAMESRV_KEYS: Final = (
    "serverAsyncSemaphoreValue",
    "serverCallbackExecutorThreads",
    "serverOnewaySemaphoreValue",
    "serverPooledByteBufAllocatorEnable",
    "serverSelectorThreads",
    "serverWorkerThreads",
    "useEpollNativeSelector",
    "writeBufferHighWaterMark",
    "writeBufferLowWaterMark",
)
"""Keys of a RocketMQ name server's network that have no counterpart here."""


def namesrv_settings_text(options: NamesrvOptions) -> str:
    """Return the answer to GET_NAMESRV_CONFIG (319), made as that to 26."""
    rocketmq = {
        "clusterTest": "false",
        "productEnvName": "center",
        "configStorePath": "",
        "kvConfigPath": str(pathlib.Path("~/namesrv/kvConfig.json").expanduser()),  # where none is set, as in RocketMQ
        "rocketmqHome": HOME,
    }
    table = {key: DEFAULTS[key] for key in NAMESRV_KEYS} | rocketmq | options.properties()
    return "".join(f"{key}={value}\n" for key, value in sorted(table.items()))


def _three(rates: Rates) -> str:
    # The averages are of 10 s, 1 min and 10 min. mqadmin's clusterList splits the text at single blanks.
    return " ".join(map(_java_text, rates))


def _java_text(number: float) -> str:
    """The text of a number that is not below 0, as Java's Double.toString makes it."""
    text = repr(float(number))
    if number == 0 or 1e-3 <= number < 1e7:
        return text
    # Java has an exponent outside of this range, Python only below 0.0001 and from 1e16 on.
    mantissa, _, exponent = text.partition("e")
    whole, _, rest = mantissa.partition(".")
    digits = (whole + rest).strip("0")
    if not exponent:
        exponent = str(len(whole) - 1 if number > 1 else -4)
    return f"{digits[0]}.{digits[1:] or '0'}E{int(exponent)}"


def _size(count: int) -> str:
    for unit, name in ((1024 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
