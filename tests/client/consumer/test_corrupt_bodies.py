"""A body that says it is compressed and does not decompress: told once with its place, and no obstacle for the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib

import pytest

import metaq
from metaq import MessageQueue, Reader, aio
from metaq.archive.folder import ArchiveFolder
from metaq.cli import commands as cli
from metaq.client.conversation.reading.lookups import QueryMessages
from metaq.errors import BodyUnreadable, ConfigError
from metaq.model.message import BODY_AS_STORED
from metaq.spark.cluster.client import ClusterClient
from tests.archive.from_broker import archive_until
from tests.scripted import ScriptedCluster
from tests.support import PATIENCE

Q0 = MessageQueue("orders", "broker-a", 0)
BROKEN = b"not what zlib writes"
SENT = [b"0", b"1", BROKEN, b"3", BROKEN, BROKEN, b"6"]
GOOD = [body for body in SENT if body != BROKEN]
BAD = [number for number, body in enumerate(SENT) if body == BROKEN]


@pytest.fixture
def cluster(tmp_path):
    with ScriptedCluster(tmp_path / "cluster") as running:
        for body in SENT:
            running.put("orders", 0, [body if body == BROKEN else zlib.compress(body)], sys_flag=1)
        yield running


def reader(cluster, **more) -> Reader:
    return Reader(cluster.namesrv, "orders", start="earliest", stop_at_end=True, **more)


def all_of(read: Reader) -> tuple[list[bytes], list[int]]:
    """Bodies, and the offsets of errors, of somebody who goes on after each error."""
    bodies, faults = [], []
    while True:
        try:
            bodies.extend(message.body for message in read)
        except BodyUnreadable as fault:
            faults.append(fault.offset)
        else:
            return bodies, faults


def test_a_reader_tells_each_once_in_its_place_and_goes_on(cluster):
    """Good ones before it come before it, those behind it after it; nothing twice."""
    with reader(cluster) as read:
        messages = iter(read)
        assert [next(messages).body for _ in range(2)] == [b"0", b"1"]
        with pytest.raises(BodyUnreadable, match=r"offset 2 of orders@broker-a:0 cannot be read: .*zlib") as told:
            next(messages)
        assert (told.value.queue, told.value.offset, told.value.message.body) == (Q0, 2, BROKEN)
        assert read.positions() == {Q0: 3}
        assert all_of(read) == ([b"3", b"6"], [4, 5])
        read.seek(Q0, offset=2)
        with pytest.raises(BodyUnreadable, match="offset 2"):
            read.receive(PATIENCE)
        found = read.receive(PATIENCE)
        assert found is not None
        assert found.body == b"3"


def test_a_reader_can_skip_them_or_take_them_as_they_are(cluster):
    """Without an error; what is as stored says so."""
    with reader(cluster, corrupt="skip") as read:
        assert [message.body for message in read] == GOOD
    with reader(cluster, corrupt="raw") as read:
        found = list(read)
    assert [message.body for message in found] == SENT
    assert [message.queue_offset for message in found if message.body_fault] == BAD
    with pytest.raises(ConfigError, match="corrupt='ignore': need one of raise, skip, raw"):
        reader(cluster, corrupt="ignore")


def test_an_asyncio_reader_does_the_same(cluster):
    """As the blocking one."""

    async def read() -> tuple[list[bytes], list[int]]:
        bodies, faults = [], []
        async with aio.Reader(cluster.namesrv, "orders", start="earliest", stop_at_end=True) as reading:
            while True:
                try:
                    while (message := await reading.receive(PATIENCE)) is not None:
                        bodies.append(message.body)
                except BodyUnreadable as fault:
                    faults.append(fault.offset)
                else:
                    return bodies, faults

    assert asyncio.run(read()) == (GOOD, BAD)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_batches_of_arrow_end_before_the_error(cluster, rows):
    """Nothing that was gathered is lost with it, whatever the size."""
    bodies, faults = [], []
    with reader(cluster) as read:
        while True:
            try:
                for batch in read.arrow_batches(["body"], rows=rows):
                    bodies += batch["body"].to_pylist()
            except BodyUnreadable as fault:
                faults.append(fault.offset)
            else:
                break
    assert (bodies, faults) == (GOOD, BAD)
    with reader(cluster, corrupt="raw") as read:
        assert [row for batch in read.arrow_batches(["body"]) for row in batch["body"].to_pylist()] == SENT


def test_consume_prints_the_others_and_tells_of_it(cluster, capsys):
    """On stderr, with exit status 1; or skips it, or prints it as it is."""
    words = ["consume", "orders", "-n", cluster.namesrv]
    assert cli.run(words) == 1
    told = capsys.readouterr()
    assert told.out.split() == ["0", "1", "3", "6"]
    assert [
        f"offset {number} of orders@broker-a:0" in line for number, line in zip(BAD, told.err.splitlines(), strict=True)
    ]
    assert cli.run([*words, "--corrupt", "skip"]) == 0
    assert capsys.readouterr().out.split() == ["0", "1", "3", "6"]
    assert cli.run([*words, "--corrupt", "raw", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["queue_offset"] for line in lines if line.get("body_fault")] == BAD


def test_the_archive_keeps_it_and_a_replay_tells_of_it(cluster, tmp_path):
    """As the broker's copy would; its bytes and flags are those that were stored."""
    folder = ArchiveFolder(tmp_path / "archive")
    archive_until(folder, cluster.namesrv, cluster.ends("orders"))
    with reader(cluster, archive=folder.path) as read:
        assert all_of(read) == (GOOD, BAD)
    with reader(cluster, archive=folder.path, corrupt="skip") as read:
        assert [message.body for message in read] == GOOD
    with reader(cluster, archive=folder.path, corrupt="raw") as read:
        found = list(read)
    assert [(message.body, message.sys_flag & BODY_AS_STORED) for message in found] == [(body, 0) for body in SENT]
    assert [message.queue_offset for message in found if message.body_fault] == BAD


def test_a_group_makes_it_a_dead_letter_and_goes_on(cluster):
    """Every other message is handed out; pull consumers have its offset in `broken`."""
    with metaq.Consumer(cluster.namesrv, group="readers", topics="orders", start="earliest") as consumer:
        found = []
        for message in consumer:
            with message:
                found.append(message.body)
            if len(found) == len(GOOD):
                break
    assert sorted(found) == GOOD
    with metaq.PullConsumer(cluster.namesrv, group="pullers") as consumer:
        batch = consumer.pull(Q0, 0)
        assert ([message.body for message in batch.messages], list(batch.broken)) == (GOOD, BAD)


def test_a_look_up_by_id_has_it_as_it_is_stored(cluster):
    """An empty body would look like a message without one; of a trace, nothing would be counted as unreadable."""
    with contextlib.closing(ClusterClient(cluster.namesrv, PATIENCE)) as client:
        asked = QueryMessages(topic="orders", key=f"{BAD[0] + 1:032X}", unique=True, broker="broker-a")
        ((found,),) = client.link(cluster.broker).ask([asked])
    assert (found.queue_offset, found.body) == (BAD[0], BROKEN)
