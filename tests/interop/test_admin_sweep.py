"""Every command of RocketMQ's mqadmin 4.9.8 finds in our cluster what it finds in one of RocketMQ 4.9.7.

Both have the same topics, groups, messages and consumers. Each command runs against one and then the other, in one JVM, and what it
prints is compared: `masked`, and with the differences of `EXPLAINED` taken out. The commands on accounts are in test_acl.py.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from metaq import Consumer, Producer, PullConsumer, SendReceipt
from metaq.admin import Admin, MessageNotFound
from tests.interop.admin_tool import admin_tool
from tests.interop.driver import ForeignClient
from tests.interop.servers import CLUSTER, MetaqServer, RocketmqServer, Server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.interop

QUEUES, EACH = 4, 3
TOPIC, GROUP = "sweep", "sweepers"
BROKER = "broker-a"
TAG = "TagA"

COMMANDS = f"""
# topics
updateTopic -b {{broker}} -t made -r 3 -w 2
updateTopic -c {CLUSTER} -t made -r 4 -w 2
updateTopic -b {{broker}} -t TBW102 -r 4 -w 2
updateTopic -b {{broker}} -t bad^name -r 4 -w 2
updateTopic -b {{broker}} -t units -u true -s true
updateTopic -c {CLUSTER} -t ordered -o true
updateTopicPerm -b {{broker}} -t made -p 4
updateTopicPerm -c {CLUSTER} -t made -p 6
updateTopicPerm -c {CLUSTER} -t nowhere -p 6
topicList
topicList -c
topicRoute -t {TOPIC}
topicRoute -t units
topicRoute -t nowhere
topicStatus -t {TOPIC}
topicStatus -t nowhere
topicClusterList -t {TOPIC}
updateOrderConf -t made -m put -v {BROKER}:2
updateOrderConf -t made -m get
updateOrderConf -t made -m delete
updateOrderConf -t made -m get
allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2
# groups
updateSubGroup -b {{broker}} -g others -d true -m true -q 2 -r 5 -w 3 -a false
updateSubGroup -c {CLUSTER} -g others
getConsumerConfig -g others
getConsumerConfig -g nobody
consumerProgress
consumerProgress -g {GROUP}
consumerProgress -g {GROUP} -s true
consumerProgress -g nobody
consumerStatus -g {GROUP}
consumerStatus -g {GROUP} -s
consumerStatus -g nobody
brokerConsumeStats -b {{broker}}
brokerConsumeStats -b {{broker}} -o true
brokerConsumeStats -b {{broker}} -l 0
consumerConnection -g {GROUP}
consumerConnection -g nobody
producerConnection -g sweep-producers -t {TOPIC}
producerConnection -g nobody -t {TOPIC}
producer -b {{broker}}
queryCq -b {{broker}} -t {TOPIC} -q 0 -i 0 -c 2
queryCq -t {TOPIC} -q 3 -i 1 -c 10 -g {GROUP}
queryCq -t {TOPIC} -q 3 -i 1 -c 10 -g nobody
queryCq -b {{broker}} -t {TOPIC} -q 0 -i 100
queryCq -b {{broker}} -t {TOPIC} -q 9 -i 0
queryCq -b {{broker}} -t nowhere -q 0 -i 0
statsAll
statsAll -t {TOPIC}
# clusters and brokers
clusterList
clusterList -m
brokerStatus -b {{broker}}
brokerStatus -c {CLUSTER}
cleanExpiredCQ -b {{broker}}
cleanExpiredCQ -c {CLUSTER}
cleanUnusedTopic -b {{broker}}
cleanUnusedTopic -c {CLUSTER}
deleteExpiredCommitLog -b {{broker}}
deleteExpiredCommitLog -c {CLUSTER}
deleteExpiredCommitLog
getBrokerConfig -b {{broker}}
getBrokerConfig -c {CLUSTER}
getNamesrvConfig
updateBrokerConfig -b {{broker}} -k fileReservedTime -v 48
updateBrokerConfig -c {CLUSTER} -k brokerPermission -v 4
topicRoute -t {TOPIC}
updateBrokerConfig -b {{broker}} -k brokerPermission -v 6
topicRoute -t {TOPIC}
updateBrokerConfig -b {{broker}} -k noSuchKey -v 48
updateBrokerConfig -b {{broker}} -k fileReservedTime -v many
updateNamesrvConfig -k orderMessageEnable -v true
updateNamesrvConfig -k orderMessageEnable -v false
updateNamesrvConfig -k noSuchKey -v 1
updateNamesrvConfig -k kvConfigPath -v /tmp/x
wipeWritePerm -b {BROKER}
topicRoute -t {TOPIC}
addWritePerm -b {BROKER}
topicRoute -t {TOPIC}
wipeWritePerm -b nobody
updateKvConfig -s spaces -k key -v value
deleteKvConfig -s spaces -k key
deleteKvConfig -s spaces -k key
exportMetadata -c {CLUSTER} -f {{export}}
exportMetadata -c {CLUSTER} -t -f {{export}}
exportMetadata -c {CLUSTER} -g -f {{export}}
exportConfigs -c {CLUSTER} -f {{export}}
exportMetrics -c {CLUSTER} -f {{export}}
# positions
cloneGroupOffset -s {GROUP} -d others -t {TOPIC}
resetOffsetByTime -g others -t {TOPIC} -s 0 -f true
skipAccumulatedMessage -g others -t {TOPIC} -f true
resetOffsetByTime -g nobody -t nowhere -s 0
# messages
queryMsgByKey -t {TOPIC} -k key-1
queryMsgByKey -t {TOPIC} -k nothing
queryMsgByKey -t nowhere -k key-1
queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 1
queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 100
queryMsgById -i {{offset_id}}
queryMsgById -i {{missing_id}}
queryMsgByUniqueKey -t {TOPIC} -i {{unique_id}}
queryMsgByUniqueKey -t {TOPIC} -i 7F0000010000ABCD00000000000100FF
queryMsgByUniqueKey -t {TOPIC} -i {{unique_id}} -g {GROUP} -d {{client_id}}
queryMsgTraceById -i {{unique_id}}
printMsg -t {TOPIC} -d true
printMsgByQueue -t {TOPIC} -a {BROKER} -i 0 -p true -d true -f true
consumeMessage -t {TOPIC} -b {BROKER} -i 1 -o 0 -c 2
consumeMessage -t {TOPIC} -b {BROKER} -i 1 -s 0 -e 9999999999999
sendMessage -t {TOPIC} -p hello -b {BROKER} -i 1 -k key-of-it -c TagB
sendMessage -t made -p hello
sendMsgStatus -b {BROKER} -s 10 -c 2
checkMsgSendRT -t {TOPIC} -a 2 -s 10
# of an online group
resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0 -f true
skipAccumulatedMessage -g {GROUP} -t {TOPIC} -f true
# deletions
deleteSubGroup -b {{broker}} -g others -r true
deleteSubGroup -c {CLUSTER} -g others
deleteTopic -c {CLUSTER} -t made
deleteTopic -c {CLUSTER} -t made
deleteTopic -c {CLUSTER} -t TBW102
"""


class Explained(NamedTuple):
    """A difference that is meant: what matches `pattern` in either output of the commands counts as `replacement`."""

    command: str
    """The beginning of the commands."""
    pattern: str
    replacement: str
    why: str


WINDOWS = (
    "how long ago the messages were, and when the broker takes its samples; `filled` has waited for all of them at both"
)
LOADED = "figures of how busy a broker is"
TRANSACTIONS = "RocketMQ makes it about a minute after its start, we at the start"

EXPLAINED = (
    Explained("clusterList", r"V4_9_[78]", "VERSION", "it answers as 4.9.7, we as 4.9.8"),
    Explained("clusterList", r" +[\d.]+\(0,0ms\)", " TPS", LOADED),
    Explained("clusterList", r" +[\d.]+ 0\.\d+$", " HOURS SPACE", "age of the oldest message; RocketMQ has none in a young store"),
    Explained("topicList", r"\n[^\n]*RMQ_SYS_TRANS_HALF_TOPIC[^\n]*", "", TRANSACTIONS),
    Explained("statsAll", r"\n[^\n]*RMQ_SYS_TRANS_HALF_TOPIC[^\n]*", "", TRANSACTIONS),
    Explained("statsAll", r" [\d.]+ +[\d.]+ +\d+ +\d+$", " STATISTICS", WINDOWS),
    Explained("statsAll", r" [\d.]+ +\d+ +NO_CONSUMER", " STATISTICS NO_CONSUMER", WINDOWS),
    Explained("(wipe|add)WritePerm", r"OK, 1\d", "OK, ALL", TRANSACTIONS),
    Explained("consumerProgress", r"Consume TPS: .*", "Consume TPS", WINDOWS),
    Explained("consumerProgress$", r"(CLUSTERING) +\d+", r"\1 TPS", WINDOWS),
    Explained("brokerStatus", r"\n[^\n]*(METAQ|metaq\w+|heldPulls|unsavedFiles) *:[^\n]*", "", "ours (docs/formats/extensions.md)"),
    Explained("brokerStatus", r"^((?:ADDRESS +)?(?!msg\w+Morning)\S+ *):.*", r"\1: VALUE", LOADED),
    Explained("brokerStatus", r"commitLogDiskRatio_\S+", "commitLogDiskRatio_FOLDER", "where the store is"),
    Explained("getBrokerConfig", r"=.*", "= VALUE", "the values are compared in test_mqadmin.py, key by key"),
    Explained("getNamesrvConfig", r"=.*", "= VALUE", "folders and ports"),
    Explained("updateTopic -b .* -t bad", r"DESC: .*(illegal characters|has characters outside).*", "DESC: WHY", "ours names the topic"),
    Explained("sendMessage -t made", r"\d+ +SEND_OK", "QUEUE SEND_OK", "a producer begins at a queue by chance"),
    Explained("queryCq .* -i 100", r"(?s)\A.*\Z", "NOTHING", "RocketMQ answers without a body, which its tool cannot read"),
    Explained("updateBrokerConfig .*(noSuchKey|many)|updateNamesrvConfig .*noSuchKey", r"(?s)\A.*\Z", "NOTHING", "RocketMQ takes any"),
    Explained("updateNamesrvConfig .*kvConfigPath", r"DESC: .*", "DESC: WHY", "ours says what to do instead"),
    Explained("queryMsgByUniqueKey", r"spentTimeMills=\d+", "spentTimeMills=MS", LOADED),
    Explained("sendMsgStatus", r"rt=\d+ms", "rt=MS", LOADED),
    Explained("checkMsgSendRT", r"\d+ *$", "RT", LOADED),
    Explained("checkMsgSendRT", r"Avg RT: .*", "Avg RT", LOADED),
    Explained("exportMetrics", r'"(\w*Tps|\w*DiskRatio|messageAverageSize|rocketmqVersion)":[^,}\]]*', r'"\1":0', LOADED),
)  # fmt: skip

NOT_COMPARED = {
    "clusterRT": "sends for ever; checkMsgSendRT does the same, so often as it is told",
    "startMonitoring": "watches for ever, with the requests of consumerProgress, consumerConnection and consumerStatus",
    **dict.fromkeys(
        ("updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion", "updateGlobalWhiteAddr"),
        "test_acl.py compares it",
    ),
}
"""Command of mqadmin → why it is not among `COMMANDS`."""
ANY_ORDER = (
    "topicList",
    "statsAll",
    "getBrokerConfig",
    "getNamesrvConfig",
    "consumerProgress",
    "printMsg ",
    "cleanUnused",
)
"""Beginnings of commands that print their lines in the order of a Java hash table."""
MORE_KEYS = ("getBrokerConfig", "getNamesrvConfig")
"""Commands that may show more lines of ours: options that only we have."""


LATE = ("topicRoute",)
"""Beginnings of commands about what brokers tell name servers, of which RocketMQ's may do that behind its answer to the command before."""


def masked(text: str, server: Server) -> str:
    """Without what differs from run to run: addresses, times, ids, and where in its own code the tool failed."""
    text = re.sub(r"(?m)^\t(at .*|\.\.\. \d+ more)\n", "", text)
    text = text.replace(str(server.data), "STORE")
    text = re.sub(r"\b127\.0\.0\.1:\d+", "ADDRESS", text)
    text = text.replace(type(server).__name__, "SERVER")
    text = re.sub(r"\d{1,3}(\.\d{1,3}){3}@[\w-]+ *", "CLIENT ", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:]\d{3})?", "TIME", text)
    text = re.sub(r"\b1[0-9]{12}\b", "MS", text)
    text = re.sub(r"\b[0-9A-F]{32,56}\b", "ID", text)
    text = re.sub(r"@[0-9a-f]{5,8}\b|\b20\d{12}\b", "@ID", text)  # Java's objects, and a time without separators
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip()


def explained(command: str, text: str, differences: tuple[Explained, ...] = EXPLAINED) -> str:
    for one in differences:
        if re.match(one.command, command):
            text = re.sub(one.pattern, one.replacement, text, flags=re.MULTILINE)
    if command.startswith(ANY_ORDER):
        text = "\n".join(sorted(text.splitlines()))
    return text


class Cluster(NamedTuple):
    """One of the two, with what the commands need to know."""

    server: Server
    names: dict[str, str]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    running = admin_tool(tmp_path_factory.mktemp("admin-tool"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def clusters(
    jvm: ForeignClient, tool: ForeignClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Cluster]]:
    """RocketMQ's, then ours, with the same in them; a consumer and a producer stay online."""
    tmp_path = tmp_path_factory.mktemp("sweep")
    (tmp_path / "ours").mkdir()
    ours = MetaqServer(tmp_path / "ours", options=[f"brokerName={BROKER}"])
    theirs = RocketmqServer(tmp_path / "theirs")
    servers: list[Server] = [theirs, ours]
    started: list[Server] = []
    try:
        for server in servers:
            server.start()
            started.append(server)
        yield [filled(server, jvm, tool, tmp_path) for server in servers]
    finally:
        jvm.shutdown_all()
        theirs.kill()  # its own way out takes long, and nobody looks at what it leaves
        if ours in started:
            ours.stop()


def filled(server: Server, java: ForeignClient, tool: ForeignClient, folder: Path) -> Cluster:
    name = type(server).__name__
    run(tool, server, f"updateTopic -b {server.broker} -t {TOPIC} -r {QUEUES} -w {QUEUES}")
    run(tool, server, f"updateSubGroup -b {server.broker} -g {GROUP} -r 3")
    producer, consumer = f"producer-{name}", f"consumer-{name}"
    java.producer(producer, server.namesrv, group="sweep-producers")
    sent = [
        receipt
        for queue in range(QUEUES)
        for receipt in java.send(
            producer, TOPIC, [f"message-{queue}-{number}" for number in range(EACH)], "ordered",
            ordering_key=queue, tag=TAG, keys="key-1",
        )
    ]  # fmt: skip
    java.consumer(consumer, server.namesrv, GROUP, {TOPIC: "*"})
    java.wait(consumer, QUEUES * EACH)
    # Its offsets are committed every five seconds; only behind that both clusters know the same.
    eventually(lambda: is_committed(run(tool, server, f"consumerProgress -g {GROUP}")), what="the commits")
    eventually(lambda: is_counted(*(run(tool, server, one) for one in STATISTICS)), what="the statistics")
    export = folder / f"export-{name}"
    export.mkdir()
    offset_id = sent[0]["offset_id"]
    names = {
        "broker": server.broker,
        "export": str(export),
        "offset_id": offset_id,
        "missing_id": f"{offset_id[:-4]}FFFF",
        "unique_id": sent[0]["id"],
        "client_id": run(tool, server, f"consumerConnection -g {GROUP}").splitlines()[1].split()[0],
    }
    return Cluster(server, names)


def is_committed(progress: str) -> bool:
    """Whether the group has committed all that it has, also of its own retry topic."""
    return "Diff Total: 0" in progress and f"%RETRY%{GROUP}" in progress


STATISTICS = (f"statsAll -t {TOPIC}", f"consumerProgress -g {GROUP}")


def is_counted(statistics: str, progress: str) -> bool:
    """Whether just the messages that were sent and consumed are in the figures of a day, and the rates are above zero."""
    figures = re.search(rf"(?m)^{TOPIC} +{GROUP} +0 +([\d.]+) +([\d.]+) +(\d+) +(\d+) *$", statistics)
    rate = re.search(r"Consume TPS: ([\d.]+)", progress)
    if figures is None or rate is None:
        return False
    put, got = int(figures[3]), int(figures[4])
    return put == got == QUEUES * EACH and min(float(figures[1]), float(figures[2]), float(rate[1])) > 0


def run(tool: ForeignClient, server: Server, command: str) -> str:
    name, *arguments = command.split()
    text: str = tool.call("admin", arguments=[name, "-n", server.namesrv, *arguments])
    return text


def outcome(tool: ForeignClient, cluster: Cluster, command: str) -> str:
    """What a command printed, and the files that it has written."""
    text = run(tool, cluster.server, command.format_map(cluster.names))
    for file in sorted(Path(cluster.names["export"]).iterdir()):
        tree = json.loads(file.read_text())
        text += f"\n{file.name} {json.dumps(tree, sort_keys=True)}"
        file.unlink()
    text = text.replace(cluster.names["export"], "FOLDER")
    return explained(command, masked(text, cluster.server))


def outcomes_agree(tool: ForeignClient, clusters: list[Cluster], command: str) -> bool:
    theirs, ours = (outcome(tool, cluster, command) for cluster in clusters)
    return theirs == ours


DASHBOARD = (
    Explained("topics", r'"RMQ_SYS_TRANS_HALF_TOPIC",', "", TRANSACTIONS),
    Explained("(all progress|state of a member)", r'"(\w*(TPS|Tps|RT))":[\d.]+', r'"\1":0', WINDOWS),
    Explained(
        "all producers",
        r'"CLIENT_INNER_PRODUCER":\[[^]]*\]',
        '"CLIENT_INNER_PRODUCER":[]',
        "the admin client is one, a second after its start",
    ),
)
"""As `EXPLAINED`, for calls of the dashboard."""
KEYS = ("runtime keys", "broker configuration", "name server configuration")
"""Calls whose results are names; ours has more."""


def test_the_dashboards_calls_find_what_they_find_in_rocketmq(clusters: list[Cluster], tool: ForeignClient) -> None:
    """Each page's, with the admin client 4.9.8 that it is built on. Before the commands, which reset the group."""
    theirs, ours = (calls(tool, cluster) for cluster in clusters)
    assert [name for name, _ in theirs] == [name for name, _ in ours]
    different = []
    for (name, their), (_, our) in zip(theirs, ours, strict=True):
        same = set(json.loads(their)) <= set(json.loads(our)) if name in KEYS else their == our
        if not same:
            different.append(f"--- {name}\nRocketMQ:\n{their}\nours:\n{our}")
    assert not different, "\n".join(different)


def calls(tool: ForeignClient, cluster: Cluster) -> list[tuple[str, str]]:
    """Name and masked result of each call."""
    names = {key: value for key, value in cluster.names.items() if key != "export"}
    found = tool.call(
        "dashboard", namesrv=cluster.server.namesrv, topic=TOPIC, group=GROUP, cluster=CLUSTER,
        producers="sweep-producers", patience=int(PATIENCE * 1000), **names,
    )  # fmt: skip
    return [(name, explained(name, masked(text, cluster.server), DASHBOARD)) for name, text in found]


def test_each_command_finds_what_it_finds_in_rocketmq(clusters: list[Cluster], tool: ForeignClient) -> None:
    different = []
    for command in filter(lambda line: line and line[0] != "#", COMMANDS.splitlines()):
        theirs, ours = (outcome(tool, cluster, command) for cluster in clusters)
        if theirs != ours and command.startswith(LATE):
            same = partial(outcomes_agree, tool, clusters, command)
            with contextlib.suppress(AssertionError):
                eventually(same)
            theirs, ours = (outcome(tool, cluster, command) for cluster in clusters)
        if command.startswith(MORE_KEYS):
            known = set(theirs.splitlines())
            ours = "\n".join(line for line in ours.splitlines() if line in known)
        if theirs != ours:
            different.append(f"--- {command}\nRocketMQ:\n{theirs}\nours:\n{ours}")
    assert not different, "\n".join(different)


TRACKED = "tracked"
TRACKS = {
    "done": "CONSUMED",
    "tags": "CONSUMED_BUT_FILTERED",
    "late": "NOT_CONSUME_YET",
    "gone": "NOT_ONLINE",
    "pull": "PULL",
    "everywhere": "CONSUME_BROADCASTING",
}
"""Group → what became of the first message of `TRACKED` in it."""


def test_a_messages_track_is_mqadmins(clusters: list[Cluster], tool: ForeignClient) -> None:
    """Of every kind, by both ids, from both brokers. Behind the sweep, which compares all groups.

    mqadmin 4.9.8 takes a group that broadcasts for one that is not online; later ones do not.
    """
    for server, _ in clusters:
        with contextlib.ExitStack() as stack, Admin(server.namesrv) as admin:
            receipt = with_groups(stack, server, admin)

            eventually(partial(told, admin, receipt.offset_id), what="every group is told")
            assert told(admin, receipt.message_id, TRACKED)
            by_id = run(tool, server, f"queryMsgById -i {receipt.offset_id}")
            by_unique_id = run(tool, server, f"queryMsgByUniqueKey -t {TRACKED} -i {receipt.message_id}")
            expected = {**TRACKS, "everywhere": "NOT_ONLINE"}
            for text in (by_id, by_unique_id):
                assert dict(re.findall(r"consumerGroup=(\S+), trackType=(\w+)", text)) == expected, text


def told(admin: Admin, message_id: str, topic: str | None = None) -> bool:
    """Whether ours tells `TRACKS`."""
    return {one.group: one.state.value for one in admin.track_message(message_id, topic).groups} == TRACKS


def with_groups(stack: contextlib.ExitStack, server: Server, admin: Admin) -> SendReceipt:
    """Two messages, and every group of `TRACKS` with what it needs to have become of the first. Returns the first's receipt."""
    admin.create_topic(TRACKED, queues=1)
    producer = stack.enter_context(Producer(server.namesrv))
    receipt = producer.send(TRACKED, b"1", tag="a")
    producer.send(TRACKED, b"2", tag="b")

    def consumer(group: str, count: int, tags: str = "*", *, broadcast: bool = False) -> Consumer:
        one = stack.enter_context(
            Consumer(
                server.namesrv,
                group=group,
                topics={TRACKED: tags},
                start="first",
                instance_name=group,
                broadcast=broadcast,
            )
        )
        for _ in range(count):
            message = one.receive(PATIENCE)
            assert message is not None
            message.ack()
        one.commit()
        return one

    consumer("done", 2)
    consumer("tags", 1, "b")
    consumer("late", 2)
    admin.reset_group("late", TRACKED, "earliest")
    consumer("everywhere", 0, broadcast=True)
    consumer("gone", 2).close()
    stack.enter_context(PullConsumer(server.namesrv, group="pull", topics=TRACKED, instance_name="pull"))
    return receipt


def test_what_is_stored_is_found_in_both(clusters: list[Cluster], tool: ForeignClient) -> None:
    """Messages whose key has the hash of many others' of the same second, which mqadmin does not find in RocketMQ; by id; by time;
    units. `Aa` and `BB` have one hash."""
    for server, _ in clusters:
        topic = "hidden"
        with Admin(server.namesrv) as admin, Producer(server.namesrv) as producer:
            admin.create_topic(topic, queues=2)
            first = producer.send(topic, b"first", keys=["Aa"])
            sent = [producer.send(topic, b"%d" % number, keys=["BB"]) for number in range(150)]
            by_tool = run(tool, server, f"queryMsgByKey -t {topic} -k Aa")
            assert (first.message_id in by_tool) == isinstance(server, MetaqServer)
            found = admin.find_messages(topic, key="Aa")
            assert ([one.body for one in found.messages], found.more) == ([b"first"], False)
            assert len(admin.find_messages(topic, key="BB", limit=1000).messages) == 150
            assert [one.body for one in admin.find_messages(topic, message_id=sent[5].message_id).messages] == [b"5"]
            last = admin.get_message(sent[-1].offset_id)
            assert last.body == b"149"
            # Inside the record its queue's number would be a size: RocketMQ answers with so many bytes.
            with pytest.raises(MessageNotFound):
                admin.get_message(f"{int(last.offset_id, 16) + 12:032X}")
            recent = admin.find_messages(topic, start=last.store_ms / 1000)
            assert recent.messages[-1].body == b"149"
            assert {one.store_ms for one in recent.messages} == {last.store_ms}
            assert admin.find_messages(topic, limit=200).more is False
            queue, offset, units = admin.queue_units(topic, last.queue_id, start=-1)
            assert (queue, offset) == (last.queue, last.queue_offset)
            assert [unit.log_offset for unit in units.units] == [last.log_offset]


def test_no_command_is_left_out(tool: ForeignClient) -> None:
    """Of those that the tool lists itself."""
    listed = set(re.findall(r"(?m)^   (\w+) ", tool.call("admin", arguments=[])))
    compared = {line.split()[0] for line in COMMANDS.splitlines() if line and line[0] != "#"}
    assert len(listed) > 50
    assert listed == compared | NOT_COMPARED.keys()
