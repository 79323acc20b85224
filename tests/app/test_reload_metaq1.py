"""A server.ini and its topic.ini are read again: by SIGHUP and by `metaq meta1 reload`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading

import pytest

from metaq.app.configuration import load
from metaq.app.reload import Reload
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.process.reloading import Reloading
from metaq.errors import ConfigError, Reason, Refused
from metaq.model.access import Caller
from metaq.options import Settings
from metaq.saved import Pending
from metaq.testing import free_port
from tests.support import PATIENCE, eventually, metaq_command, process, read_line, run_metaq

INI = """\
[system]
brokerId=3
hostName=127.0.0.1
serverPort={port}
dashboardHttpPort=0
numPartitions=1
maxSegmentSize=1024*1024
dataPath={folder}/data
unflushInterval=1000
[zookeeper]
zk.zkEnable=false
[topic=orders]
"""


class Loaded:
    """A server.ini, and what a broker of it would run with."""

    def __init__(self, folder, more=""):
        self._folder, self.file = folder, folder / "server.ini"
        self.write(more)
        first = self._load()
        broker, store = first.broker.replace(), first.store.replace()
        self.store, self.metaq1, self.reloading = store, first.metaq1_settings, None
        settings = Settings(broker, store)
        self.settings = {"broker": settings, "store": settings, "metaq1": self.metaq1.settings}
        self._reload = Reload(str(self.file), self._load, first)
        self.told = []
        self.metaq1.watch(self.told.append)

    def _load(self):
        return load(str(self.file), serving=("broker", "store", "metaq1"), environment={})

    def write(self, more, **replaced):
        text = INI.format(port=1, folder=self._folder)
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text + more)

    def reload(self, more="", **replaced):
        self.write(more, **replaced)
        return self._reload.apply(self._load(), self)


def test_topics_are_added_grown_and_set_while_the_broker_runs(tmp_path):
    """Watchers hear of exactly those that are different; what became of each is told."""
    loaded = Loaded(tmp_path, "[topic=same]\n")
    outcome = loaded.reload(
        "numPartitions=4\ndeletePolicy=archive,2\nacceptPublish=false\ngroup.g=m:N\nunflushInterval=500\n"
        "[topic=same]\n[topic=new]\n[topic=log-*]\n",
    )
    # The lines before [topic=same] belong to orders, the last section of the file.
    assert outcome.changed == (
        "store.flushIntervalCommitLog=500 (it was 1000)",
        "topic new (numPartitions=1)",
        (
            "topic orders: numPartitions=4 (it was 1), unflushInterval=500 (it was 1000), deletePolicy=archive,2 (it was "
            "delete,168), acceptPublish=false (it was true), filters={'g': 'm:N'} (it was {})"
        ),
        "topics log-*",
    )
    assert outcome.waiting == ()
    assert [sorted(names) for names in loaded.told] == [["new", "orders"]]
    assert loaded.metaq1.rules.accepts("log-1")
    assert loaded.metaq1.text == loaded.file.read_bytes()
    assert loaded.store.flush_interval_commit_log == 500


def test_topic_ini_is_read_again_too(tmp_path):
    """Also one that was not there at the start."""
    loaded = Loaded(tmp_path)
    (tmp_path / "topic.ini").write_text("[topic=beside]\n")
    assert loaded.reload().changed == ("topic beside (numPartitions=1)",)
    assert loaded.metaq1.text.endswith(b"[topic=beside]\n")


def test_defaults_of_system_reach_every_topic_without_its_own(tmp_path):
    """They are hot themselves."""
    loaded = Loaded(tmp_path, "[topic=own]\nstat=false\n")
    outcome = loaded.reload(
        "[topic=own]\nstat=false\n", **{"numPartitions=1": "numPartitions=1\nstat=true\nmaxTransferSize=2048"}
    )
    assert outcome.changed == (
        "metaq1.maxTransferSize=2048 (it was 1048576)",
        "metaq1.stat=true (it was false)",
        "topic orders: stat=true (it was false)",
    )
    assert (loaded.metaq1.options.max_transfer_size, loaded.metaq1.options.stat) == (2048, True)
    assert (loaded.metaq1.rules.default.stat, loaded.metaq1.rules.settings("own").stat) == (True, False)


def test_what_cannot_change_in_a_running_broker_is_said_at_each_reading(tmp_path, caplog):
    """Numbers, ports and paths; topics that are gone, which stay in use; fewer partitions, which there never are."""
    loaded = Loaded(tmp_path, "numPartitions=4\n[topic=gone]\n[topic=gone-*]\n")
    outcome = loaded.reload("numPartitions=2\n", **{"brokerId=3": "brokerId=4", "serverPort=1": "serverPort=2"})
    assert outcome.waiting == (
        "broker.brokerName=broker-4 (it was broker-3)",
        "metaq1.brokerId=4 (it was 3)",
        "metaq1.serverPort=2 (it was 1)",
        "topic gone has no section any more and stays in use until then",
        "topics gone-* have no section any more and stay in use until then",
        (
            "topic orders keeps its 4 partitions: messages may lie in them, so there are never fewer, not even then "
            "(numPartitions=2)"
        ),
    )
    assert outcome.changed == ("topic orders: numPartitions=2 (it was 4)",)
    assert loaded.metaq1.options.broker_id == 3
    assert loaded.metaq1.rules.accepts("gone")
    assert loaded.metaq1.rules.accepts("gone-1")
    assert "needs a restart and is not in force: broker.brokerName=broker-4" in caplog.text
    again = loaded.reload("numPartitions=2\n", **{"brokerId=3": "brokerId=4"})
    assert "topic gone has no section any more and stays in use until then" in again.waiting
    assert again.changed == ()


def test_a_wrong_line_and_a_rule_that_is_refused_change_nothing(tmp_path):
    """Neither of the rest of the file."""
    loaded = Loaded(tmp_path)
    rules, text = loaded.metaq1.rules, loaded.metaq1.text
    with pytest.raises(ConfigError, match="line 14: a topic has no option"):
        loaded.reload("numPartition=3\n", **{"numPartitions=1": "numPartitions=1\nstat=true"})

    def refuse(_rules):
        raise ConfigError("the filter m:N cannot be loaded")

    loaded.metaq1.require(refuse)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        loaded.reload("group.g=m:N\n", **{"numPartitions=1": "numPartitions=1\nstat=true"})
    assert (loaded.metaq1.rules, loaded.metaq1.text, loaded.metaq1.options.stat, loaded.told) == (
        rules,
        text,
        False,
        [],
    )


def test_serving_metaq1_at_all_needs_a_restart(tmp_path):
    """And that is said."""
    file = tmp_path / "metaq.toml"
    file.write_text("")

    def read():
        return load(str(file), serving=("broker", "store", "metaq1"), environment={})

    class Service:
        def __init__(self):
            self.settings = {"broker": Settings(read().broker)}
            self.metaq1, self.reloading = None, object()

    reload = Reload(str(file), read, read())
    file.write_text("[metaq1]\nenable = true\n")
    assert reload.apply(read(), Service()).waiting == ("metaq1.enable=true (it was false)",)


def test_a_running_broker_is_told_by_command_and_by_signal(tmp_path):
    """What the command prints is what the log says; a wrong file is refused with its line, and nobody is harmed."""
    file, port = tmp_path / "server.ini", free_port()
    file.write_text(INI.format(port=port, folder=tmp_path))
    command = metaq_command("broker", "-c", str(file), "--host", "127.0.0.1", "--port", "0")
    with process(*command, "-o", "maxHashSlotNum=1000", "-o", "maxIndexNum=4000") as broker:
        ready = read_line(broker, "ready broker")
        assert "broker-3" in ready
        address = ready.split()[3]
        lines = []
        threading.Thread(target=lambda: lines.extend(iter(broker.stderr.readline, "")), daemon=True).start()

        file.write_text(file.read_text() + "numPartitions=5\n[topic=new]\n")
        done = run_metaq("meta1", "reload", address)
        assert done.returncode == 0, done.stderr
        assert "in force: topic orders: numPartitions=5 (it was 1)" in done.stdout
        assert "in force: topic new (numPartitions=1)" in done.stdout
        assert any("topic orders: numPartitions=5" in line for line in lines)
        topics = tmp_path / "data" / "config" / "topics.json"
        eventually(lambda: "new" in json.loads(topics.read_text())["topicConfigTable"])

        file.write_text(file.read_text() + "numPartition=6\n")
        done = run_metaq("meta1", "reload", address)
        assert done.returncode == 1
        assert "line 15: a topic has no option 'numPartition'; the nearest is numPartitions" in done.stderr
        assert "Traceback" not in done.stderr

        file.write_text(
            file.read_text().replace("numPartition=6", "numPartitions=6").replace("brokerId=3", "brokerId=4")
        )
        broker.send_signal(signal.SIGHUP)
        eventually(lambda: any("topic new: numPartitions=6 (it was 1)" in line for line in lines))
        done = run_metaq("meta1", "reload", address, "--json")
        assert json.loads(done.stdout) == {
            "file": str(file),
            "changed": [],
            "needs_restart": ["broker.brokerName=broker-4 (it was broker-3)", "metaq1.brokerId=4 (it was 3)"],
            "warnings": json.loads(done.stdout)["warnings"],
        }
        broker.terminate()
        assert broker.wait(PATIENCE) == 0


def test_a_reload_is_answered_when_its_topics_are_saved(tmp_path):
    """Whoever reloads puts to the new partition next. What is not saved is not said to be in force."""
    loaded, asked, made = Loaded(tmp_path), [], []
    loaded.reloading = Reloading(Gatekeeper(), lambda: [change for change in made if not change.done])
    loaded.metaq1.watch(lambda _names: made.append(Pending()))
    made.append(Pending())  # of somebody else

    async def body():
        told = asyncio.Event()
        work = asyncio.create_task(loaded._reload.whenever(told, loaded))
        for number, refusal in ((1, None), (2, Refused(Reason.UNAVAILABLE, "no room"))):
            loaded.write(f"numPartitions={number + 1}\n")
            async with asyncio.timeout(PATIENCE):
                while loaded.reloading._read is None:
                    await asyncio.sleep(0)
                asked.append(loaded.reloading.ask(Caller("127.0.0.1", True)))
                while len(made) == number:
                    await asyncio.sleep(0.001)
            assert not asked[-1].done
            made[-1].finish(refusal)
            async with asyncio.timeout(PATIENCE):
                while not asked[-1].done:
                    await asyncio.sleep(0.001)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(body())
    assert asked[0].outcome().changed == ("topic orders: numPartitions=2 (it was 1)",)
    assert "is not in effect before the broker's next start: no room" in str(asked[1].error)


def test_the_log_says_what_is_in_force(tmp_path, caplog):
    """One line for all of it."""
    caplog.set_level(logging.INFO)
    loaded = Loaded(tmp_path)
    loaded.reload("[topic=new]\n")
    assert "was read again: topic new (numPartitions=1)" in caplog.text
