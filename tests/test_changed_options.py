"""Options that are changed over the wire: which, what is refused by name, and that they are on the disk first."""

from __future__ import annotations

import json
import logging

import pytest

from metaq.changed_options import BY_FILE_ALONE, WAITING_MAX, ChangedOptions
from metaq.errors import ConfigError, Reason, Refused
from metaq.options import BrokerOptions, NamesrvOptions, Settings, StoreOptions, camel
from metaq.saved_file import TextFile
from metaq.store.config_file import ConfigFile
from metaq.testing import FaultyDisk
from metaq.wire.files import OPTIONS
from tests.broker.support import MemoryFile, SlowFile


class Server:
    """Tables of a broker, and what watches them."""

    def __init__(self, file=None):
        self.broker, self.store = BrokerOptions(), StoreOptions()
        self.settings = Settings(self.broker, self.store)
        self.seen: list[frozenset[str]] = []
        self.settings.watch(self.seen.append)
        self.file = file if file is not None else MemoryFile()
        self.changed = ChangedOptions(self.settings, TextFile(self.file, OPTIONS))

    def refusal(self, **pairs) -> Refused:
        before = self.file.load(), self.broker.values(), self.store.values()
        with pytest.raises(Refused) as caught:
            self.changed.change(pairs).outcome()
        assert (self.file.load(), self.broker.values(), self.store.values()) == before
        return caught.value


def test_a_change_is_saved_in_force_and_there_at_the_next_start():
    """Of both tables at once, in any spelling; those who watch hear of it."""
    server = Server()
    applied = server.changed.change({"fileReservedTime": "48", "traceOn": " false"}).outcome()
    assert set(applied.changed) == {"file_reserved_time", "trace_on"}
    assert (server.store.file_reserved_time, server.broker.trace_on) == (48, False)
    assert server.seen == [{"file_reserved_time", "trace_on"}]
    assert json.loads(server.file.text) == {"options": {"fileReservedTime": "48", "traceOn": "false"}}
    server.changed.change({"file_reserved_time": "24"}).outcome()
    again = Server(MemoryFile(server.file.text))
    assert (again.store.file_reserved_time, again.broker.trace_on) == (24, False)
    assert again.changed.table == {"fileReservedTime": "24", "traceOn": "false"}
    assert again.settings.pinned == {"file_reserved_time", "trace_on"}


REFUSED = {
    "noSuchKey": ("1", Reason.INVALID, "there is no option 'noSuchKey'"),
    "fileReservedTme": ("1", Reason.INVALID, "the nearest is fileReservedTime"),
    "": ("1", Reason.INVALID, "there is no option"),
    "storePathRootDir": ("/tmp/x", Reason.NO_PERMISSION, "set it in the server's configuration file"),
    "rocketmqHome": ("/tmp/x", Reason.INVALID, "there is no option"),
    "namesrvAddr": ("10.0.0.9:9876", Reason.NO_PERMISSION, "namesrvAddr is not changed over the wire"),
    "listenPort": ("1", Reason.NO_PERMISSION, "not changed over the wire"),
    "brokerRole": ("ASYNC_MASTER", Reason.NO_PERMISSION, "not changed over the wire"),
    "aclEnable": ("false", Reason.NO_PERMISSION, "not changed over the wire"),
    "filterPredicates": ("x=os:system", Reason.NO_PERMISSION, "not changed over the wire"),
    "fileReservedTime": ("x", Reason.INVALID, "need a whole number"),
    "traceOn": ("maybe", Reason.INVALID, "need true or false"),
    "brokerPermission": ("8", Reason.INVALID, "the largest allowed value is 7"),
    "maxMessageSize": ("2147483648", Reason.INVALID, "the largest allowed value is 2147483647"),
    "transactionTimeOut": ("-1", Reason.INVALID, "the smallest allowed value is 0"),
    "queueLocksMax": ("9" * 5000, Reason.INVALID, "5000 characters"),
    "deleteWhen": ("`reboot`", Reason.INVALID, "need hours"),
    "logLevel": ("loud", Reason.INVALID, "allowed are debug, info"),
    "logLevels": ("root=debug", Reason.INVALID, "need metaq.PART=LEVEL"),
    "log_levels": ("metaq.net=debug,", Reason.INVALID, "need metaq.PART=LEVEL"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_changed_is_refused_by_name(key):
    """And with it all that was asked for beside."""
    value, reason, text = REFUSED[key]
    server = Server()
    error = server.refusal(**{"fileReservedTime": "48", key: value})
    assert error.reason is reason
    assert text in error.text
    assert len(error.text) < 400
    assert not server.changed.table
    assert server.refusal().reason is Reason.INVALID, "nothing was asked for"


def test_numbers_may_be_as_large_as_their_defaults():
    """64 bits where the default needs more than 32."""
    server = Server()
    server.changed.change({"stagedBytesMax": str(2**40)}).outcome()
    assert server.broker.staged_bytes_max == 2**40
    assert server.refusal(stagedBytesMax=str(2**63)).reason is Reason.INVALID


def test_no_option_that_can_be_changed_is_of_a_dangerous_kind():
    """Never a path, an address, a port, a class, a command or a switch of security, and no free text."""
    dangerous = {
        "path", "dir", "folder", "address", "addresses", "addr", "port", "ip1", "ip2", "host", "class", "command", "acl", "tls",
        "secret", "credentials", "administration", "predicates", "listeners",
    }  # fmt: skip
    for table in (BrokerOptions, StoreOptions, NamesrvOptions):
        defaults = table()
        for name in table.hot_names() - BY_FILE_ALONE:
            assert not dangerous & set(name.split("_")), name
            if isinstance(getattr(defaults, name), str):
                settings = Settings(defaults)
                with pytest.raises(Refused):
                    ChangedOptions(settings, TextFile(MemoryFile(), OPTIONS)).change({camel(name): "$(x) /etc/y"})


def test_where_clients_go_changes_with_the_file_alone():
    """It is hot, and nobody who may ask a server for changes leads its clients elsewhere."""
    changed = ChangedOptions(Settings(NamesrvOptions()), TextFile(MemoryFile(), OPTIONS))
    assert NamesrvOptions.hot_names() >= BY_FILE_ALONE
    with pytest.raises(Refused, match=r"addressPage is not changed over the wire: .* send it SIGHUP") as caught:
        changed.change({"addressPage": "10.0.0.9:9876"})
    assert caught.value.reason is Reason.NO_PERMISSION


def test_a_change_that_cannot_be_saved_is_none():
    """The next one may be."""
    server = Server()
    server.file.error = OSError(28, "No space left on device")
    error = server.refusal(fileReservedTime="48")
    assert error.reason is Reason.NOT_STORED
    assert "No space left" in error.text
    assert server.changed.failing
    server.file.error = None
    server.changed.change({"traceOn": "false"}).outcome()
    assert json.loads(server.file.text) == {"options": {"traceOn": "false"}}
    assert not server.changed.failing


def test_changes_are_saved_one_after_the_other():
    """Each is in force when it is saved, and not before; one that fails takes none with it; so many wait at most."""
    server = Server(SlowFile())
    first, second, third = (server.changed.change({"fileReservedTime": str(hours)}) for hours in (1, 2, 3))
    assert server.store.file_reserved_time == 72
    server.file.end()
    assert (first.done, second.done, server.store.file_reserved_time) == (True, False, 1)
    server.file.end(OSError(5, "Input/output error"))
    assert (second.error.reason, server.store.file_reserved_time) == (Reason.NOT_STORED, 1)
    server.file.end()
    assert (third.done, server.store.file_reserved_time) == (True, 3)
    waiting = [server.changed.change({"traceOn": "false"}) for _ in range(WAITING_MAX)]
    with pytest.raises(Refused) as caught:
        server.changed.change({"traceOn": "false"})
    assert caught.value.reason is Reason.BUSY
    for _ in waiting:
        server.file.end()
    assert all(one.done and one.error is None for one in waiting)


class Syncs(FaultyDisk):
    """What is synced, in order; `broken`: folders cannot be."""

    def __init__(self):
        super().__init__()
        self.events: list[str] = []
        self.broken = False

    def sync_file(self, descriptor):
        super().sync_file(descriptor)
        self.events.append("file")

    def sync_folder(self, path):
        if self.broken:
            raise OSError(5, "Input/output error")
        super().sync_folder(path)
        self.events.append("folder")


def test_file_and_folder_are_synced_before_the_change_is_in_force(tmp_path):
    """A disk that fails to sync the folder refuses it, and leaves what was there."""
    disk = Syncs()
    file = ConfigFile(tmp_path / "config" / OPTIONS.name, disk)
    server = Server(file)
    server.settings.watch(lambda _names: disk.events.append("in force"))
    server.changed.change({"fileReservedTime": "48"}).outcome()
    assert disk.events[-3:] == ["file", "folder", "in force"]
    disk.broken = True
    with pytest.raises(Refused):
        server.changed.change({"fileReservedTime": "24"}).outcome()
    assert server.store.file_reserved_time == 48
    assert OPTIONS.parse(file.load()) == {"fileReservedTime": "48"}


def test_a_file_by_hand_or_of_another_release(caplog):
    """What cannot be used is passed over with a warning, the rest is in force; what is no table at all stops the start."""
    text = '{"options":{"fileReservedTime":"48","noSuchKey":"1","listenPort":"1","maxMessageSize":"many"}}'
    with caplog.at_level(logging.INFO):
        server = Server(MemoryFile(text))
    assert server.changed.table == {"fileReservedTime": "48"}
    assert server.store.file_reserved_time == 48
    for key in ("noSuchKey", "listenPort", "maxMessageSize"):
        assert f"{key} is passed over" in caplog.text
    assert "fileReservedTime=48" in caplog.text
    for wrong in ("[]", "{}", '{"options":5}', "garbage"):
        with pytest.raises(ConfigError, match="or delete it"):
            Server(MemoryFile(wrong))


def test_what_a_watcher_raises_is_told():
    """The options have changed then, and the next change goes on."""
    server = Server()

    def broken(_names):
        raise RuntimeError("broken")

    server.settings.watch(broken)
    with pytest.raises(Refused, match="not everywhere"):
        server.changed.change({"fileReservedTime": "48"}).outcome()
    assert server.store.file_reserved_time == 48
    assert server.seen


def test_without_a_file_nothing_can_be_changed():
    """As in a program that keeps none."""
    settings = Settings(NamesrvOptions())
    with pytest.raises(Refused, match="has no file"):
        ChangedOptions(settings, None).change({"orderMessageEnable": "true"})
