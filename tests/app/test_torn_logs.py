"""A power cut tears properties, which no checksum covers: the replica that kept its power has them right."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil

import pytest
from msgspec import structs

from metaq.app.role import torn
from metaq.app.role.torn import first_difference, slaves_of, to_compare
from metaq.client.conversation.scrubbing.comparison import Comparison
from metaq.clock import FakeClock
from metaq.model.leadership import Epoch, ReplicaState
from metaq.model.scrub import RANGE_BYTES, RANGES_MAX, LogChecksums
from tests.app.test_pair import until
from tests.app.test_promotion import Brokers, consume, opened, send
from tests.broker.support import open_broker
from tests.store.log.test_raw import raw_log
from tests.store.support import put
from tests.support import copy_folder

TORN = 30
"""Number of the message whose properties are torn."""
BODY_AT = 88
"""Of a record with IPv4 addresses; before it is the body's length, 4 bytes."""


async def cut_power(brokers: Brokers, name: str, tails: bytes) -> tuple[int, bytes]:
    """End a broker as a power cut would, and tear one message's properties. Returns the record's LogOffset, and its bytes before.

    Args: tails: metaqTails.json as it was before that message.
    """
    folder = brokers._root / name
    records = [record for queue in range(4) for record in broker_records(brokers, name, queue)]
    place, record = next((at, data) for at, data in records if body_of(data) == b"%d" % TORN)
    picture = brokers._root / f"{name} then"
    copy_folder(folder, picture)
    await brokers.stop(name)
    shutil.rmtree(folder)
    picture.rename(folder)
    (folder / "config/metaqTails.json").write_bytes(tails)
    log_file = folder / "commitlog" / f"{0:020d}"
    data = bytearray(log_file.read_bytes())
    at = data.index(b"UNIQ_KEY", place) + len("UNIQ_KEY") + 5
    assert at < place + len(record)
    data[at : at + 8] = bytes(8)
    log_file.write_bytes(data)
    return place, record


def body_of(record: bytes) -> bytes:
    """Not looked for in what follows it: the id in the properties has the process id in it, whatever its digits are."""
    size = int.from_bytes(record[BODY_AT - 4 : BODY_AT], "big")
    return record[BODY_AT : BODY_AT + size]


def broker_records(brokers: Brokers, name: str, queue: int) -> list[tuple[int, bytes]]:
    reader = brokers.broker(name).store.reader
    there = reader.existing_queue("orders", queue)
    return [
        (unit.log_offset, raw_log(brokers._root / name, unit.log_offset, unit.log_offset + unit.size))
        for unit in (there.units(0, there.max_offset) if there is not None else ())
    ]


def tails_of(root: pathlib.Path, name: str) -> bytes:
    """What the broker has noted as durable, as of another start of the machine."""
    path = root / name / "config/metaqTails.json"
    found = {name: value for name, value in json.loads(path.read_bytes()).items() if name not in {"v", "crc"}}
    return json.dumps(found | {"boot": "before"}).encode()


async def begin(brokers: Brokers, root: pathlib.Path, name: str) -> bytes:
    """Send messages around the one that is going to be torn. Returns what the broker had noted before it."""
    await send(brokers, 0, 20)
    await brokers.same()
    brokers.broker(name).store.keeper.checkpoint()
    tails = tails_of(root, name)
    await send(brokers, 20, 20)
    await brokers.same()
    return tails


def kept(root: pathlib.Path, name: str) -> list[int]:
    """LogOffsets of what was cut off."""
    return sorted(int(path.name.partition("-")[0]) for path in (root / name / "cut").glob("*"))


def test_a_torn_slave_has_the_records_of_its_master_again(tmp_path, caplog):
    """It copies from the torn record on, and keeps what was there."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            tails = await begin(brokers, tmp_path, "b")
            place, _ = await cut_power(brokers, "b", tails)
            await brokers.start("b")
            await send(brokers, 40, 5)
            await brokers.same()
            assert kept(tmp_path, "b") == [place]
            assert f"a power cut has torn this log at log offset {place}" in caplog.text
            state = brokers.broker("b").roles.state()
            assert (state.cuts, state.torn_from) == ((), state.torn_end)  # nothing is lost, and nothing is told as lost

    asyncio.run(body())


def test_a_torn_master_has_the_records_of_its_slave_before_it_leads(tmp_path, caplog):
    """What was acknowledged is right at one of the two."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            tails = await begin(brokers, tmp_path, "a")
            place, record = await cut_power(brokers, "a", tails)
            await brokers.start("a")
            assert brokers.broker("a").leads
            assert raw_log(tmp_path / "a", place, place + len(record)) == record
            assert kept(tmp_path, "a") == [place]
            await send(brokers, 40, 5)
            await brokers.same()
            assert kept(tmp_path, "b") == []
            assert sorted(await consume(brokers, 45)) == list(range(45))

    asyncio.run(body())


def test_the_master_counts_where_nobody_could_tell_it_better(tmp_path, caplog):
    """Its slave was away: it takes over what consumers have got since, and keeps its own."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            tails = await begin(brokers, tmp_path, "a")
            place, record = await cut_power(brokers, "a", tails)
            await brokers.stop("b")
            await brokers.start("a")
            await brokers.start("b")
            await until(lambda: "copied anew" in caplog.text)
            await brokers.same()
            assert raw_log(tmp_path / "a", place, place + len(record)) != record
            assert kept(tmp_path, "a") == []
            assert kept(tmp_path, "b") == [place]
            assert f"a power cut has torn the master's log at log offset {place}" in caplog.text
            await brokers.stop("b")
            await brokers.start("b")
            await send(brokers, 40, 5)
            await brokers.same()
            assert kept(tmp_path, "b") == [place]  # compared once more, and the same

    asyncio.run(body())


def test_a_process_that_was_killed_has_torn_nothing(tmp_path):
    """The machine went on: all is in the page cache."""
    clock = FakeClock()
    with open_broker(tmp_path, clock) as broker:
        assert not broker.roles.torn


def untorn(broker, others):
    return torn.untorn(broker, slaves_of(broker, others))


def test_who_has_the_right_records(tmp_path):
    """A slave of the same history, that is not torn itself, and has what may be torn here."""
    with open_broker(tmp_path, FakeClock()) as broker:
        put(broker.store, "orders", 0, b"x" * 900)
        state = ReplicaState("a", 1, "SLAVE", False, 0, 638, 1)
        assert untorn(broker, [("x", state)]) is None  # nothing is torn here
        broker.roles.torn = range(500, 900)
        assert to_compare(broker, state) == range(500, 638)
        assert untorn(broker, [("x", state)]) == ("x", state)
        more = structs.replace(state, log_end=broker.store.log.end)
        assert to_compare(broker, more) == range(500, 900)
        assert untorn(broker, [("x", state), ("y", more)]) == ("y", more)
        for other in (
            structs.replace(state, leads=True),
            structs.replace(state, torn_from=600, torn_end=638),
            structs.replace(state, epochs=(Epoch(1, 0, "b", 5, 1, 1),)),
            structs.replace(state, log_end=500),
        ):
            assert untorn(broker, [("x", other)]) is None
        broker.roles.torn = range(0)
        assert to_compare(broker, structs.replace(more, torn_from=100, torn_end=300)) == range(100, 300)


@pytest.mark.parametrize("synced", [(10, 500), (500, 500)])
def test_what_is_not_synced_yet_is_waited_for(monkeypatch, synced):
    """Only what is durable is told of a log: the comparison goes on when there is more."""
    monkeypatch.setattr("metaq.app.role.torn.LOOK_SECONDS", 0)
    ends = iter(synced)
    end = next(ends)

    async def ask_both(call):
        nonlocal end
        if call.offset == call.stop:
            end = next(ends, end)
        told = LogChecksums(0, end, 1 << 20, "/log", (7,))
        return told, told

    assert asyncio.run(first_difference(ask_both, range(10, 500))) is None


def test_a_long_comparison_is_waited_for_while_it_goes_on():
    """Only a replica that does not go on is given up: a part of many GB takes longer than that."""
    waits, end = list[float](), 40 * RANGES_MAX * RANGE_BYTES

    class Patience:
        def reschedule(self, when):
            waits.append(when)

    async def ask_both(call):
        told = LogChecksums(0, end, 1 << 40, "/log", (7,) * RANGES_MAX if call.offset < call.stop else ())
        return told, told

    comparison = Comparison(end, start=10)
    asyncio.run(torn._walk(ask_both, comparison, Patience()))
    assert comparison.place == end
    assert len(waits) >= 39
