"""Spark's source and sink at a broker with access control."""

from __future__ import annotations

import pickle

import pytest

import metaq
from metaq.errors import AccessDenied, ConfigError
from metaq.model.offsets import Slice
from metaq.pipelines.mirror.options import MirrorOptions
from metaq.pipelines.options import access_of
from metaq.spark.cluster.client import ClusterClient
from metaq.spark.sink.settings import SinkOptions
from metaq.spark.source.fetch import read_slice
from metaq.spark.source.plan import Planner
from metaq.spark.source.settings import SourceOptions
from metaq.testing import EmbeddedBroker
from tests.accounts import ACCOUNTS, SECRET, USER, tools_yml


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(accounts=ACCOUNTS) as running, metaq.Producer(running.namesrv, **USER) as producer:
        for number in range(8):
            producer.send("orders", b"%d" % number)
        yield running


@pytest.fixture
def acl_file(tmp_path) -> str:
    path = tmp_path / "tools.yml"
    path.write_text(tools_yml(USER))
    return str(path)


def options(broker, **more: str) -> SourceOptions:
    return SourceOptions.of({"nameServers": broker.namesrv, "subscribe": "orders", **more})


def test_plans_and_fetches_are_signed(broker, acl_file):
    """By the file and by the keys, also after they went to an executor's process."""
    for account in ({"aclFile": acl_file}, {"accessKey": "account-user", "secretKey": SECRET}):
        chosen = pickle.loads(pickle.dumps(options(broker, **account)))
        client = Planner(chosen).client
        queues = client.queues(["orders"])
        starts, ends = client.starts(queues), client.ends(queues)
        found = [
            body
            for queue in queues
            for decoded in read_slice(client, Slice(queue, starts[queue], ends[queue]), chosen.fetch)
            for body in [bytes(decoded.data)]
            if len(decoded)
        ]
        assert found
        client.report("g", ends)
        assert client.progress("g", queues) == ends
        client.close()


@pytest.mark.parametrize(
    ("account", "says"),
    [
        ({}, "not signed: give access_key"),
        ({"accessKey": "account-user", "secretKey": "another-secret"}, "signed as account-user: check its secret key"),
    ],
    ids=["unsigned", "wrong secret"],
)
def test_what_is_refused_fails_at_once(broker, account, says):
    """Not after `retrySeconds`."""
    chosen = options(broker, retrySeconds="300", **account)
    client = ClusterClient(broker.namesrv, 300.0, access=chosen.access)
    queues = client.queues(["orders"])
    with pytest.raises(AccessDenied, match=says) as caught:
        client.starts(queues)
    assert "another-secret" not in str(caught.value)
    client.close()


def test_options_show_no_secret_and_refuse_half_a_pair(tmp_path):
    """In errors, reprs and what describes a query."""
    given = {
        "nameServers": "127.0.0.1:1",
        "accessKey": "account-user",
        "secretKey": SECRET,
        "securityToken": "the-token",
    }
    for table, more in ((SourceOptions, {"subscribe": "orders"}), (SinkOptions, {})):
        chosen = table.of({**given, **more})
        assert SECRET not in repr(chosen)
        assert "the-token" not in repr(chosen)
        with pytest.raises(ConfigError, match="secretKey is missing, and accessKey given"):
            table.of({"nameServers": "x:1", "accessKey": "account-user", **more})
        with pytest.raises(ConfigError, match=r"aclFile: .*nothing\.yml cannot be read"):
            table.of({"nameServers": "x:1", "aclFile": str(tmp_path / "nothing.yml"), **more})
    assert SECRET not in repr(options_of_fetch := SourceOptions.of({**given, "subscribe": "orders"}).fetch)
    assert options_of_fetch.access.secret_key == SECRET


def test_a_mirror_has_an_account_at_each_side(tmp_path):
    """A file for each cluster; the environment for what has none."""
    files = []
    for name in ("source", "target"):
        files.append(tmp_path / f"{name}.yml")
        files[-1].write_text(tools_yml({"access_key": f"account-{name}", "secret_key": SECRET}))
    chosen = MirrorOptions(
        folder=str(tmp_path), to="y:1", topics="t", acl_file=str(files[0]), to_acl_file=str(files[1])
    )
    chosen.check()
    assert access_of(chosen).credentials().access_key == "account-source"
    assert chosen.target_access.credentials().access_key == "account-target"
    assert chosen.source()["aclFile"] == str(files[0])
    with pytest.raises(ConfigError, match=r"toAclFile: .*cannot be read"):
        chosen.replace(to_acl_file="/nowhere.yml").check()


@pytest.mark.spark
def test_a_query_reads_and_writes_signed(broker, spark, acl_file, monkeypatch, tmp_path):
    """The executors too; with keys as options, neither plan nor progress nor error shows the secret."""
    account = {"nameServers": broker.namesrv, "accessKey": "account-user", "secretKey": SECRET}
    frame = spark.read.format("metaq").options(**account, subscribe="orders").load()
    assert sorted(int(row.body) for row in frame.select("body").collect()) == list(range(8))
    plan = frame._jdf.queryExecution().toString()
    assert SECRET not in plan
    for delivery in ("effectively-once", "at-least-once"):
        frame.selectExpr("'copies' AS topic", "body").write.format("metaq").options(
            nameServers=broker.namesrv, aclFile=acl_file, delivery=delivery
        ).mode("append").save()
    query = (
        spark.readStream.format("metaq")
        .options(**account, subscribe="copies", startingOffsets="earliest")
        .load()
        .selectExpr("'thirds' AS topic", "body")
        .writeStream.format("metaq")
        .options(**account, checkpointLocation=str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shown = f"{query.lastProgress} {query.status} {query._jsq.toString()}"
    assert SECRET not in shown
    with metaq.Reader(broker.namesrv, "thirds", start="earliest", stop_at_end=True, **USER) as reader:
        assert sorted(int(message.body) for message in reader) == sorted([*range(8)] * 2)
    wrong = {**account, "secretKey": "another-secret"}
    with pytest.raises(Exception, match="signed as account-user: check its secret key") as caught:
        spark.read.format("metaq").options(**wrong, subscribe="orders").load().collect()
    assert "another-secret" not in str(caught.value)
