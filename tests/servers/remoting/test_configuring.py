"""Options that are changed while brokers and name servers run (25, 318), and shown (26, 319)."""

from __future__ import annotations

import json

import pytest

from metaq.clock import FakeClock
from metaq.errors import BadRequest
from metaq.model import Perm
from metaq.model.servers.option_state import AT_ONCE, RESTART, OptionState
from metaq.namesrv.kv import KvTable
from metaq.namesrv.service import NameService
from metaq.options import NamesrvOptions
from metaq.saved_file import TableFile, TextFile
from metaq.servers.remoting.namesrv import NamesrvServer
from metaq.wire import bodies, extensions
from metaq.wire.bodies.parts import CHANGES_BYTES_MAX
from metaq.wire.codes import RequestCode as Code
from metaq.wire.codes import ResponseCode
from metaq.wire.command import request
from metaq.wire.files import KV_CONFIG, OPTIONS
from tests.broker.support import MemoryFile
from tests.servers.remoting.test_namesrv import Client as NamesrvClient
from tests.servers.support import Client, open_server

HOSTILE = {
    "nothing": (b"", "names no option"),
    "no pair": (b"fileReservedTime", "need key=value"),
    "no key": (b"=48", "need key=value"),
    "no UTF-8": (b"\xff\xfe=1", "not UTF-8"),
    "a binary body": (bytes(range(256)), "not UTF-8"),
    "a huge body": (b"a=b\n" * CHANGES_BYTES_MAX, "allowed are 65536"),
    "a huge value": (b"fileReservedTime=" + b"9" * 60_000, "characters"),
    "a huge key": (b"k" * 60_000 + b"=1", "there is no option"),
    "one wrong among good ones": (b"traceOn=false\nfileReservedTime=x\n", "need a whole number"),
    "a path": (b"storePathRootDir=/etc\n", "configuration file"),
    "an address": (b"namesrvAddr=10.0.0.9:9876\n", "configuration file"),
    "what RocketMQ ran as a command": (b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo id\n", ""),
}


def shown(client) -> dict[str, str]:
    return bodies.settings_of(client.ask(Code.GET_BROKER_CONFIG).body)


def change(client, **pairs):
    return client.ask(Code.UPDATE_BROKER_CONFIG, None, bodies.option_changes(pairs))


def test_the_form_on_the_wire():
    """Lines `key=value` as RocketMQ's tools send them; comments and empty lines are passed over."""
    pairs = {"fileReservedTime": "48", "messageDelayLevel": "1s 2s", "a": "b=c"}
    assert bodies.option_changes(pairs) == b"fileReservedTime=48\nmessageDelayLevel=1s 2s\na=b=c\n"
    assert bodies.option_changes_of(bodies.option_changes(pairs)) == pairs
    assert bodies.option_changes_of(b"#made by mqadmin\r\n\n  k = v \r\n") == {"k": "v"}
    with pytest.raises(BadRequest, match="line 2"):
        bodies.option_changes_of(b"a=1\nb\n")


def test_a_broker_takes_changes_and_keeps_them(tmp_path):
    """25: in force at once, shown by 26, and there after a restart; the file that the user wrote is not touched."""
    with open_server(tmp_path) as (broker, server):
        client = Client(server)
        answer = change(client, fileReservedTime="48", brokerPermission="4")
        assert (answer.code, answer.body) == (0, b"")
        assert broker.store_options.file_reserved_time == 48
        assert (shown(client)["fileReservedTime"], shown(client)["brokerPermission"]) == ("48", "4")
        assert broker.registration()[0]["TBW102"].perm == Perm.READ
        saved = json.loads((tmp_path / "config" / OPTIONS.name).read_text())
        assert saved["options"] == {"brokerPermission": "4", "fileReservedTime": "48"}
    with open_server(tmp_path) as (broker, server):
        assert shown(Client(server))["fileReservedTime"] == "48"
        assert broker.options.broker_permission == 4


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_changes_are_refused_whole(tmp_path, name):
    """With what is wrong; nothing is changed, and the connection goes on."""
    body, text = HOSTILE[name]
    with open_server(tmp_path) as (_, server):
        client = Client(server)
        before = shown(client)
        answer = client.ask(Code.UPDATE_BROKER_CONFIG, None, body)
        assert answer.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION}
        assert text in answer.remark
        assert len(answer.remark) < 500
        assert shown(client) == before
        assert not (tmp_path / "config" / OPTIONS.name).exists()


def test_a_broker_tells_each_option_with_its_origin(tmp_path):
    """30022: as it is in force; what was changed over the wire says in which file that is kept; never a secret."""
    with open_server(tmp_path, region_id="there") as (broker, server):
        client = Client(server)
        assert change(client, fileReservedTime="48").code == 0
        told = {one.key: one for one in extensions.option_states_of(client.ask(Code.OPTIONS).body)}
        kept = str(tmp_path / "config" / OPTIONS.name)
        assert told["fileReservedTime"] == OptionState("fileReservedTime", "store", "48", "72", "wire", AT_ONCE, kept)
        assert (told["regionId"].origin, told["regionId"].changes) == ("derived", RESTART), "by whoever made the table"
        assert told["brokerName"].value == broker.environment.name
        assert told.keys() >= {"traceOn", "deleteWhen", "listenPort"}


def test_a_name_server_tells_its_options_to_administrators(namesrv):
    told = {one.key: one for one in extensions.option_states_of(NamesrvClient(namesrv).ask(request(Code.OPTIONS)).body)}
    assert (told["orderMessageEnable"].changes, told["kvConfigPath"].changes) == (AT_ONCE, RESTART)
    assert NamesrvClient(namesrv, "10.0.0.9").ask(request(Code.OPTIONS)).code == ResponseCode.NO_PERMISSION


def test_other_machines_may_not_without_accounts(tmp_path):
    """Nothing that they ask for is changed."""
    with open_server(tmp_path) as (broker, server):
        stranger = Client(server, address="10.0.0.9")
        assert change(stranger, fileReservedTime="1").code == ResponseCode.NO_PERMISSION
        assert broker.store_options.file_reserved_time == 72


# ---------------------------------------------------------------- name servers


@pytest.fixture
def kept() -> MemoryFile:
    return MemoryFile()


@pytest.fixture
def namesrv(kept) -> NamesrvServer:
    clock = FakeClock()
    kv = KvTable(TableFile(MemoryFile(), KV_CONFIG), clock)
    return NamesrvServer(NameService(NamesrvOptions(), clock, kv, TextFile(kept, OPTIONS)))


def ask(client: NamesrvClient, body: bytes):
    return client.ask(request(Code.UPDATE_NAMESRV_CONFIG, None, body))


def test_a_name_server_takes_changes(namesrv, kept):
    """318: in force, shown by 319, saved."""
    client = NamesrvClient(namesrv)
    answer = ask(client, bodies.option_changes({"orderMessageEnable": "true"}))
    assert (answer.code, answer.body) == (0, b"")
    assert namesrv.service.options.order_message_enable
    assert bodies.settings_of(client.ask(request(Code.GET_NAMESRV_CONFIG)).body)["orderMessageEnable"] == "true"
    assert OPTIONS.parse(kept.text) == {"orderMessageEnable": "true"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/etc/passwd\n", ResponseCode.NO_PERMISSION),
        (b"listenPort=1\n", ResponseCode.NO_PERMISSION),
        (b"configStorePath=/etc/passwd\n", ResponseCode.SYSTEM_ERROR),
        (b"orderMessageEnable=perhaps\n", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=48\n", ResponseCode.SYSTEM_ERROR),
        (b"\xff=1\n", ResponseCode.SYSTEM_ERROR),
        (b"", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_name_server_refuses_the_rest(namesrv, kept, body, code):
    """By name; nothing is changed."""
    answer = ask(NamesrvClient(namesrv), body)
    assert answer.code == code
    assert answer.remark
    assert not kept.text


def test_a_name_server_takes_none_from_other_machines(namesrv, kept):
    """RocketMQ's does (CVE-2023-37582)."""
    answer = ask(NamesrvClient(namesrv, "10.0.0.9"), b"orderMessageEnable=true\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert not kept.text
