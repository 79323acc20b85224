"""SIGHUP: the file is read again; what changes, what waits for a restart, what is wrong, and what the log says of it."""

from __future__ import annotations

import logging
import signal
import threading
from types import SimpleNamespace

import pytest

import metaq
from metaq.app.configuration import load
from metaq.app.reload import Reload
from metaq.app.runtime import follow_log_level
from metaq.changed_options import ChangedOptions
from metaq.options import BrokerOptions, NamesrvOptions, Settings, StoreOptions
from metaq.saved_file import TextFile
from metaq.testing import free_port
from metaq.wire.files import OPTIONS
from tests.broker.support import MemoryFile
from tests.support import PATIENCE, eventually, metaq_command, process, read_line

SMALL = ("-o", "mappedFileSizeCommitLog=1048576", "-o", "maxHashSlotNum=1000", "-o", "maxIndexNum=4000")


class Loaded:
    """A configuration in a file, and tables that a server of it would run with."""

    def __init__(self, path, text, **flags):
        self._path, self._flags = path, flags
        path.write_text(text)
        first = self._load()
        self.broker, self.store = first.broker.replace(), first.store.replace()
        settings = Settings(self.broker, self.store)
        self.settings = {"broker": settings, "store": settings}
        self.metaq1 = self.reloading = None
        self._reload = Reload(str(path), self._load, first)

    def _load(self):
        return load(str(self._path), flags={"broker": self._flags}, environment={})

    def rewrite(self, text):
        self._path.write_text(text)
        self._reload.apply(self._load(), self)


def test_difference_of_hot_options_is_applied_and_of_others_named_until_a_restart(tmp_path, caplog):
    """Each change is in the log with both values; what waits for a restart is named at every reading."""
    caplog.set_level(logging.INFO)
    loaded = Loaded(tmp_path / "metaq.toml", "[broker]\ntraceOn = true\n[store]\nfileReservedTime = 5\n")
    loaded.rewrite('[broker]\ntraceOn = false\nbrokerName = "other"\n[store]\nfileReservedTime = 6\n')
    assert (loaded.broker.trace_on, loaded.broker.broker_name, loaded.store.file_reserved_time) == (False, None, 6)
    assert "broker.traceOn=false (it was true), store.fileReservedTime=6 (it was 5)" in caplog.text
    assert "needs a restart and is not in force: broker.brokerName=other" in caplog.text
    caplog.clear()
    loaded.rewrite('[broker]\nbrokerName = "other"\n')  # back to the defaults
    assert (loaded.broker.trace_on, loaded.store.file_reserved_time) == (True, 72)
    assert "broker.brokerName=other" in caplog.text
    caplog.clear()
    loaded.rewrite("")
    assert "was read again: nothing changes" in caplog.text
    assert "restart" not in caplog.text


def test_where_values_come_from_is_known_after_a_reload(tmp_path):
    """What is in force now is the file's, or the default again; what waits for a restart is still from where it was."""
    loaded = Loaded(tmp_path / "broker.conf", "traceOn=true\nfileReservedTime=5\n")
    loaded.rewrite("traceOn=false\nlistenPort=5\n")
    origin = loaded.settings["broker"].origin
    assert origin("trace_on").kind == "file"
    assert origin("file_reserved_time").kind == "default"
    assert origin("listen_port").kind == "default"
    assert loaded.settings["broker"].waiting == {"listen_port": "5"}
    loaded.rewrite("traceOn=false\nmappedFileSizeCommitLog=1048576\n")
    assert loaded.settings["broker"].waiting == {"mapped_file_size_commit_log": "1048576"}


def test_flags_go_on_beating_the_file(tmp_path):
    """What was given on the command line holds, whatever the file says now."""
    loaded = Loaded(tmp_path / "broker.conf", "traceOn=true\n", trace_on=True)
    loaded.rewrite("traceOn=false\n")
    assert loaded.broker.trace_on


@pytest.mark.parametrize("options", [(BrokerOptions(), StoreOptions()), (NamesrvOptions(),)], ids=["broker", "namesrv"])
def test_the_level_of_the_log_follows_the_option(monkeypatch, options):
    """At once, for all loggers: nothing has to be restarted to see more of a fault."""
    levels = []
    monkeypatch.setattr(logging.getLogger(), "setLevel", levels.append)
    settings = Settings(*options)
    follow_log_level(SimpleNamespace(settings={"broker" if len(options) > 1 else "namesrv": settings}))
    settings.change({"logLevel": "debug", "connectionsMax": 7})
    settings.change({"connectionsMax": 8})
    settings.change({"logLevel": "error"})
    assert levels == ["DEBUG", "ERROR"]


def log_of(child):
    """What a server has logged so far, line by line as it comes."""
    lines = []
    threading.Thread(target=lambda: lines.extend(iter(child.stderr.readline, "")), daemon=True).start()
    return lines


def hang_up(child, lines, text, count=1):
    """Send SIGHUP, and wait until the log has so many lines with `text`."""
    child.send_signal(signal.SIGHUP)
    eventually(lambda: sum(text in line for line in lines) == count, what=text)


def test_hung_up_servers_change_and_go_on(tmp_path):
    """A broker and a name server of their own: a good file, a broken one, a good one again; clients notice."""
    conf, namesrv_conf = tmp_path / "broker.conf", tmp_path / "namesrv.properties"
    conf.write_text("bindAddress=127.0.0.1\nvipPortEnable=false\nmaxMessageSize=1000\n")
    namesrv_conf.write_text("bindAddress=127.0.0.1\n")
    command = metaq_command("namesrv", "-c", str(namesrv_conf), "--port", "0", "--data", str(tmp_path / "n"))
    with process(*command) as namesrv:
        address = read_line(namesrv, "ready namesrv").split()[-1]
        command = metaq_command("broker", "-c", str(conf), "-n", address, "--port", "0", "--data", str(tmp_path / "b"))
        with process(*command, *SMALL) as broker, metaq.Producer(address, timeout=PATIENCE) as producer:
            read_line(broker, "ready broker")
            lines, namesrv_lines = log_of(broker), log_of(namesrv)
            producer.send("T", b"x" * 1000)
            with pytest.raises(metaq.MetaqError, match="limit is 1000"):
                producer.send("T", b"x" * 1001)

            conf.write_text(conf.read_text() + f"maxMessageSize=2000\nlistenPort={free_port()}\nnonsense=1\n")
            hang_up(broker, lines, "was read again: store.maxMessageSize=2000 (it was 1000)")
            producer.send("T", b"x" * 2000)
            assert any("nonsense is unknown" in line for line in lines)
            assert not any("listenPort" in line for line in lines), "the flag holds, so nothing waits for a restart"

            conf.write_text(conf.read_text() + "traceOn=maybe\nmaxMessageSize=5\n")
            hang_up(broker, lines, "is not applied, every option stays as it is: traceOn='maybe'")
            producer.send("T", b"x" * 2000)
            conf.unlink()
            hang_up(broker, lines, "is not applied, every option stays as it is: cannot read the configuration file")
            producer.send("T", b"x" * 2000)
            conf.write_text("bindAddress=127.0.0.1\nvipPortEnable=false\n")
            hang_up(broker, lines, "was read again: store.maxMessageSize=4194304 (it was 2000)")
            producer.send("T", b"x" * 3000)
            hang_up(broker, lines, "was read again: nothing changes")

            namesrv_conf.write_text("bindAddress=127.0.0.1\norderMessageEnable=true\nbrokerLeaseMs=5000\n")
            hang_up(namesrv, namesrv_lines, "was read again: namesrv.orderMessageEnable=true (it was false)")
            eventually(lambda: any("not in force: namesrv.brokerLeaseMs=5000" in line for line in namesrv_lines))
            conf.write_text("bindAddress=127.0.0.1\nvipPortEnable=false\nlogLevel=debug\n")
            hang_up(broker, lines, "was read again: broker.logLevel=debug (it was info)")
            conf.write_text("bindAddress=127.0.0.1\nvipPortEnable=false\nlogLevel=loud\n")
            hang_up(broker, lines, "logLevel=loud: allowed are debug, info, warning, error")
            for child in (broker, namesrv):
                child.terminate()
                assert child.wait(PATIENCE) == 0


def test_both_servers_of_up_read_their_sections_again(tmp_path):
    """Each section reaches its server; the broker's own name server is no difference to the file."""
    file = tmp_path / "metaq.toml"
    file.write_text("")
    command = metaq_command("up", "-c", str(file), "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path / "d"))
    with process(*command, *SMALL) as child:
        read_line(child, "ready up")
        lines = log_of(child)
        file.write_text("[broker]\nconnectionsMax = 50\n[namesrv]\nconnectionsMax = 40\n")
        said = "was read again: broker.connectionsMax=50 (it was 10000), namesrv.connectionsMax=40 (it was 10000)"
        hang_up(child, lines, said)
        hang_up(child, lines, "was read again: nothing changes")
        assert not any("restart" in line for line in lines)


def test_server_without_a_file_stops_cleanly_when_it_is_hung_up(tmp_path):
    """There is nothing to read again; a closed terminal is a reason to stop, and no crash."""
    command = metaq_command("up", "--port", "0", "--namesrv-port", "0", "--data", str(tmp_path / "d"), *SMALL)
    with process(*command) as child:
        read_line(child, "ready up")
        child.send_signal(signal.SIGHUP)
        assert child.wait(PATIENCE) == 0
    assert not (tmp_path / "d" / "abort").exists()


def test_server_with_a_file_reads_it_once_it_is_ready(tmp_path):
    """SIGHUP while a broker waits for its name server does not end it."""
    conf, port = tmp_path / "metaq.toml", free_port()
    conf.write_text("")
    command = metaq_command("broker", "-c", str(conf), "-n", f"127.0.0.1:{port}", "--port", "0", *SMALL)
    with process(*command, "--data", str(tmp_path / "b")) as broker:
        lines = log_of(broker)
        eventually(lambda: any("cannot register" in line for line in lines))
        conf.write_text("[broker]\ntraceOn = false\n")
        broker.send_signal(signal.SIGHUP)
        with process(*metaq_command("namesrv", "--port", str(port), "--data", str(tmp_path / "n"))) as namesrv:
            read_line(namesrv, "ready namesrv")
            read_line(broker, "ready broker")
            eventually(lambda: any("broker.traceOn=false" in line for line in lines))


def test_what_was_changed_over_the_wire_stands(tmp_path, caplog):
    """A file that is read again leaves it, says so each time, and changes the rest."""
    loaded = Loaded(tmp_path / "metaq.toml", "[broker]\ntraceOn = true\n[store]\nfileReservedTime = 5\n")
    ChangedOptions(loaded.settings["store"], TextFile(MemoryFile(), OPTIONS)).change(
        {"fileReservedTime": "48"}
    ).outcome()
    for _ in range(2):
        caplog.clear()
        loaded.rewrite("[broker]\ntraceOn = false\n[store]\nfileReservedTime = 6\n")
        assert (loaded.broker.trace_on, loaded.store.file_reserved_time) == (False, 48)
        assert "not in force: store.fileReservedTime, which was changed over the wire" in caplog.text
