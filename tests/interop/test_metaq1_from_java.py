"""docs/metaq1_from_java.md: its programs do in both languages what the page says, and what its left columns name is in Java's jars."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.metaq1 import MetaClientConfig, MetaMessageSessionFactory, ZKConfig
from metaq.testing import eventually
from tests.interop import maven
from tests.interop.metaq1 import CLIENT, OriginalServer, OurServer, TextServer, Zookeeper, java_command
from tests.metaq1.stored import payloads
from tests.support import PATIENCE, ROOT, environment

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("metaq1-from-java")]

PAGE = (ROOT / "docs" / "metaq1_from_java.md").read_text()
SERVERS = {"original": OriginalServer, "ours": OurServer}
TOPICS = ("orders", "stock")
BROKER = "com.taobao.metamorphosis."


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, zookeeper: Zookeeper, tmp_path: Path) -> Iterator[TextServer]:
    root = f"/page-{request.param}"
    made = SERVERS[request.param](
        tmp_path / "server", zookeeper, {topic: {"numPartitions": 2} for topic in TOPICS}, registry={"zk.zkRoot": root}
    )
    with made as running:
        with MetaMessageSessionFactory(
            MetaClientConfig(zk_config=ZKConfig(zk_connect=zookeeper.address, zk_root=root))
        ) as f:
            eventually(lambda: all(len(f.get_partitions(topic)) == 2 for topic in TOPICS), what="it is registered")
        yield running


def run(command: list[str], **more: str) -> list[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment(**more)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_programs_of_the_page(server: TextServer, zookeeper: Zookeeper, tmp_path: Path) -> None:
    """The same program in Java and in Python: what one has billed is consumed for the other, which is in the group, too."""
    root = server.registry["zk.zkRoot"]
    [java] = blocks("java")
    [program, with_asyncio, with_storage] = blocks("python")
    for name, block in (("first", program), ("second", with_asyncio), ("third", with_storage)):
        assert block.count('ZKConfig(zk_connect="localhost:2181")') == 1
        text = block.replace('"localhost:2181"', f'"{zookeeper.address}", zk_root="{root}"')
        (tmp_path / f"{name}.py").write_text(text)
    folder = tmp_path / "java"
    folder.mkdir()
    text = java.replace('"localhost:2181";', f'"{zookeeper.address}"; zkConfig.zkRoot = "{root}";')
    assert root in text
    (folder / "Orders.java").write_text(text)
    run([maven.java(compiler=True), "-d", str(folder), "-cp", f"{maven.jars(*CLIENT)}/*", str(folder / "Orders.java")])

    wanted = ["sent to partition 0-1", "billed lamp"]
    assert run([*java_command(folder, CLIENT, level="WARN"), "Orders"]) == wanted
    assert run([sys.executable, str(tmp_path / "first.py")], HOME=str(tmp_path)) == wanted
    assert payloads(server.text, "orders", 2) == [[], [b"lamp", b"lamp"]]
    lines = run([sys.executable, str(tmp_path / "second.py")], HOME=str(tmp_path))
    assert lines == ["sent 3", "billed 3"]
    written, saved = run([sys.executable, str(tmp_path / "third.py")], HOME=str(tmp_path))
    assert written == "written: [b'3 lamps', b'1 desk']"
    assert re.fullmatch(r"saved at last: 0-0 at \d+", saved)


def tables(header: str) -> list[str]:
    found = re.findall(rf"^\| {header} \| Python \|\n\|---\|---\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    return [
        span
        for table in found
        for line in table.splitlines()
        for span in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]


@pytest.fixture(scope="module")
def classes() -> dict[str, str]:
    """Simple name → full name of the client's classes, the interface last where a class of its package has the same name."""
    found = {"XAResource": "javax.transaction.xa.XAResource", "Xid": "javax.transaction.xa.Xid"}
    found["XAException"] = "javax.transaction.xa.XAException"
    for jar in sorted(maven.jars(*CLIENT).glob("metamorphosis-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            names = [
                name.removesuffix(".class").replace("/", ".") for name in archive.namelist() if name.endswith(".class")
            ]
        for name in sorted(names):
            if name.startswith(BROKER):
                # `consumer.MessageIterator` is what the client returns, and `client.consumer.MessageIterator` nobody.
                found.setdefault(re.split(r"[.$]", name)[-1], name)
    return found


def members(names: list[str]) -> dict[str, str]:
    """Full name of a class → what javap tells of it and of what it extends."""
    javap = str(Path(maven.java(compiler=True)).with_name("javap"))
    text: dict[str, str] = {}
    waiting = set(names)
    while waiting:
        out = "\n".join(run([javap, "-public", "-constants", "-cp", f"{maven.jars(*CLIENT)}/*", *sorted(waiting)]))
        for part in re.findall(
            r"^(?:public |final |abstract )*(?:class|interface) .*?^}", out, re.MULTILINE | re.DOTALL
        ):
            head = re.match(r".*?(?:class|interface) ([\w.$]+)", part)
            assert head is not None
            text[head[1]] = part
        above = {
            name
            for part in text.values()
            for name in re.findall(r"com\.taobao[\w.$]+", part.splitlines()[0].partition(" extends ")[2])
        }
        waiting = above - set(text)
    return {
        name: "".join(part for other, part in text.items() if other == name or other in text[name].splitlines()[0])
        for name in names
    }


WITHOUT_A_JAR = {"HttpClientConfig", "SimpleHttpConsumer", "SimpleHttpProducer"}
"""Classes of the HTTP client, which was published as source alone."""


def test_what_the_left_columns_name_is_in_java(classes: dict[str, str]) -> None:
    """Classes, methods and fields of the client 1.4.6.2; how many arguments a method has."""
    spans = tables("Java")
    assert len(spans) > 120
    parsed = [re.fullmatch(r"(\w+)(?:\.(\w+))?(?:\((.*)\))?", span) for span in spans]
    assert all(parsed), [span for span, one in zip(spans, parsed, strict=True) if one is None]
    named = {one[1] for one in parsed if one}
    assert named <= set(classes) | WITHOUT_A_JAR, named - set(classes)
    known = members([classes[name] for name in sorted(named - WITHOUT_A_JAR)])
    missing = []
    for span, one in zip(spans, parsed, strict=True):
        assert one is not None
        kind, member, arguments = one.groups()
        if kind in WITHOUT_A_JAR:
            continue
        text = known[classes[kind]]
        if member is None and arguments is None:
            continue
        if arguments is None:
            if not re.search(rf"\b{member}\b(?!\()", text):
                missing.append(span)
            continue
        count = len(arguments.split(", ")) if arguments else 0
        called = classes[kind] if member is None else member
        given = re.findall(rf"[ .]{re.escape(called)}\(([^)]*)\)", text)
        if count not in {len(one.split(", ")) if one else 0 for one in given}:
            missing.append(span)
    assert missing == []


def test_properties_of_the_page_are_those_of_java() -> None:
    """Each stands in a class of the client, or of what it is built on."""
    properties = tables("Java property")
    assert len(properties) > 8
    code = b""
    for jar in maven.jars(*CLIENT).glob("*.jar"):
        if jar.name.startswith(("metamorphosis", "gecko")):
            with zipfile.ZipFile(jar) as archive:
                code += b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".class"))
    assert [name for name in properties if name.encode() not in code] == []
