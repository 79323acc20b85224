"""A pipeline's `progressGroup`: nobody else's. Consumers go on at a group's progress, so moving theirs skips messages."""

from __future__ import annotations

import contextlib
import json

import pytest
from pyspark.sql.types import StructType

import metaq
from metaq.cli import commands as cli
from metaq.errors import ConfigError
from metaq.model.queue import MessageQueue
from metaq.pipelines.catalogue import PIPELINES
from metaq.pipelines.checkpoints import PROGRESS_GROUPS, Checkpoint
from metaq.pipelines.configuration import configure
from metaq.pipelines.job import SliceStream
from metaq.pipelines.metrics.options import MetricsOptions
from metaq.pipelines.options import StreamOptions
from metaq.spark.cluster.client import ClusterClient, client_of
from metaq.spark.data_source import MetaqStreamReader
from metaq.spark.source.settings import SourceOptions
from tests.scripted import ScriptedCluster
from tests.support import eventually

Q0, Q1 = (MessageQueue("shop-orders", "broker-a", number) for number in range(2))
STREAMS = [name for name, one in PIPELINES.items() if issubclass(one.options, StreamOptions)]


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        running.put("shop-orders", 0, [b"x"] * 20)
        running.put("shop-orders", 1, [b"x"] * 20)
        yield running
        client_of.cache_clear()


@pytest.fixture
def client(cluster):
    with contextlib.closing(ClusterClient(cluster.namesrv, 2.0)) as found:
        yield found


@contextlib.contextmanager
def consuming(cluster, group: str):
    """A member of a group, which has consumed nothing."""
    with metaq.PullConsumer(cluster.namesrv, group=group, topics="shop-orders"):
        with contextlib.closing(ClusterClient(cluster.namesrv, 2.0)) as asking:
            eventually(lambda: asking.members(group), what="the member")
        yield


def stream(cluster, group: str) -> SliceStream:
    options = MetricsOptions(name_servers=cluster.namesrv, topics="shop-orders", folder="m", progress_group=group)
    return SliceStream.of(options, {"subscribe": "shop-orders"})


def begun(folder) -> Checkpoint:
    """A checkpoint whose query has been started."""
    (folder / "metadata").write_text(json.dumps({"id": "6f1c9a2e"}))
    return Checkpoint(folder)


@pytest.mark.parametrize("name", STREAMS)
def test_group_is_no_option_of_a_pipeline(name):
    """It meant the group to report as; elsewhere it means the one that consumes, whose messages were skipped then."""
    with pytest.raises(ConfigError, match="there is no option group"):
        configure(name, {"topics": "shop-orders", "group": "billing"})


def test_the_flag_is_gone(cluster, capsys, tmp_path):
    """The issue's own command: refused, and nothing is moved."""
    words = ["-n", cluster.namesrv, "--topic", "shop-orders", "--folder", str(tmp_path / "m"), "--group", "billing"]
    assert cli.run(["pipeline", "run", "metrics", *words]) != 0
    assert "--group" in capsys.readouterr().err


def test_a_group_with_members_is_refused_before_spark(cluster, capsys, tmp_path):
    """By name, with a member's."""
    words = ["-n", cluster.namesrv, "--topic", "shop-orders", "--folder", str(tmp_path / "m")]
    with consuming(cluster, "billing"):
        assert cli.run(["pipeline", "run", "metrics", *words, "--progress-group", "billing", "--once"]) != 0
    assert "the consumer group billing has members" in capsys.readouterr().err
    assert set(cluster.progress("billing", "shop-orders").values()) == {0}


def test_progress_of_others_is_refused(cluster, client, tmp_path):
    """Of consumers that are away, or of another query; also by a pipeline that has run without it, or with another one."""
    client.report("billing", {Q0: 3})
    place = tmp_path / "checkpoint"
    with pytest.raises(ConfigError, match="consumer group billing has progress in shop-orders that this query did not"):
        stream(cluster, "billing").claim_progress_group(Checkpoint(place))
    assert not (place / PROGRESS_GROUPS).exists()
    stream(cluster, "metrics-of-shop").claim_progress_group(Checkpoint(place))
    with pytest.raises(ConfigError, match="progressGroup"):
        stream(cluster, "billing").claim_progress_group(begun(place))
    assert cluster.progress("billing", "shop-orders") == {Q0: 3, Q1: 0}


def test_a_pipeline_goes_on_with_its_own_group(cluster, client, tmp_path):
    """Whose progress it has made; not when consumers have joined it. A start that failed has made none."""
    place = tmp_path / "checkpoint"
    mine = stream(cluster, "metrics-of-shop")
    mine.claim_progress_group(Checkpoint(place))
    client.report("metrics-of-shop", {Q0: 20, Q1: 20})
    with pytest.raises(ConfigError, match="did not make"):
        mine.claim_progress_group(Checkpoint(place))
    mine.claim_progress_group(begun(place))
    with consuming(cluster, "metrics-of-shop"), pytest.raises(ConfigError, match="has members"):
        mine.claim_progress_group(begun(place))


def test_a_query_begins_with_a_group_of_its_own(cluster, client):
    """The source itself, in a query without a pipeline; the group that it takes over by `startingGroup` may have progress."""

    def begin(**more):
        given = {"nameServers": cluster.namesrv, "subscribe": "shop-orders", "progressGroup": "billing", **more}
        return MetaqStreamReader(SourceOptions.of(given), StructType([])).initialOffset()

    begin()
    client.report("billing", {Q0: 3})
    with pytest.raises(ConfigError, match="has progress in shop-orders"):
        begin()
    begin(startingGroup="billing")
    with consuming(cluster, "billing"), pytest.raises(ConfigError, match="has members"):
        begin(startingGroup="billing")


def test_consumers_that_join_later_keep_their_progress(cluster, client, caplog):
    """A running query, or a listener, stores none for a group that has members."""
    given = {"nameServers": cluster.namesrv, "subscribe": "shop-orders", "progressGroup": "billing"}
    reader = MetaqStreamReader(SourceOptions.of(given), StructType([]))
    reader._report({Q0: 5, Q1: 5})
    assert cluster.progress("billing", "shop-orders") == {Q0: 5, Q1: 5}
    with consuming(cluster, "billing"):
        reader._report({Q0: 20, Q1: 20})
        with pytest.raises(ConfigError, match="has members"):
            client.report("billing", {Q0: 20})
    assert cluster.progress("billing", "shop-orders") == {Q0: 5, Q1: 5}
    assert "billing was not stored: the consumer group billing has members" in caplog.text


def test_a_record_that_cannot_be_read_is_named(tmp_path):
    """It says whose the progress is: nothing is guessed."""
    (tmp_path / PROGRESS_GROUPS).write_text("{")
    with pytest.raises(ConfigError, match=PROGRESS_GROUPS):
        Checkpoint(tmp_path).progress_groups()
