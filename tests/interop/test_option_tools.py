"""`metaq broker config` and `metaq namesrv config` with a RocketMQ 4.9.7 and with ours."""

from __future__ import annotations

import pytest

from metaq.admin import Admin
from metaq.errors import ConfigError
from tests.interop.servers import Server

pytestmark = pytest.mark.interop


def test_options_of_a_broker_are_shown_and_set(server: Server) -> None:
    """What is changed is read back; a wrong name or value changes nothing, though a RocketMQ would take it."""
    with Admin(server.namesrv) as admin:
        (name,) = admin.compare_brokers().servers
        before = admin.broker_options(name).by_key()
        assert before["traceOn"].value == "true"
        done = admin.change_broker_options(name, {"traceOn": "false", "fileReservedTime": "48"})
        assert [(one.key, one.after) for one in done] == [("traceOn", "false"), ("fileReservedTime", "48")]
        after = admin.broker_options(server.broker).by_key()
        assert (after["traceOn"].value, after["fileReservedTime"].value) == ("false", "48")
        for wrong in ({"fileReservedTime": "soon"}, {"fileReservedTim": "1"}, {"traceOn": "perhaps"}):
            with pytest.raises(ConfigError):
                admin.change_broker_options(name, {"maxMessageSize": "1000", **wrong})
        assert admin.broker_options(name).by_key()["maxMessageSize"].value == before["maxMessageSize"].value


def test_options_of_a_name_server_are_shown_and_set(server: Server) -> None:
    with Admin(server.namesrv) as admin:
        (before,) = admin.name_server_options()
        assert before.by_key()["orderMessageEnable"].value == "false"
        (done,) = admin.change_name_server_options({"orderMessageEnable": "true"})
        assert (done.before, done.after) == ("false", "true")
        with pytest.raises(ConfigError):
            admin.change_name_server_options({"orderMessageEnabel": "false"})
