"""Files that people or other programs write: ACL, configuration in three dialects, saved tables, journals.

A new kind of file, such as `tls.properties`: one `parser` in `TARGETS`.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from fuzz.mutation import mutated
from fuzz.target import Feed, Target, parser
from fuzz.targets.bodies import some_bodies

from metaq.app.configuration import load
from metaq.errors import BadRequest, ConfigError
from metaq.saved_file import TableFile
from metaq.store.journalled_file import JournalledFile
from metaq.wire import files, journal
from metaq.wire.acl.reading import read, read_credentials
from metaq.wire.acl.writing import rewrite, write

# -- access control

ACL = b"""globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA=DENY
- accessKey: rocketmq2 # the administrator
  secretKey: "12345678"
  whiteRemoteAddress: 192.168.1.*
  admin: true
dataVersion:
- counter: 3
  timestamp: 1700000000000
"""
ACL_WORDS = (b"- accessKey: ", b"  secretKey: ", b"topicPerms:\n", b"  - a=PUB|SUB\n", b"&a ", b"*a", b"!!python/object ", b"<<: ", b"? ", b"| \n", b">-\n", b"{", b"[", b"%TAG", b"---\n", b"...\n", b"#", b"\t", b"0x10", b"1e3", b"2020-01-01", b"{1,2-5}", b"10.0.0.1-10", b"fe80::*")  # fmt: skip


def acl(data: bytes) -> None:
    """A file of accounts; written, and rewritten with a change, it is read as it was."""
    with contextlib.suppress(ConfigError):
        read_credentials(data, "tools.yml")
    found = read(data, "plain_acl.yml")
    assert read(write(found), "written") == found
    fewer = type(found)(found.white, found.accounts[1:], found.version)
    for wanted in (found, fewer):
        assert read(rewrite(data, wanted, "plain_acl.yml").data, "rewritten") == wanted


def some_acl() -> list[bytes]:
    return [
        ACL, ACL.replace(b"\n", b"\r\n"), b"accounts: [{accessKey: RocketMQ, secretKey: '12345678'}]\n", b"accounts:\n", b"", b"accessKey: RocketMQ\nsecretKey: 12345678\n",
        b"globalWhiteRemoteAddresses:\n- '*'\n- 10.1.1-5.*\n- 10.10.{1,2,3}.1\n- 1050::0005:0600:300c:1\n", b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
    ]  # fmt: skip


# -- configuration


def configuration(name: str, serving: tuple[str, ...] = ("broker", "store")) -> Callable[[], Any]:
    """Opens a feed that writes a file of this name and loads it."""

    @contextlib.contextmanager
    def opened() -> Iterator[Feed]:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name

            def feed(data: bytes) -> None:
                path.write_bytes(data)
                found = load(str(path), serving=serving, environment={}, insecure=bool(len(data) & 1))
                repr(found)

            yield feed

    return opened


BROKER_CONF = b"""brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
listenPort=10911
messageDelayLevel=1s 5s 10s 30s 1m 2m 3m
# a comment
brokerIP1 : 127.0.0.1
mapedFileSizeCommitLog=1073741824
storePathRootDir=/tmp/a\\u0062c \\
  d
aclEnable=false
"""
SERVER_INI = b"""[system]
brokerId=7
numPartitions=3
serverPort=8123
hostName=127.0.0.1
unflushThreshold=1000
maxSegmentSize=1024*1024*(1+2)
deletePolicy=delete,168
[zookeeper]
zk.zkEnable=false
zk.zkConnect=localhost:2181
[topic=test]
numPartitions=5
group.g=com.Filter
[topic=wild-*]
stat=true
deleteWhen=0 0 6,18 * * ?
"""
METAQ_TOML = b"""[broker]
brokerName = "broker-a"
listenPort = 10911
[store]
storePathRootDir = "/tmp/x"
fileReservedTime = 48
[metaq1]
enable = true
brokerId = 7
numPartitions = 3
[metaq1.topics.test]
numPartitions = 5
[namesrv]
listenPort = 9876
"""


def config(name: str, file: str, seeds: tuple[bytes, ...], words: tuple[bytes, ...]) -> Target:
    return Target(name, configuration(file), lambda: seeds, (ConfigError,), None, words)


# -- saved tables and journals

FORMATS = (files.TOPICS, files.GROUPS, files.DELETED_TOPICS, files.GENERATIONS, files.KV_CONFIG, files.CONSUMER_OFFSETS, files.DELAY_OFFSETS, files.CONSUMER_FILTERS, files.LEADERSHIP)  # fmt: skip


def tables(data: bytes) -> None:
    """A text as each of the saved tables; what is read is written, and read again as it was."""
    text, refused = data.decode("utf-8", "replace"), list[BadRequest]()
    for form in FORMATS:
        try:
            found: Any = form.parse(text)
        except BadRequest as error:
            refused.append(error)
            continue
        if hasattr(form, "text"):
            written = form.text(found)
        else:
            written = form.whole({key: form.entry(key, value) for key, value in found[1].items()}, found[0])
        assert form.parse(written) == found, form.name
    if len(refused) == len(FORMATS):
        raise refused[0]


def some_tables() -> list[bytes]:
    return [
        *some_bodies()[1:], b'{"deletedTopics":{"T":5}}', b'{"generations":{"T":5}}', b'{"offsetTable":{1:5},"metaqLogOffset":7}',
        b'{"role":"master","epochs":[{"number":1,"start":0}]}',
    ]  # fmt: skip


def mended_line(chance: Random, data: bytes) -> bytes:
    """A journal with changed texts behind right checksums."""
    made = []
    for one in data.split(b"\n"):
        text = mutated(chance, one[9:], [data], (), 4096).replace(b"\n", b"") if chance.random() < 0.5 else one[9:]
        made.append(b"%08x %b" % (zlib.crc32(text), text))
    return b"\n".join(made[: -1 if chance.random() < 0.8 else None]) + b"\n" * (chance.random() < 0.8)


def lines(data: bytes) -> None:
    """A journal's lines, which written again are the same bytes up to the torn ones."""
    found = journal.lines(data)
    assert b"".join(map(journal.line, found.texts)) == data[: len(data) - found.torn_bytes]


CHANGES = ['{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{}}', '{"dataVersion":{"counter":2,"timestamp":2},"topicConfigTable":{"T":{"topicName":"T","perm":6}}}', '{"dataVersion":{"counter":3,"timestamp":2},"topicConfigTable":{},"removed":["T"]}']  # fmt: skip


def some_journals() -> list[bytes]:
    whole = b"".join(map(journal.line, CHANGES))
    return [whole, whole[:-5], whole + bytes(20), journal.line(CHANGES[0]), b"", whole.replace(b"2", b"3", 1)]


@contextlib.contextmanager
def journalled() -> Iterator[Feed]:
    """A table's file with the journal beside it, as a start reads them."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def feed(data: bytes) -> None:
            (folder / "topics.json").write_text(CHANGES[0])
            (folder / "topics.json.journal.1").write_bytes(data)
            file = JournalledFile(folder / "topics.json")
            TableFile(file, files.TOPICS, files.TOPICS).read(None)

        yield feed


PROPERTY_WORDS = (
    b"=",
    b":",
    b"\\\n",
    b"\\u0041",
    b"#",
    b"!",
    b"true",
    b"brokerRole=SLAVE",
    b"aclEnable=true",
    b"groupCommitEnable=true",
    b"1024*1024",
)
INI_WORDS = (
    b"[system]",
    b"[topic=a]",
    b"[zookeeper]",
    b"=",
    b";",
    b"*",
    b"/0",
    b"%",
    b"((",
    b"zk.zkConnect=",
    b"deletePolicy=",
    b"group.",
)
TOML_WORDS = (
    b"[broker]",
    b"[metaq1.topics.a]",
    b"[[a]]",
    b"=",
    b'"""',
    b"'''",
    b"1979-05-27T07:32:00Z",
    b"inf",
    b"nan",
    b"0x",
    b"{a=1}",
    b"[1,2]",
)

TARGETS = [
    parser("acl", acl, some_acl, ConfigError, words=ACL_WORDS),
    config("broker-conf", "broker.conf", (BROKER_CONF, b"a", b""), PROPERTY_WORDS),
    config("server-ini", "server.ini", (SERVER_INI, b"[system]\nbrokerId=1"), INI_WORDS),
    config("metaq-toml", "metaq.toml", (METAQ_TOML, b"[broker]\n"), TOML_WORDS),
    parser("tables", tables, some_tables, BadRequest),
    parser("journal", lines, some_journals, BadRequest, mutate=mended_line),
    Target("journalled", journalled, some_journals, (ConfigError, BadRequest), mended_line),
]
