"""Filters of MetaQ 1.x groups in a broker of a server.ini: loaded from appClassPath, checked, run in processes of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest

from tests.interop.metaq1 import OurServer, TextConnection
from tests.support import PATIENCE, environment, eventually, metaq_command

pytestmark = pytest.mark.slow

FILTERS = """\
import time

class Odd:
    made = 0

    def __init__(self):
        Odd.made += 1
        if Odd.made > 1:
            raise RuntimeError("one object for a class")

    def accept(self, group, message):
        if message.body == b"raise":
            raise ValueError("not that one")
        if message.body == b"sleep":
            time.sleep(600)
        assert (group, message.topic, message.message_id > 0) == ("odd", "test", True)
        return message.body[-1] % 2 == 1


class Attribute:
    def accept(self, group, message):
        return message.attribute == "blue" and message.body == b"payload"


def not_red(group, message):
    return message.attribute != "red"


number = 5
"""


class Server(OurServer):
    options = ("filterTimeLimit=2000",)


@pytest.fixture
def server(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "shop_filters.py").write_text(FILTERS)
    topics = {
        "test": {
            "group.odd": "shop_filters:Odd", "group.blue": "shop_filters:Attribute", "group.not_red": "shop_filters:not_red",
        }
    }  # fmt: skip
    made = Server(tmp_path / "server", topics=topics, system={"appClassPath": code})
    yield made
    made.kill()


def got(text, group):
    """Payloads of all that the group gets, read as a client reads."""
    return got_from(text, group, 0)[0]


def got_from(text, group, position):
    """Payloads of what the group gets from a position on, and where that ends."""
    found = []
    while True:
        answer = text.ask(f"get test {group} 0 {position} 1048576 1")
        if answer.code == 404:
            return found, position
        if answer.code == 301:
            assert int(answer.body) > position
            position = int(answer.body)
            continue
        assert answer.code is None, answer
        at = 0
        while at < len(answer.body):
            size = int.from_bytes(answer.body[at : at + 4], "big")
            found.append(answer.body[at + 20 : at + 20 + size])
            at += 20 + size
        position += len(answer.body)


def put(text, *bodies, flag=0):
    for body in bodies:
        assert text.ask(f"put test 0 {len(body)} {flag} 1", body).code == 200


def test_each_group_gets_what_its_filter_accepts(server):
    """A class, of which one object is made, with the attribute or without, a function; what raises is rejected, what hangs is
    handed out; a group without a filter gets everything."""
    with server, TextConnection(server.text) as text:
        bodies = [b"m%d" % number for number in range(20)]
        put(text, *bodies, b"raise")
        odd, position = got_from(text, "odd", 0)
        assert odd == bodies[1::2]
        put(text, b"sleep", b"m21")  # every get that reaches it is held up by it
        assert got_from(text, "odd", position)[0] == [b"sleep", b"m21"]
        blue, red = (len(word).to_bytes(4, "big") + word + b"payload" for word in (b"blue", b"red"))
        put(text, blue, red, flag=1)
        assert got(text, "blue") == [blue]
        assert got(text, "not_red") == [*bodies, b"raise", b"sleep", b"m21", blue]
        assert len(got(text, "others")) == 25
        assert "not that one" in server.log.read_text()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop_filters:Missing", "AttributeError"), ("no_such_module:Odd", "ModuleNotFoundError"),
        ("shop_filters:number", "no class with accept"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_loaded_stops_the_start_with_its_line(server, name, why):
    server.configure({"other": {}, "test": {"numPartitions": 1, "group.odd": name}})
    line = next(number for number, line in enumerate(server.ini.read_text().splitlines(), 1) if "group.odd" in line)
    done = subprocess.run(
        metaq_command("broker", "-c", str(server.ini), "--port", "0"), capture_output=True, text=True,
        timeout=PATIENCE, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"server.ini, line {line}: the filter {name} cannot be loaded: " in done.stderr
    assert why in done.stderr


def test_a_reload_loads_filters_anew_or_changes_nothing(server, tmp_path):
    """Their code, too. A name that cannot be loaded leaves the old ones in force, and is said with its line."""
    with server, TextConnection(server.text) as text:
        put(text, b"m0", b"m1", b"m2")
        assert got(text, "odd") == [b"m1"]
        server.configure({"test": {"group.odd": "shop_filters:Missing"}})
        os.kill(server._process._child.pid, signal.SIGHUP)
        eventually(lambda: "the filter shop_filters:Missing cannot be loaded" in server.log.read_text())
        assert got(text, "odd") == [b"m1"]
        code = pathlib.Path(server.system["appClassPath"]) / "shop_filters.py"
        code.write_text(FILTERS.replace("% 2 == 1", "% 2 == 0"))
        server.configure({"test": {"group.odd": "shop_filters:Odd"}})
        os.kill(server._process._child.pid, signal.SIGHUP)
        eventually(lambda: got(text, "odd") == [b"m0", b"m2"])
