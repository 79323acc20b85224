"""Every option of a server.ini does what it says: one function for each, found by its name; one without a function fails."""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import socket
import sqlite3
import threading
from collections.abc import Callable

import httpx
import pytest

from metaq.app.broker import start_broker
from metaq.app.configuration import load
from metaq.app.metaq1_slave.slave import TextSlave
from metaq.app.partition_sections import check_filters
from metaq.app.registration import zookeeper_settings
from metaq.app.reload import Reload
from metaq.clock import FakeClock
from metaq.errors import ConfigError, StoreCorrupt
from metaq.net.address import split_address
from metaq.options import KIB, Metaq1Options, StoreOptions, camel
from metaq.registry.offset_table import TABLE, OffsetTable, PartitionOffset
from metaq.saved import Saving
from metaq.testing import FaultyDisk, free_port
from tests.metaq1_slave_options import config_after, slave_settings
from tests.servers.metaq1.support import TextClient, open_metaq1_server
from tests.servers.support import SlowDisk
from tests.support import PATIENCE, copy_folder, eventually

NAMES = sorted(item.name for item in dataclasses.fields(Metaq1Options))
HOT = sorted(Metaq1Options.hot_names())
HOT_KEYS = {camel(name) for name in HOT}

EFFECTS: dict[str, Callable[[pathlib.Path], None]] = {}

SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}


def effect_of(option: str) -> Callable[[Callable[[pathlib.Path], None]], Callable[[pathlib.Path], None]]:
    def keep(act: Callable[[pathlib.Path], None]) -> Callable[[pathlib.Path], None]:
        assert option not in EFFECTS
        EFFECTS[option] = act
        return act

    return keep


@pytest.mark.parametrize("option", NAMES)
def test_option_of_a_server_ini_takes_effect(option, tmp_path):
    """Written into the file, and then seen from outside."""
    assert option in EFFECTS, f"{option}: show that it does something"
    EFFECTS[option](tmp_path)


@pytest.mark.parametrize("option", HOT)
def test_hot_option_takes_effect_when_the_file_is_read_again(option, tmp_path, monkeypatch):
    """The same, and the line is written into the file of a broker that runs."""
    monkeypatch.setattr(Served, "reloads", True)
    EFFECTS[option](tmp_path)


def test_no_effect_is_shown_of_an_option_that_there_is_not():
    """A function whose option lost its name is found."""
    assert set(EFFECTS) == set(NAMES)


def configured(root, *lines, topics="[topic=test]\n", name="server.ini", zookeeper="zk.zkEnable=false"):
    """What a file with these lines in [system] makes of a broker; its store is small and its number 7."""
    file = root / name
    keys = {line.partition("=")[0] for line in lines}
    usual = ("brokerId=7", f"dataPath={root}/data", "serverPort=0", "dashboardHttpPort=0")
    more = [line for line in usual if line.partition("=")[0] not in keys]
    file.write_text("\n".join(["[system]", *more, *lines, "[zookeeper]", zookeeper, topics]))
    return load(
        str(file),
        serving=("broker", "store", "metaq1"),
        flags={
            "broker": {"listen_port": 0, "bind_address": "127.0.0.1"},
            "store": {key: SMALL[key] for key in SMALL if key[:3] == "max"},
        },
        defaults={"store": {"mapped_file_size_commit_log": 1 << 20}},
        environment={},
    )


class Served:
    """A broker of such a file at its MetaQ 1.x server, with a clock and a disk that the test owns, and one client."""

    reloads = False
    """Whether what is hot is written into the file later, and the file read again."""

    def __init__(self, root, *lines, topics="[topic=test]\n", disk=None, clock=None):
        self.clock, self.disk = clock or FakeClock(), disk or FaultyDisk()
        self.disk.used = 10.0
        self._all = root, lines, topics
        cold = [line for line in lines if not self.reloads or line.partition("=")[0] not in HOT_KEYS]
        self.configuration = configured(root, *cold, topics=topics)
        own = {
            name: value
            for name, value in self.configuration.store.values().items()
            if value != getattr(StoreOptions(), name)
        }
        own.pop("store_path_root_dir")
        self.metaq1 = self.configuration.metaq1_settings
        self._open = open_metaq1_server(root / "data", self.clock, self.metaq1, store=own, disk=self.disk)

    def __enter__(self):
        self.broker, self.protocol_server = self._open.__enter__()
        self.store, self.client = self.broker.store, TextClient(self.protocol_server)
        self.settings = {"broker": self.broker.settings, "store": self.broker.settings, "metaq1": self.metaq1.settings}
        self.reloading = self.broker.reloading
        if self.reloads:
            root, lines, topics = self._all
            reload = Reload("server.ini", lambda: self.configuration, self.configuration)
            outcome = reload.apply(configured(root, *lines, topics=topics), self)
            assert not outcome.waiting
        return self

    def __exit__(self, *error):
        self._open.__exit__(*error)

    def ask(self, line, body=b"", client=None, patient=True):
        """Code and text of the answer; without patience None if there is none yet."""
        client = client or self.client
        client.feed(line.encode() + b"\r\n" + body)

        def answered():
            self.broker.deliver()
            client.go_on()
            return client.answers()

        answers = eventually(answered) if patient else answered()
        return (getattr(answers[0], "code", 0), bytes(answers[0].body).decode("latin-1")) if answers else None

    def put(self, body=b"hello", topic="test", partition=0, key=""):
        return self.ask(f"put {topic} {partition} {len(body)} 0 {f'-1 {key} ' if key else ''}1", body)

    def tick(self, seconds=0.0):
        self.clock.advance(seconds)
        self.broker.tick()
        self.protocol_server.tick()


def started(configuration, use=lambda _running: None):
    """Start the whole broker, and let `use` do something with it in the event loop."""

    async def run():
        running = await start_broker(configuration.broker, configuration.store, metaq1=configuration.metaq1_settings)
        try:
            done = use(running)
            if asyncio.iscoroutine(done):
                done = await done
            return done
        finally:
            await running.close()

    return asyncio.run(run())


async def said(running, line):
    """The first line of the answer to one at the MetaQ 1.x server's port."""
    host, port = split_address(running.addresses["metaq1"])
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), PATIENCE)
    writer.write(line.encode() + b"\r\n")
    head = await asyncio.wait_for(reader.readline(), PATIENCE)
    body = await asyncio.wait_for(reader.readexactly(int(head.split()[2])), PATIENCE)
    writer.close()
    return body.decode()


# ---- who and where --------------------------------------------------------------------------------------------------


@effect_of("enable")
def _(root):
    """Only in a metaq.toml: a server.ini says it by itself."""
    for text, there in (("enable = true\n", True), ("", False)):
        file = root / "metaq.toml"
        file.write_text(f"[metaq1]\nserverPort = 0\n{text}[store]\nstorePathRootDir = '{root}/{there}'\n")
        got = load(
            str(file),
            serving=("broker", "store", "metaq1"),
            flags={"broker": {"listen_port": 0}, "store": SMALL},
            environment={},
        )
        assert bool(started(got, lambda running: running.addresses.get("metaq1"))) is there


@effect_of("broker_id")
def _(root):
    with Served(root, "brokerId=9") as served:
        _, text = served.put()
        assert int(text.split()[0]) >> 12 & 1023 == 9
        served.broker.metaq1.partitions.close_partitions("test", 0, 0)
        code, text = served.put()
        assert code == 403 and text.endswith("failed.Detail:partition[9-0] has been closed")
    assert configured(root, "brokerId=9").broker.broker_name == "broker-9"


@effect_of("host_name")
def _(root):
    got = configured(root, "hostName=10.9.8.7")

    async def look(running):
        return running.address, await said(running, "put none 0 0 0 1")

    address, refusal = started(got, look)
    assert address.startswith("10.9.8.7:")
    assert "[broker 'meta://10.9.8.7:" in refusal


@effect_of("server_port")
def _(root):
    port = free_port()
    got = configured(root, f"serverPort={port}")

    def taken(running):
        assert running.addresses["metaq1"] == f"127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), PATIENCE):
            pass

    started(got, taken)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match=str(port)):
        started(got)


@effect_of("data_path")
def _(root):
    started(configured(root, f"dataPath={root}/elsewhere"))
    assert (root / "elsewhere" / "commitlog").is_dir()
    assert not (root / "data").exists()


@effect_of("data_log_path")
def _(root):
    started(configured(root, f"dataLogPath={root}/fast"))
    assert (root / "fast" / "commitlog").is_dir()
    assert (root / "data" / "config").is_dir()
    assert not (root / "data" / "commitlog").exists()


@effect_of("max_segment_size")
def _(root):
    with Served(root, f"maxSegmentSize={64 * KIB}+{64 * KIB}") as served:
        served.put()
        (file,) = (root / "data" / "commitlog").iterdir()
        assert file.stat().st_size == 128 * KIB
    with pytest.raises(StoreCorrupt, match="131072"):  # a folder has one size
        started(configured(root, "maxSegmentSize=1024*1024"))


# ---- partitions -----------------------------------------------------------------------------------------------------


@effect_of("num_partitions")
def _(root):
    with Served(root, "numPartitions=3", topics="[topic=test]\n[topic=one]\nnumPartitions=1\n[topic=w*]\n") as served:
        assert [served.put(partition=number)[0] for number in range(4)] == [200, 200, 200, 500]
        assert [served.put(topic="one", partition=number)[0] for number in range(2)] == [200, 500]
        assert [served.put(topic="wild", partition=number)[0] for number in range(2, 4)] == [200, 500]


@effect_of("max_transfer_size")
def _(root):
    with Served(root, "maxTransferSize=2*1024") as served:
        code, text = served.put(b"x" * 2029)
        assert code == 500
        assert "the limit is 2048 (maxTransferSize)" in text
        for _ in range(2):
            assert served.put(b"x" * 1480)[0] == 200
        code, text = served.ask("get test g 0 0 1000000 1")
        assert (code, len(text)) == (0, 2048)


@effect_of("accept_publish")
def _(root):
    topics = "[topic=test]\n[topic=open]\nacceptPublish=true\n"
    with Served(root, "acceptPublish=false", topics=topics) as served:
        assert served.put()[0] == 403
        assert served.put(topic="open")[0] == 200
        published = served.broker.metaq1.partitions.published()
        assert (published["test"].publish, published["test"].subscribe) == (False, True)
        assert published["open"].publish


@effect_of("accept_subscribe")
def _(root):
    topics = "[topic=test]\n[topic=open]\nacceptSubscribe=true\n"
    with Served(root, "acceptSubscribe=false", topics=topics) as served:
        assert served.put()[0] == served.put(topic="open")[0] == 200
        code, text = served.ask("get test g 0 0 1000 1")
        assert code == 403
        assert "acceptSubscribe is false" in text
        assert served.ask("get open g 0 0 1000 1")[0] == 0
        published = served.broker.metaq1.partitions.published()
        assert (published["test"].publish, published["test"].subscribe) == (True, False)
        assert published["open"].subscribe


@effect_of("stat")
def _(root):
    topics = "[topic=test]\n[topic=off]\nstat=false\n"
    with Served(root, "stat=true", topics=topics) as served:
        served.put()
        served.put(topic="off")
        assert "topic_realtime_put Count=1" in served.ask("stats test 1")[1]
        assert "topic_realtime_put Count=1" not in served.ask("stats off 1")[1]


@effect_of("update_consumer_offsets")
def _(root):
    for number, (value, answer) in enumerate(
        (("true", (301, "25")), ("false", (404, "Could not find message at position 99")))
    ):
        folder = root / str(number)
        folder.mkdir()
        with Served(folder, f"updateConsumerOffsets={value}") as served:
            served.put()
            assert served.ask("get test g 0 99 1000 1") == answer
            assert served.ask(f"get test g 0 {2**63 - 1} 1000 1") == (301, "25")


def is_taken(line, why):
    """An option of threads or files that this broker has not is kept, and the log says why nothing comes of it."""
    key, value = line.split("=")

    def look(root):
        got = configured(root, line)
        assert str(got.metaq1.properties()[key]) == value
        assert sum(f"{key} {why}" in said for said in got.warnings) == 1
        assert not any(key in said for said in configured(root).warnings)

    return look


effect_of("get_process_thread_count")(is_taken("getProcessThreadCount=8", "is passed over: this broker answers in its"))
effect_of("put_process_thread_count")(is_taken("putProcessThreadCount=8", "is passed over: this broker answers in its"))
effect_of("max_checkpoints")(is_taken("maxCheckpoints=9", "is passed over: checkpoints of transactions are records"))


@effect_of("dashboard_http_port")
def _(root):
    """The pages of 1.x are there, on this machine alone unless told otherwise; where their packages are missing, the log says so."""
    port = free_port()

    async def look(_running):
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            return (await client.get(f"http://127.0.0.1:{port}/offset/0?topic=test&partition=0&offset=0")).status_code

    assert started(configured(root, f"dashboardHttpPort={port}"), look) == 404
    assert configured(root, "dashboardHttpPort=8121").broker.http_port == 8121
    said = [line for line in configured(root, "dashboardHttpPort=8121").warnings if "dashboardHttpPort" in line]
    assert len(said) == 1 and "httpBindAddress opens it" in said[0]


@effect_of("app_class_path")
def _(root):
    """Filters are loaded from there; where nothing is said, from `provided` beside the folder of the file."""
    conf, provided = root / "conf", root / "provided"
    conf.mkdir()
    topics = "[topic=test]\ngroup.g=kept_here:Paid\n"

    def check(*lines):
        got = configured(conf, *lines, topics=topics)
        check_filters(got.sections, got.metaq1.app_class_path or "")

    with pytest.raises(ConfigError, match=r"line 9: the filter kept_here:Paid cannot be loaded"):
        check()
    provided.mkdir()
    (provided / "kept_here.py").write_text("class Paid:\n    def accept(self, group, message):\n        return True\n")
    check(f"appClassPath={provided}")
    check()


@effect_of("load_message_stores_in_parallel")
def _(root):
    """What that does: tests/store/test_survey.py."""
    assert not configured(root).store.load_queues_in_parallel
    assert configured(root, "loadMessageStoresInParallel=true").store.load_queues_in_parallel


# ---- offsets in a database ------------------------------------------------------------------------------------------


def told_lag(root, *lines, table=TABLE, folder="store"):
    """Messages that the group `g` is behind, by a table in which it has consumed the first of two."""
    database = root / "offsets.db"
    sqlite3.connect(database).close()
    kept = OffsetTable.of_url(f"sqlite:///{database}", name=table)
    kept.create()
    kept.save([PartitionOffset("g", "test", "7-0", 25), PartitionOffset("g", "test", "8-0", 50)])
    kept.close()

    async def ask(running):
        for end in (0, 25):
            assert (await said(running, "put test 0 5 0 1\r\nhello")).endswith(f" 0 {end}")
        reports = running._broker.reports
        while True:
            try:
                found = dict(reports.consume_stats("g", None))
                return [
                    stats.broker_offset - stats.consumer_offset for stats in found.values()
                ], reports.metaq1_groups()
            except Saving as saving:
                done = asyncio.Event()
                for pending in saving.pending:
                    pending.when_done(lambda _error, done=done: done.set())
                await asyncio.wait_for(done.wait(), PATIENCE)

    more = [line.replace("DATABASE", f"sqlite:///{database}") for line in lines]
    return started(configured(root, f"dataPath={root}/{folder}", *more), ask)


@effect_of("offset_database")
def _(root):
    """Without it nobody knows the group. The password of a database would be told to everybody by `stats config`."""
    assert told_lag(root, folder="without") == ([], [])
    assert told_lag(root, "offsetDatabase=DATABASE") == ([1], ["g"])
    for line, words in (
        ("offsetDatabase=mysql://a:secret@h/d", "offsetPasswordFile"),
        ("offsetDatabase=oracle://a@h/d", "offsetDatabase begins with"),
    ):
        with pytest.raises(ConfigError, match=words) as failed:
            started(configured(root, f"dataPath={root}/wrong", line))
        assert "secret" not in str(failed.value)


@effect_of("offset_table")
def _(root):
    assert told_lag(root, "offsetDatabase=DATABASE", "offsetTable=mine", table="mine") == ([1], ["g"])


@effect_of("offset_password_file")
def _(root):
    """What a password is good for: tests/interop/test_metaq1_lag.py."""
    with pytest.raises(ConfigError, match=r"offsetPasswordFile .*none cannot be read"):
        told_lag(root, "offsetDatabase=DATABASE", f"offsetPasswordFile={root}/none")


# ---- disk -----------------------------------------------------------------------------------------------------------


@effect_of("unflush_threshold")
def _(root):
    disk = SlowDisk()
    topics = "[topic=test]\n[topic=each]\nunflushThreshold=1\n[topic=group]\nunflushThreshold=0\n"
    with Served(root, "unflushThreshold=2", "unflushInterval=3600*1000", topics=topics, disk=disk) as served:
        for topic in ("test", "each", "group"):
            served.put(topic=topic)
            eventually(lambda: served.client.answers() or served.store.state.flushed == served.store.log.end)
        served.broker.store.flusher.flush()
        disk.may_sync.clear()
        clients = {topic: TextClient(served.protocol_server) for topic in ("test", "each", "group")}
        try:
            assert [served.ask("put test 0 1 0 1", b"x", clients["test"])[0] for _ in range(2)] == [200, 200]
            for topic, client in clients.items():
                assert served.ask(f"put {topic} 0 1 0 1", b"x", client, patient=False) is None, (
                    "the disk has not got it"
                )
        finally:
            disk.may_sync.set()
        for client in clients.values():
            [answer] = eventually(client.answers)
            assert answer.code == 200


@effect_of("unflush_interval")
def _(root):
    with Served(root, "unflushInterval=3600*1000") as served:
        served.put()  # Its partition is touched by it, and what that begins with is synced.
        served.store.flusher.flush()
        served.put()
        assert served.store.state.flushed < served.store.log.end
        found = configured(root, "unflushInterval=3600*1000", topics="[topic=test]\nunflushInterval=1\n")
        interval = found.store.flush_interval_commit_log
        served.broker.settings.change({"flush_interval_commit_log": interval})  # what a reload does
        eventually(lambda: served.store.state.flushed == served.store.log.end)


@effect_of("fast_boot")
def _(root):
    with Served(root, "unflushInterval=3600*1000") as served:
        served.put(b"one")
        served.put(b"body that will be damaged")
        for name in ("true", "false"):
            copy_folder(root / "data", root / name / "data")  # as a power cut leaves it
    for name, messages in (("true", 2), ("false", 1)):
        [file] = (root / name / "data" / "commitlog").iterdir()
        file.write_bytes(file.read_bytes().replace(b"body that will", b"bodY that will"))
        with Served(root / name, f"meta.fast_boot={name}") as served:
            assert served.store.reader.existing_queue("test", 0).max_offset == messages


def look(served):
    """An hour later old messages are looked at. Returns what the topic test has let go of."""
    served.tick(3600)
    served.broker.deliver()
    served.store.keeper.retain(served.clock.now_ms())
    return served.store.keeper.floor("test")


def aged(root, *lines, topics="[topic=test]\n"):
    """A broker whose messages fill some log files, an hour apart each."""
    served = Served(root, "maxSegmentSize=64*1024", *lines, topics=topics)
    served.__enter__()
    for _ in range(12):
        for name in ("test", "other"):
            if f"topic={name}]" in topics:
                assert served.put(bytes(8_000), name)[0] == 200
        served.clock.advance(3600)
    return served


@effect_of("delete_policy")
def _(root):
    served = aged(
        root,
        "deletePolicy=delete,4",
        "deleteWhen=0 0 * * * ?",
        topics="[topic=test]\n[topic=other]\ndeletePolicy=delete,100h\n",
    )
    try:
        eventually(lambda: look(served) > 0)
        assert served.store.keeper.floor("other") == 0
        low = served.ask("get test g 0 0 1000 1")
        assert low[0] == 301
        assert int(low[1]) > 0
        assert served.ask("get other g 0 0 1000 1")[0] == 0
    finally:
        served.__exit__(None, None, None)


@effect_of("delete_when")
def _(root):
    never, hourly = "0 0 0 1 1 ? 2099", "0 0 * * * ?"
    for number, (when, goes) in enumerate(((never, False), (hourly, True))):
        folder = root / str(number)
        folder.mkdir()
        served = aged(folder, "deletePolicy=delete,1", f"deleteWhen={when}")
        try:
            if goes:
                eventually(lambda: look(served) > 0)  # noqa: B023  called at once
            else:
                assert [look(served) for _ in range(20)] == [0] * 20
        finally:
            served.__exit__(None, None, None)


class Archiving(FaultyDisk):
    """One that notes which threads write archives."""

    def __init__(self):
        super().__init__()
        self.writers = {}

    def open(self, path, *args):
        if ".meta." in path.name:
            self.writers.setdefault(threading.current_thread().name, []).append(path)
        return super().open(path, *args)


def archived(root, *lines):
    """The disk of a broker that has archived messages of two partitions."""
    disk = Archiving()
    with Served(
        root,
        "maxSegmentSize=64*1024",
        "deletePolicy=archive,1",
        "deleteWhen=0 0 * * * ?",
        "numPartitions=2",
        *lines,
        disk=disk,
    ) as served:
        for _ in range(12):
            for partition in range(2):
                assert served.put(bytes(8_000), partition=partition)[0] == 200
            served.clock.advance(3600)
        eventually(lambda: look(served) > 0)
    return disk


@effect_of("archive_path")
def _(root):
    archived(root, f"archivePath={root}/kept")
    assert list((root / "kept").glob("test-?/*.meta.arc"))
    assert not (root / "data" / "archive").exists()


@effect_of("quartz_thread_count")
def _(root):
    for count in (1, 2):
        folder = root / str(count)
        folder.mkdir()
        disk = archived(folder, f"quartzThreadCount={count}")
        assert any(name.startswith("metaq-archive_") for name in disk.writers) is (count > 1)


# ---- transactions ---------------------------------------------------------------------------------------------------

KEY = "TX:s-1:"
BRANCH = "XID:7:61:62:q"


def step(served, number, verb, *, patient=True):
    return served.ask(f"transaction {KEY}{number} s-1 {verb} 1", patient=patient)


@effect_of("max_tx_timeout_in_seconds")
def _(root):
    with Served(root, "maxTxTimeoutInSeconds=5") as served:
        assert step(served, 1, "BEGIN 3600")[0] == 200
        assert served.put(key=f"{KEY}1")[0] == 200
        served.tick(4)
        assert served.put(key=f"{KEY}1")[0] == 200
        served.tick(2)
        assert served.put(key=f"{KEY}1") == (500, f"Local transaction '{KEY}1' has not been started.")


@effect_of("max_tx_timeout_timer_capacity")
def _(root):
    with Served(root, "maxTxTimeoutTimerCapacity=2") as served:
        assert [step(served, number, "BEGIN 9")[0] for number in range(2)] == [200, 200]
        code, text = step(served, 3, "BEGIN 9")
        assert code == 500
        assert "maxTxTimeoutTimerCapacity" in text
        assert step(served, 4, "BEGIN")[0] == 200, "without a time-out it needs no timer"


@effect_of("flush_tx_log_at_commit")
def _(root):
    for value in (0, 1, 2):
        folder, disk = root / str(value), SlowDisk()
        folder.mkdir()
        with Served(folder, f"flushTxLogAtCommit={value}", "unflushInterval=3600*1000", disk=disk) as served:
            served.put()
            assert step(served, 1, "BEGIN")[0] == 200
            assert served.put(key=f"{KEY}1")[0] == 200
            eventually(lambda: served.broker.deliver() > 0)
            served.store.flusher.flush()
            disk.may_sync.clear()
            try:
                answer = step(served, 1, "COMMIT_ONE_PHASE", patient=False)
                assert (answer is None) is (value == 1)
            finally:
                disk.may_sync.set()
            if value == 1:
                assert eventually(served.client.answers)[0].code == 200
            elif value == 2:
                assert served.store.state.flushed < served.store.log.end
                end = served.store.log.end
                eventually(lambda: served.tick(1.1) or served.store.state.flushed >= end)  # noqa: B023  called at once


@effect_of("checkpoint_interval")
def _(root):
    with Served(root, "checkpointInterval=5*1000") as served:
        assert served.ask(f"transaction {BRANCH} s-1 BEGIN 1")[0] == 200
        assert served.put(key=BRANCH)[0] == 200
        served.ask(f"transaction {BRANCH} s-1 PREPARE 1")
        served.tick()
        ends = served.store.reader.existing_queue("rmq_sys_METAQ_TXN", 0)
        before = ends.max_offset
        served.tick(4)
        assert ends.max_offset == before
        served.tick(2)
        assert ends.max_offset == before + 1


# ---- ZooKeeper ------------------------------------------------------------------------------------------------------
# What a registrar does with its settings: tests/registry/test_zookeeper.py; and brokers with roots of their own:
# tests/interop/test_metaq1_ours.py.


def asked_to_connect(root, *lines):
    """The first request that a ZooKeeper gets of a broker of a file with these lines; None: none comes."""
    pytest.importorskip("kazoo")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        found = []

        def listen():
            with server.accept()[0] as connection:
                connection.settimeout(PATIENCE)
                found.append(connection.recv(100))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        connect = f"zk.zkConnect=127.0.0.1:{server.getsockname()[1]}"
        started(configured(root, zookeeper="\n".join([connect, *lines])))
        if not found:
            socket.create_connection(server.getsockname()).close()  # lets the thread go
        thread.join(PATIENCE)
        return found[0] or None


@effect_of("zk_connect")
def _(root):
    assert asked_to_connect(root)


@effect_of("zk_enable")
def _(root):
    assert asked_to_connect(root, "zk.zkEnable=false") is None


@effect_of("zk_session_timeout_ms")
def _(root):
    request = asked_to_connect(root, "zk.zkSessionTimeoutMs=2*4321")
    assert int.from_bytes(request[16:20], "big") == 8642  # behind size, version and last zxid


def tells_the_registrar(line, name, value):
    def look(root):
        pytest.importorskip("kazoo")
        got = configured(root, zookeeper=f"zk.zkConnect=h:1\n{line}")
        assert getattr(zookeeper_settings(got.metaq1), name) == value

    return look


effect_of("zk_root")(tells_the_registrar("zk.zkRoot=/other/root", "root", "/other/root"))
effect_of("zk_connection_timeout_ms")(tells_the_registrar("zk.zkConnectionTimeoutMs=7000", "connection_timeout", 7.0))
effect_of("zk_sync_time_ms")(tells_the_registrar("zk.zkSyncTimeMs=50", "sync_time", 0.05))


# ---- a slave ----------------------------------------------------------------------------------------------------------


@effect_of("slave_id")
def _(root):
    settings = slave_settings(root)
    with open_metaq1_server(root / "data", FakeClock(), settings, store=SMALL) as (_, server):
        client = TextClient(server)
        client.feed(b"put test 0 2 0 1\r\nhi")
        assert b"asynchronous slave 3" in client.answers()[0].body


@effect_of("slave_group")
def _(root):
    assert TextSlave(slave_settings(root)).rules.group == "meta-slave-group_3"
    assert TextSlave(slave_settings(root, "slaveGroup=g")).rules.group == "g"


@effect_of("slave_max_delay_in_mills")
def _(root):
    """How it counts: tests/app/metaq1_slave/test_partition_copy.py."""
    assert TextSlave(slave_settings(root, "slaveMaxDelayInMills=250")).rules.longest_pause == 0.25


@effect_of("auto_sync_master_config")
def _(root):
    assert "[topic=more]" not in config_after(root)
    assert "[topic=more]" in config_after(root, "autoSyncMasterConfig=true")
