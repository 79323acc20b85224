"""Ports that the system has chosen, when a server starts again in its process."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from metaq.app.addressing.taken_ports import TakenPorts, with_ports
from metaq.app.configuration import Configuration
from metaq.errors import ConfigError
from metaq.options import BrokerOptions, Metaq1Options, NamesrvOptions, StoreOptions


def configuration(broker, namesrv=None, metaq1=None):
    return Configuration(
        BrokerOptions(**broker), StoreOptions(), Metaq1Options(**metaq1 or {}), NamesrvOptions(**namesrv or {})
    )


def test_only_what_was_left_to_the_system_is_set():
    given = configuration({"listen_port": 10911, "http_port": 0}, metaq1={"server_port": 0})
    addresses = {
        "remoting": "127.0.0.1:10911",
        "replication": "127.0.0.1:5",
        "http": "[::1]:6",
        "metaq1": "127.0.0.1:7",
    }
    found = with_ports(given, addresses)
    assert (found.broker.listen_port, found.broker.ha_listen_port, found.broker.http_port) == (10911, None, 6)
    assert (found.metaq1.server_port, found.namesrv) == (7, given.namesrv)


def test_an_unset_replication_port_is_kept_where_the_port_it_follows_was_chosen():
    given = configuration({"listen_port": 0}, {"listen_port": 0, "http_port": 0})
    addresses = {
        "namesrv remoting": "127.0.0.1:1", "namesrv http": "127.0.0.1:2",
        "broker remoting": "127.0.0.1:3", "broker replication": "127.0.0.1:4",
    }  # fmt: skip
    found = with_ports(given, addresses)
    assert (found.broker.listen_port, found.broker.ha_listen_port, found.broker.http_port) == (3, 4, None)
    assert (found.namesrv.listen_port, found.namesrv.http_port) == (1, 2)


class Service:
    addresses: ClassVar = {"remoting": "127.0.0.1:3"}


def test_a_port_that_another_process_has_taken_is_chosen_anew():
    tried = []

    async def start(wanted):
        tried.append(wanted.broker.listen_port)
        if tried == [0, 3]:
            raise ConfigError("cannot listen on 127.0.0.1:3")
        return Service

    async def run():
        ports = TakenPorts(configuration({"listen_port": 0}), start)
        assert [await ports.start(), await ports.start()] == [Service, Service]

    asyncio.run(run())
    assert tried == [0, 3, 0]


def test_a_start_that_fails_with_what_is_configured_is_tried_once():
    tried = []

    async def start(wanted):
        tried.append(wanted)
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        asyncio.run(TakenPorts(configuration({"listen_port": 0}), start).start())
    assert len(tried) == 1
