"""The option tables: what changes while a server runs, and that every option is read by somebody."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re

import pytest

import metaq
from metaq.app.config_files import server_ini
from metaq.dashboard_options import DashboardOptions
from metaq.errors import ConfigError
from metaq.options import (
    BrokerOptions,
    Metaq1Options,
    NamesrvOptions,
    OptionTable,
    Settings,
    StoreOptions,
    apply,
    judge,
)
from metaq.tls_options import TlsOptions

SOURCE = pathlib.Path(metaq.__file__).parent
READERS: dict[type[OptionTable], tuple[str, ...]] = {
    BrokerOptions: (
        "broker/",
        "servers/",
        "app/acl/",
        "app/auditing.py",
        "app/addressing/",
        "app/broker.py",
        "app/front.py",
        "app/registration.py",
        "app/failover/",
        "app/role/",
        "app/serving.py",
        "app/predicate_process.py",
        "app/runtime.py",
    ),
    TlsOptions: ("app/tls/",),
    DashboardOptions: ("cli/servers/dashboard_beside.py",),
    StoreOptions: ("store/", "broker/", "servers/", "app/broker.py"),
    Metaq1Options: ("broker/", "servers/", "app/", "model/metaq1/settings.py"),
    NamesrvOptions: (
        "namesrv/",
        "servers/http/namesrv.py",
        "servers/remoting/namesrv.py",
        "broker/quota/service.py",
        "app/auditing.py",
        "app/acl/",
        "app/addressing/",
        "app/namesrv.py",
        "app/serving.py",
        "app/runtime.py",
    ),
}
"""Where the options of a table are read: those of the same name are different options."""
OWNERS = re.compile(r"options|metaq1\b|text\b")
"""What a table of options is called where it is read."""


def read_somewhere(places: tuple[str, ...]) -> set[str]:
    """Attributes that these modules read of anything that is called like a table of options."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).as_posix().startswith(places):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and OWNERS.search(ast.unparse(node.value).rpartition(".")[2]):
                    found.add(node.attr)
    return found


@pytest.mark.parametrize("table", READERS, ids=lambda table: table.__name__)
def test_every_option_is_read(table):
    """An option that nothing reads would be a promise that nobody keeps; of those of 1.x that are only taken the log says so."""
    taken = server_ini.TAKEN.keys() if table is Metaq1Options else set()
    unread = {item.name for item in dataclasses.fields(table)} - read_somewhere(READERS[table]) - taken
    assert not unread, f"{table.__name__}: nothing reads {sorted(unread)}"


def test_no_option_is_written_twice():
    """What several tables have in common, they take from one table; options of one name that mean the same are one."""
    seen: dict[tuple[str, str], str] = {}
    for table in READERS:
        common = {item.name for base in table.__mro__[1:-1] for item in dataclasses.fields(base)}
        for item in table.listed():
            if item.name not in common:
                key = item.name, item.metadata["doc"]
                assert key not in seen, f"{item.name} stands in {seen[key]} and in {table.__name__}"
                seen[key] = table.__name__


def test_a_table_lists_its_own_options_before_those_that_it_shares():
    """So the page of options begins with what a server is about."""
    listed = [item.name for item in BrokerOptions.listed()]
    assert sorted(listed) == sorted(item.name for item in dataclasses.fields(BrokerOptions))
    assert listed[0] == "namesrv_addr"
    assert listed[-1] == "audit_log_files"


def test_hot_options_change_in_place_and_others_wait():
    """Whoever has the table sees it; what is not hot is told as refused; what is as it was is neither."""
    options = BrokerOptions()
    held = options
    applied = apply(options, {"connectionsMax": "5", "trace_on": False, "listenPort": 1, "brokerPermission": 6})
    assert (held.connections_max, held.trace_on, held.listen_port) == (5, False, 10911)
    assert {name: str(change) for name, change in applied.changed.items()} == {
        "connections_max": "connectionsMax=5 (it was 10000)",
        "trace_on": "traceOn=false (it was true)",
    }
    assert {name: str(change) for name, change in applied.refused.items()} == {
        "listen_port": "listenPort=1 (it was 10911)"
    }


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"traceOn": "false", "connectionsMax": "many"}, "connectionsMax"),
        ({"traceOn": "false", "connectionsMax": 0}, "smallest allowed value is 1"),
        ({"traceOn": "false", "conectionsMax": 5}, "conectionsMax in the file"),
    ],
)
def test_wrong_change_changes_nothing(wrong, says):
    """Type, bounds, name: all or nothing, over all tables of a server."""
    options, store = BrokerOptions(), StoreOptions()
    with pytest.raises(ConfigError, match=says):
        apply(options, wrong, "the file")
    settings = Settings(store, options)
    settings.watch(lambda _names: pytest.fail("told of what did not happen"))
    with pytest.raises(ConfigError, match=says):
        settings.change({"fileReservedTime": 1, **wrong}, "the file")
    assert options == BrokerOptions()
    assert store == StoreOptions()


def test_judging_changes_nothing():
    """What would happen, for whoever refuses a request as a whole."""
    options = BrokerOptions()
    applied = judge(options, {"traceOn": "false", "brokerName": "x"})
    assert (set(applied.changed), set(applied.refused)) == ({"trace_on"}, {"broker_name"})
    assert options == BrokerOptions()


def test_settings_reach_the_table_that_has_the_option_and_tell_of_changes_only():
    """A key goes where it belongs; listeners hear the names of what is different now, once."""
    options, store = BrokerOptions(), StoreOptions()
    settings, told = Settings(options, store), []
    settings.watch(told.append)
    settings.change({"traceOn": "true", "fileReservedTime": 72, "listenPort": 5})
    assert told == []
    applied = settings.change({"traceOn": "false", "fileReservedTime": "12", "storePathRootDir": "/elsewhere"})
    assert told == [{"trace_on", "file_reserved_time"}]
    assert (options.trace_on, store.file_reserved_time, store.store_path_root_dir) == (False, 12, "~/store")
    assert set(applied.refused) == {"store_path_root_dir"}


def test_everybody_is_told_of_a_change_though_one_fails():
    """What one keeps of the options may not depend on the health of another."""
    options, told = BrokerOptions(), []
    settings = Settings(options)

    def fail(_names: frozenset[str]) -> None:
        raise ZeroDivisionError

    for watcher in (told.append, fail, told.append):
        settings.watch(watcher)
    with pytest.raises(ZeroDivisionError):
        settings.change({"traceOn": "false"})
    assert told == [{"trace_on"}] * 2
    assert not options.trace_on
