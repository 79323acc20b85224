"""`server.ini`, `server.properties` and `topic.ini` of MetaQ 1.x: what they say, and which line is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.app.config_files.arithmetic import calculate
from metaq.app.config_files.server_ini import is_server_ini, read_server_ini
from metaq.app.config_files.template import template
from metaq.app.configuration import load
from metaq.errors import ConfigError
from metaq.model.metaq1.settings import DeletePolicy
from metaq.options import GIB, MIB, Metaq1Options

SERVER_INI = """\
;;
;; the file of a broker
;;
[system]
; number of this broker, from 0 to 1023
brokerId=7
;; what clients are told; found out when it is empty
hostName=
dashboardHttpPort=8120
numPartitions=1
serverPort=8123
dataPath=
dataLogPath=
unflushThreshold=0
unflushInterval=10000
maxSegmentSize = 1024 * 1024 * 64
maxTransferSize=1024*1024
deletePolicy=
deleteWhen=0 0 6,18 * * ?
maxCheckpoints=3
checkpointInterval=60*60*1000
maxTxTimeoutTimerCapacity=30000
maxTxTimeoutInSeconds=60
flushTxLogAtCommit=1
stat=true
updateConsumerOffsets=true
loadMessageStoresInParallel=false

[zookeeper]
zk.zkEnable=true
zk.zkConnect=localhost:2181
zk.zkSessionTimeoutMs=30000
zk.zkConnectionTimeoutMs=30000
zk.zkSyncTimeMs=5000
;diamondZKDataId=metamorphosis.zkConfig
;diamondZKGroup=DEFAULT_GROUP

[topic=test]

;; another
[topic=meta-test]
numPartitions=
stat=
"""
"""The shape of the file that 1.x's server comes with."""

SMALLEST = "[system]\nbrokerId=0\n[zookeeper]\nzk.zkEnable=false\n[topic=t]\n"


def write(tmp_path, text, name="server.ini"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_the_shipped_shape_is_read_as_it_stands(tmp_path):
    """Comments of both kinds, empty values, calculations, commented Diamond keys."""
    read = read_server_ini(write(tmp_path, SERVER_INI))
    options = Metaq1Options.read(read.values)[0]
    assert options == Metaq1Options(
        broker_id=7,
        unflush_threshold=0,
        max_segment_size=64 * MIB,
        stat=True,
        update_consumer_offsets=True,
        zk_connect="localhost:2181",
    )
    assert "host_name" not in read.values
    assert [section.name for section in read.sections] == ["test", "meta-test"]
    assert all(not section.said for section in read.sections)
    assert read.text == SERVER_INI.encode()
    assert read.warnings == ()


def test_a_broker_started_from_it_alone_has_one_identity(tmp_path):
    """Its number names it, its paths and sizes are the store's, and it listens as an original does."""
    text = SERVER_INI.replace("dataPath=", f"dataPath={tmp_path}/data", 1).replace("hostName=", "hostName=10.1.2.3")
    text = text.replace("dataLogPath=", f"dataLogPath={tmp_path}/log").replace(
        "deletePolicy=", "deletePolicy=delete,100m"
    )
    got = load(write(tmp_path, text), serving=("broker", "store", "metaq1"), defaults={"store": {}}, environment={})
    assert (got.broker.broker_name, got.broker.broker_id, got.broker.broker_ip1) == ("broker-7", 0, "10.1.2.3")
    assert (got.broker.bind_address, got.broker.vip_port_enable, got.broker.enable_property_filter) == (
        "0.0.0.0",
        False,
        True,
    )
    assert got.store.store_path_root_dir == f"{tmp_path}/data"
    assert got.store.store_path_commit_log == f"{tmp_path}/log/commitlog"
    assert got.store.mapped_file_size_commit_log == 64 * MIB
    assert (got.store.file_reserved_time, got.store.flush_interval_commit_log) == (2, 10_000)
    assert got.metaq1.enable
    assert got.metaq1.data_path == got.store.store_path_root_dir
    assert got.server_ini == text.encode()
    assert any("without access control" in warning for warning in got.warnings)


def test_what_is_said_for_broker_and_store_beats_what_follows(tmp_path):
    """Flags and -o come before the file, in whose words ever."""
    path = write(tmp_path, SERVER_INI)
    got = load(
        path,
        serving=("broker", "store", "metaq1"),
        flags={"broker": {"broker_name": "named"}, "store": {"store_path_root_dir": "/elsewhere"}},
        settings=[
            "numPartitions=3",
            "zk.zkRoot=/other",
            "brokerId=8",
            "store.flushIntervalCommitLog=7",
            "listenPort=1",
        ],
        environment={},
    )
    assert (got.broker.broker_name, got.broker.listen_port) == ("named", 1)
    assert (got.store.store_path_root_dir, got.metaq1.data_path) == ("/elsewhere", "/elsewhere")
    assert (got.metaq1.num_partitions, got.metaq1.zk_root, got.metaq1.broker_id) == (3, "/other", 8)
    assert got.store.flush_interval_commit_log == 7
    assert got.rules.settings("test").num_partitions == 3


def test_the_size_of_log_files_is_the_folders_unless_the_file_says_one(tmp_path):
    """maxSegmentSize is 1 GiB where nothing is said and nothing is there."""
    log = tmp_path / "data" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020}").write_bytes(bytes(1 << 20))
    text = f"[system]\nbrokerId=0\ndataPath={tmp_path}/data\n[zookeeper]\nzk.zkEnable=false\n[topic=t]\n"
    path = write(tmp_path, text)

    def size():
        serving = ("broker", "store", "metaq1")
        return load(path, serving=serving, defaults={"store": {}}, environment={}).store.mapped_file_size_commit_log

    assert size() == MIB
    write(tmp_path, text.replace("brokerId=0", "brokerId=0\nmaxSegmentSize=2*1024*1024"))
    assert size() == 2 * MIB  # and opening the folder says that its files have another
    write(tmp_path, text.replace(f"{tmp_path}/data", f"{tmp_path}/new"))
    assert size() == GIB


def test_topics_say_only_what_is_different(tmp_path):
    """What a section leaves empty is [system]'s, a wildcard admits topics that get [system]'s, topic.ini adds sections."""
    (tmp_path / "topic.ini").write_text("[topic=beside]\nacceptPublish=false\n[topic=b]\nnumPartitions=9\n")
    text = SMALLEST.replace("brokerId=0", "brokerId=0\nnumPartitions=2\nstat=true\nunflushInterval=500") + (
        "[topic=a]\nnumPartitions = 2*3\nunflushThreshold=1\nunflushInterval=200\ndeletePolicy=archive,72,true\n"
        "deleteWhen=0 30 * * * ?\nacceptSubscribe=false\nstat=\ngroup.g=filters.orders:Paid\n"
        "[topic = b]\ngroup.some_group=colons:Too\nstat=false\n[topic=log-*]\nnumPartitions=7\n"
    )
    got = load(write(tmp_path, text), serving=("broker", "store", "metaq1"), environment={})
    a, b, beside = (got.rules.settings(name) for name in ("a", "b", "beside"))
    assert (a.num_partitions, a.unflush_threshold, a.unflush_interval_ms) == (6, 1, 200)
    assert a.delete_policy == DeletePolicy.parse("archive,72,true")
    assert a.delete_when == "0 30 * * * ?"
    assert (a.accept_publish, a.accept_subscribe, a.stat, a.filters) == (
        True,
        False,
        True,
        {"g": "filters.orders:Paid"},
    )
    assert (b.num_partitions, b.stat, b.filters) == (9, False, {"some_group": "colons:Too"})
    assert (beside.accept_publish, beside.num_partitions) == (False, 2)
    assert got.rules.settings("log-1") == got.rules.default
    assert got.rules.accepts("log-1")
    assert not got.rules.accepts("other")
    assert got.store.flush_interval_commit_log == 200  # there is one log: the most impatient topic decides
    assert any("numPartitions of [topic=log-*] is passed over" in warning for warning in got.warnings)
    assert any("[topic=b] stands twice" in warning for warning in got.warnings)
    assert got.server_ini.endswith(b"[topic=b]\nnumPartitions=9\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("brokrId=1", r"line 3: there is no option 'brokrId'; the nearest is brokerId"),
        ("nonsense", r"line 3: 'nonsense' is no key=value"),
        ("=5", r"line 3: '=5' is no key=value"),
        ("brokerId=1024", r"line 3: brokerId=1024: the largest allowed value is 1023"),
        ("brokerId=-1", r"line 3: brokerId=-1: the smallest allowed value is 0"),
        ("brokerId=one", r"line 3: brokerId='one': need a whole number"),
        ("maxSegmentSize=1024**9", r"line 3: maxSegmentSize=1024\*\*9: it is no calculation"),
        ("maxSegmentSize=1/0", r"line 3: maxSegmentSize=1/0: it divides by zero"),
        ("maxSegmentSize=9999999999*9999999999", r"line 3: .*beyond 64 bits"),
        ("maxSegmentSize=1024", r"line 3: maxSegmentSize=1024: the smallest allowed value is 65536"),
        ("stat=maybe", r"line 3: stat='maybe': need true or false"),
        ("flushTxLogAtCommit=3", r"line 3: flushTxLogAtCommit=3: the largest allowed value is 2"),
        ("deletePolicy=167,archive,true", r"line 3: deletePolicy=167,archive,true: .*archive,167,true"),
        ("deleteWhen=0 0 6 31 2 ?", r"line 3: .*never comes to be due"),
        ("deleteWhen=0 0 6", r"line 3: .*has 3 words"),
        ("zk.zkRoot=/meta", r"line 3: zk.zkRoot belongs in \[zookeeper\]"),
        ("[zookeeper]\nzk.zkConnect=localhost:", r"line 4: zk.zkConnect=localhost:: need host:port"),
        ("[zookeeper]\nzk.zkConnect=a:1,,b:2", r"line 4: zk.zkConnect"),
        ("[zookeeper]\nzk.zkRoot=/a//b", r"line 4: zk.zkRoot=/a//b: need a path"),
        ("[zookeeper]\nzk.zkRoot=/a b", r"line 4: zk.zkRoot"),
        ("enable=false", r"line 3: there is no option 'enable'"),
        ("[zokeeper]", r"line 3: \[zokeeper\] is no section; the nearest is zookeeper"),
        ("[topic=a", r"line 3: '\[topic=a' begins a section and has no \]"),
        ("[topic=a/b]", r"line 3: .*a/b"),
        ("[topic=]", r"line 3: "),
        ("[topic=t]\nnumPartition=3", r"line 4: a topic has no option 'numPartition'; the nearest is numPartitions"),
        ("[topic=t]\nserverPort=3", r"line 4: a topic has no option 'serverPort'"),
        ("[topic=t]\nnumPartitions=0", r"line 4: numPartitions=0: the smallest"),
        ("[topic=t]\nnumPartitions=1*", r"line 4: .*it is no calculation"),
        ("[topic=t]\ngroup.g=com.example.OnlyPaid", r"line 4: .*Java class cannot be loaded"),
        ("[topic=t]\ngroup.=a:b", r"line 4: a topic has no option 'group.'"),
        ("[topic=t]\ndeleteWhen=never", r"line 4: "),
    ],
)  # fmt: skip
def test_a_wrong_line_stops_the_start_with_its_number(tmp_path, line, says):
    """And with the nearest name, where there is one."""
    with pytest.raises(ConfigError, match=r"server\.ini, " + says):
        read_server_ini(write(tmp_path, SMALLEST.replace("[zookeeper]", f"{line}\n[zookeeper]")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMALLEST.replace("brokerId=0", ""), "has no brokerId"),
        (SMALLEST.replace("brokerId=0", "brokerId="), "has no brokerId"),
        (SMALLEST.replace("zk.zkEnable=false", ""), "has no zk.zkConnect"),
        (b"\xff\xff\xff", "neither UTF-8 nor GBK"),
    ],
)
def test_what_a_broker_cannot_go_without_is_named(tmp_path, text, says):
    """Two brokers of one number would share ids of messages, and one that nobody finds is of no use."""
    with pytest.raises(ConfigError, match=says):
        read_server_ini(write(tmp_path, text))


def test_what_means_nothing_here_is_said_once(tmp_path):
    """Diamond, pools, what the original writes for itself, a topic's own folder, a key that stands twice."""
    text = SMALLEST.replace(
        "brokerId=0",
        "brokerId=0\ngetProcessThreadCount=10\ndiamondZKDataId=x\nlastModified=1\nstat=true\nstat=false\ntopics=a",
    )
    text += "dataPath=/elsewhere\n[topic=t2]\n"
    got = load(write(tmp_path, text), serving=("broker", "store", "metaq1"), environment={})
    for key in ("getProcessThreadCount", "diamondZKDataId", "lastModified", "topics", "dataPath of the topic t"):
        assert sum(f"{key} is passed over" in warning for warning in got.warnings) == 1, key
    assert sum("line 7: stat stands twice, also in" in warning for warning in got.warnings) == 1
    assert not got.metaq1.stat


def test_a_file_without_topics_is_a_warning(tmp_path):
    """Nobody may use any topic then, until a reload brings one."""
    got = load(
        write(tmp_path, SMALLEST.replace("[topic=t]\n", "")), serving=("broker", "store", "metaq1"), environment={}
    )
    assert any("no section of a topic" in warning for warning in got.warnings)
    assert not got.rules.accepts("t")


def test_old_comments_in_gbk_and_a_byte_order_mark_are_read(tmp_path):
    """Files of that age have both."""
    comment = ";\u4e2d\u6587\n"
    for raw in (
        (comment + SMALLEST).encode("gbk"),
        b"\xef\xbb\xbf" + SMALLEST.encode(),
        SMALLEST.replace("\n", "\r\n").encode(),
    ):
        read = read_server_ini(write(tmp_path, raw))
        assert read.values["broker_id"] == 0
        assert read.text == raw


def test_messages_of_an_original_broker_in_the_data_folder_are_told(tmp_path):
    """Starting on them would look as if they were gone."""
    folder = tmp_path / "data" / "orders-0"
    folder.mkdir(parents=True)
    path = write(tmp_path, SMALLEST.replace("brokerId=0", f"brokerId=0\ndataPath={tmp_path}/data"))
    serving = ("broker", "store", "metaq1")
    assert not any("import-meta" in warning for warning in load(path, serving=serving, environment={}).warnings)
    (folder / f"{0:020}.meta").write_bytes(b"")
    warnings = load(path, serving=serving, environment={}).warnings
    assert any("orders-0" in warning and "metaq store import-meta" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("server.ini", "", True),
        ("server.properties", "brokerId=0", True),
        ("topic.ini", "", True),
        ("any.conf", "\n; x\n# y\n[system]\n", True),
        ("any", "[ topic = a ]\n", True),
        ("any.toml", "[broker]\n", False),
        ("broker.conf", "brokerId=0\n", False),
        ("any", "brokerId=0\n[topic=a]\n", True),
        ("server.properties", "brokerId=0\nbrokerName=a\nnamesrvAddr=h:1\n", False),
        ("server.properties", "brokerId=0\nnumPartitions=1\nzk.zkConnect=h:1\n", True),
        ("server.ini", "[broker]\n", False),
        ("server.ini", "[sytem]\n", True),
    ],
)
def test_files_are_known_by_name_or_first_section(name, text, is_one):
    """So that a copy may be called as its owner likes; what stands in it counts before its name."""
    assert is_server_ini(f"/etc/{name}", text) is is_one


def test_keys_before_the_first_section_count_as_system_and_zookeeper(tmp_path):
    """As a plain server.properties has them."""
    read = read_server_ini(write(tmp_path, "brokerId=3\nzk.zkConnect=h:1\n[topic=t]\n", "server.properties"))
    assert (read.values["broker_id"], read.values["zk_connect"]) == (3, "h:1")


def test_printed_configuration_is_the_same_again(tmp_path):
    """What `--print-config` writes of a server.ini, `-c` takes back: tables and topics."""
    text = SERVER_INI + "[topic=a]\nnumPartitions=4\ngroup.a.b=m.n:P\nacceptPublish=false\n[topic=l*]\n[zookeeper]\n"
    serving = ("broker", "store", "metaq1")
    first = load(write(tmp_path, text), serving=serving, environment={})
    tables = {section: getattr(first, section) for section in serving}
    again = load(
        write(tmp_path, template(tables, first.sections), "metaq.toml"), serving=serving, environment={}, insecure=True
    )
    assert (again.broker, again.store, again.metaq1, again.rules) == (
        first.broker,
        first.store,
        first.metaq1,
        first.rules,
    )


def test_a_toml_file_has_both_generations(tmp_path):
    """[metaq1] beside [broker]: it is off unless it is turned on, and without topics every topic may be asked for."""
    serving = ("broker", "store", "metaq1")
    path = write(tmp_path, "[metaq1]\nenable = true\nbrokerId = 5\n[broker]\nlistenPort = 1\n", "metaq.toml")
    got = load(path, serving=serving, environment={})
    assert (got.metaq1.enable, got.broker.broker_name, got.broker.bind_address) == (True, "broker-5", "127.0.0.1")
    assert got.store.store_path_root_dir == "~/store"
    assert got.rules.accepts("anything")
    topics = '[metaq1.topics."a"]\nnumPartitions = 2\ngroup.g = "m:N"\n'
    got = load(write(tmp_path, topics, "metaq.toml"), serving=serving, environment={})
    assert got.rules.settings("a").num_partitions == 2
    assert got.rules.settings("a").filters == {"g": "m:N"}
    assert not got.metaq1.enable
    assert got.server_ini == b""
    for wrong, says in (
        ("[metaq1]\nnumPartition = 2\n", "nearest is numPartitions"),
        ("[metaq1.topics.a]\nnumPartition = 2\n", r"\[metaq1.topics.a\] of .*nearest is numPartitions"),
        ("[metaq1.topics.a]\nnumPartitions = 0\n", r"\[metaq1.topics.a\] of .*smallest"),
        ('[metaq1.topics]\na = "b"\n', "need a table"),
        ("[metaq1]\ntopics = 1\n", "need a table"),
        ("[metaq1]\nenable = true\ndeleteWhen = 'never'\n", "the cron expression 'never'"),
        ("[metaq1]\nenable = true\nzkConnect = ':1'\n", "need host:port"),
        ('[metaq1.topics.a]\ngroup = "b"\n', "need group.GROUP"),
    ):
        with pytest.raises(ConfigError, match=says):
            load(write(tmp_path, wrong, "metaq.toml"), serving=serving, environment={})


def test_without_a_server_ini_one_is_shown_that_says_the_same(tmp_path):
    """To slaves and people who ask for `stats config`."""
    serving = ("broker", "store", "metaq1")
    topics = '[metaq1]\nenable = true\nzkConnect = "h:1"\n[metaq1.topics."a*"]\n[metaq1.topics.b]\nstat = true\ngroup.g = "m:N"\n'
    first = load(write(tmp_path, topics, "metaq.toml"), serving=serving, environment={})
    again = load(write(tmp_path, first.server_ini), serving=serving, environment={})
    assert (again.metaq1, again.rules) == (first.metaq1, first.rules)


def test_a_server_ini_is_no_name_servers_configuration(tmp_path):
    """Said, rather than passed over."""
    with pytest.raises(ConfigError, match="configuration of a broker"):
        load(write(tmp_path, SMALLEST), serving=("namesrv",), environment={})


@given(st.recursive(st.integers(0, 10**6), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner), max_leaves=6))
def test_calculations_come_to_what_they_say(tree):
    """Sums, differences and products of whole numbers, with brackets."""

    def text(node):
        return str(node) if isinstance(node, int) else f"({text(node[0])} {node[1]} {text(node[2])})"

    def value(node):
        if isinstance(node, int):
            return node
        left, right = value(node[0]), value(node[2])
        return {"+": left + right, "-": left - right, "*": left * right}[node[1]]

    if abs(value(tree)) < 2**63 and len(text(tree)) < 200:
        try:
            assert calculate(text(tree)) == value(tree)
        except ConfigError as error:
            assert "64 bits" in str(error)  # on the way


@pytest.mark.parametrize(("text", "number"), [("7/2", 3), ("-7/2", -3), ("-7%3", -1), ("+5", 5), ("2-(3-4)", 3)])
def test_quotients_are_java_s(text, number):
    """Towards zero."""
    assert calculate(text) == number
