"""`metaq broker config` and `metaq namesrv config`: shown with where values come from, set, compared; and what is refused."""

from __future__ import annotations

import json
import pathlib
import signal
from collections.abc import Callable, Iterator

import pytest

from metaq.cli.commands import run
from metaq.testing import EmbeddedBroker
from tests.support import PATIENCE, eventually, metaq_command, process, read_line

Metaq = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("config")
    with EmbeddedBroker(folder / "store", options={"fileReservedTime": 50, "brokerName": "b"}) as running:
        yield running


@pytest.fixture
def metaq(server: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Metaq:
    def command(*words: str) -> tuple[int, str]:
        code = run([*words, "-n", server.namesrv])
        said = capsys.readouterr()
        return code, said.out + said.err

    return command


def options_of(text: str) -> dict[str, dict[str, str | None]]:
    (server,) = json.loads(text)
    return {one["key"]: one for one in server["options"]}


def test_options_are_shown_with_default_origin_and_how_they_change(server: EmbeddedBroker, metaq: Metaq) -> None:
    code, text = metaq("broker", "config", "show", "b", "--json")
    assert code == 0, text
    found = options_of(text)
    assert found["fileReservedTime"] == {
        "key": "fileReservedTime", "value": "50", "default": "72", "origin": "command line", "place": "-o", "changes": "at once", "waiting": None,
    }  # fmt: skip
    assert (found["traceOn"]["origin"], found["traceOn"]["changes"]) == ("default", "at once")
    assert found["listenPort"]["changes"] == "restart"
    assert found["listenPort"]["value"] == server.broker.rpartition(":")[2], (
        "the port that it has, not the 0 that was asked for"
    )
    assert found["tlsServerMode"]["changes"] == "restart"
    assert not [key for key in found if "assword" in key]
    code, text = metaq("broker", "config", "show", server.broker, "file_reserved_time", "deleteWhen")
    assert code == 0, text
    lines = [line.split() for line in text.splitlines()]
    assert lines == [
        ["option", "value", "default", "from", "changes"],
        ["fileReservedTime", "50", "72", "command", "line", "(-o)", "at", "once"],
        ["deleteWhen", "04", "04", "default", "at", "once"],
    ]
    code, text = metaq("broker", "config", "show", "b")
    assert "traceOn" not in text
    assert "options with the default value: --all shows them" in text
    assert "traceOn" in metaq("broker", "config", "show", "b", "--all")[1]


def test_hot_options_are_set_all_or_none(server: EmbeddedBroker, metaq: Metaq) -> None:
    """In force, saved beside the data, and shown as what they are; after a restart too."""
    code, text = metaq("broker", "config", "set", "b", "deleteWhen=05;17", "max_message_size=1000")
    assert (code, text) == (
        0, "b: deleteWhen=05;17 (it was 04)\nb: maxMessageSize=1000 (it was 4194304)\n",
    )  # fmt: skip
    code, text = metaq("broker", "config", "set", "b", "maxMessageSize=1000", "--json")
    assert json.loads(text) == [
        {"server": "b", "key": "maxMessageSize", "before": "1000", "after": "1000", "at_once": True}
    ]
    code, text = metaq("send", "t", "x" * 1001)
    assert (code, "1000" in text) == (1, True), "it is in force"
    shown = options_of(metaq("broker", "config", "show", "b", "--json")[1])
    overlay = server.data / "config" / "metaqOptions.json"
    assert (shown["deleteWhen"]["origin"], shown["deleteWhen"]["place"]) == ("wire", str(overlay))
    assert json.loads(overlay.read_text())["options"] == {"deleteWhen": "05;17", "maxMessageSize": "1000"}
    for wrong, says in {
        "maxMessageSize=x": "need a whole number",
        "maxMessageSiz=5": "the nearest is maxMessageSize",
        "sendMessageThreadPoolNums=16": "b: sendMessageThreadPoolNums has no effect here: one event loop",
        "listenPort=5": "listenPort needs a restart",
        "traceOn=maybe": "need true or false",
        "deleteWhen=`reboot`": "need hours",
        "brokerPermission=9": "the largest allowed value is 7",
        "logLevel=5\nlistenPort": "control character",
        "logLevel=a\0b": "control character",
        "regionId=\N{LINE SEPARATOR}": "control character",
    }.items():
        code, text = metaq("broker", "config", "set", "b", "traceOn=false", wrong)
        assert code == 2, text
        assert says in text or "is given twice" in text
        assert "Traceback" not in text
        assert options_of(metaq("broker", "config", "show", "b", "traceOn", "--json")[1])["traceOn"]["value"] == "true"
    code, text = metaq("broker", "config", "set", "b", f"deleteWhen={'04;' * 1_000_000}04")
    assert code == 2
    assert len(text) < 1000
    server.stop()
    server.start()
    assert options_of(metaq("broker", "config", "show", "b", "--json")[1])["maxMessageSize"]["value"] == "1000"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("show", "nobody"), 3, "no broker 'nobody' is registered"),
        (("set", "nobody", "traceOn=true"), 3, "no broker 'nobody' is registered"),
        (("show", "b", "trace"), 2, "b has no option 'trace'"),
        (("set", "b", "traceOn"), 2, "'traceOn' is not KEY=VALUE"),
        (("set", "b", "traceOn=true", "traceOn=false"), 2, "traceOn is given twice"),
        (("set", "b", "=1"), 2, "is not KEY=VALUE"),
        (("set", "b", "k" * 1000 + "=1"), 2, "b: there is no option"),
        (("set", "b", "k" * 100_000 + "=1"), 2, "the options take 100003 bytes, allowed are 65536"),
        (("set", "b", "trace On=1"), 2, "'trace On' is no name of an option"),
        (("show", "127.0.0.1:1"), 1, "127.0.0.1:1"),
        (("diff", "b"), 2, "at least two brokers"),
        (("diff", "b", "nobody"), 3, "no broker 'nobody'"),
        (("diff", "--cluster", "nowhere"), 3, "no broker of cluster nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(metaq: Metaq, words: tuple[str, ...], code: int, says: str) -> None:
    got, text = metaq("broker", "config", *words)
    assert (got, says in text) == (code, True), text[:500]
    assert len(text) < 1000


def test_name_servers_are_shown_and_set_as_well(server: EmbeddedBroker, metaq: Metaq) -> None:
    code, text = metaq("namesrv", "config", "set", "logLevels=metaq.namesrv=debug")
    assert (code, text) == (0, f'name server {server.namesrv}: logLevels=metaq.namesrv=debug (it was "")\n')
    found = options_of(metaq("namesrv", "config", "show", "--json")[1])
    assert found["logLevels"]["origin"] == "wire"
    assert found["kvConfigPath"]["changes"] == "restart"
    assert found["listenPort"]["value"] == server.namesrv.rpartition(":")[2]
    assert "fileReservedTime" not in found
    code, text = metaq("namesrv", "config", "set", "kvConfigPath=/etc/passwd")
    assert (code, "kvConfigPath needs a restart" in text) == (2, True)
    code, text = metaq("namesrv", "config", "diff")
    assert (code, "there is no other" in text) == (0, True)
    code, text = metaq("namesrv", "config", "show", "--at", "127.0.0.1:1")
    assert code == 1


def test_brokers_of_a_cluster_are_compared(server: EmbeddedBroker, metaq: Metaq, tmp_path: pathlib.Path) -> None:
    """What differs is shown; what is each broker's own on request. The other one has its options from a file."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "fileReservedTime=50\nregionId=elsewhere\nbindAddress=127.0.0.1\nvipPortEnable=false\nenablePropertyFilter=true\n"
    )
    other = metaq_command(
        "broker", "-c", str(conf), "-n", server.namesrv, "--port", "0", "--name", "c", "--data", str(tmp_path / "d")
    )
    with process(*other, "-o", "mappedFileSizeCommitLog=1048576") as child:
        address = read_line(child, "ready broker").split()[-1]
        shown = options_of(metaq("broker", "config", "show", "c", "--json")[1])
        assert (shown["regionId"]["origin"], shown["regionId"]["place"]) == ("file", str(conf))
        code, text = metaq("broker", "config", "diff", "--cluster", "DefaultCluster", "--json")
        assert code == 0, text
        found = json.loads(text)
        assert found["servers"] == ["b", "c"]
        assert found["different"]["regionId"] == {"b": "DefaultRegion", "c": "elsewhere"}
        assert "fileReservedTime" not in found["different"], "equal values from different places are equal"
        assert set(found["own"]) >= {"brokerName", "listenPort", "storePathRootDir"}
        code, text = metaq("broker", "config", "diff", "b", address)
        assert ["regionId", "DefaultRegion", "elsewhere"] in [line.split() for line in text.splitlines()]
        assert "more differ, as they are meant to (names, addresses, folders): --all shows them" in text
        assert "listenPort" not in text
        assert "listenPort" in metaq("broker", "config", "diff", "--all")[1]
        conf.write_text(conf.read_text() + "brokerClusterName=Other\n")
        child.send_signal(signal.SIGHUP)
        eventually(lambda: "restart, then Other" in metaq("broker", "config", "show", "c")[1])
        waiting = options_of(metaq("broker", "config", "show", "c", "brokerClusterName", "--json")[1])[
            "brokerClusterName"
        ]
        assert (waiting["value"], waiting["origin"], waiting["waiting"]) == ("DefaultCluster", "default", "Other")
        child.terminate()
        assert child.wait(PATIENCE) == 0
    code, text = metaq("broker", "config", "diff", "b", address)
    assert code == 1
    assert address in text


@pytest.mark.parametrize("text", ["{", "[]", '{"options": 5}', "\0" * 4096])
def test_a_damaged_file_of_set_options_stops_the_start_in_a_sentence(tmp_path: pathlib.Path, text: str) -> None:
    """With its name and what to do: passing over it would bring back what an administrator has changed."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "metaqOptions.json").write_text(text)
    with process(
        *metaq_command("broker", "--port", "0", "--data", str(tmp_path), "-o", "mappedFileSizeCommitLog=65536")
    ) as child:
        assert child.wait(PATIENCE) == 2
        said = child.stderr.read()
    assert "metaqOptions.json cannot be read" in said.splitlines()[-1]
    assert "Traceback" not in said
