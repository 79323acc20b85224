"""What a broker keeps of its group, over restarts, kills and power cuts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.app.failover.membership import MEMBERSHIP, KeptMembership
from metaq.broker.broker import Broker
from metaq.clock import FakeClock
from metaq.errors import ConfigError, Refused
from metaq.model.failover import GroupState, Member, Membership, Place
from metaq.saved_file import TextFile
from metaq.store.config_file import ConfigFile
from metaq.testing.faults import FaultyDisk
from tests.broker.support import MemoryFile, SlowFile, open_broker
from tests.store.support import message
from tests.support import copy_folder

ADDRESS = "10.0.0.5:10911"
BOOT = "2f1c"
KEPT = Membership("a1a1", 2, "0f8e3c", 7, True, BOOT)
TEXT = '{"format":1,"store":"a1a1","member":2,"history":"0f8e3c","epoch":7,"whole":true,"boot":"2f1c","synced":false}\n'


class BootedDisk(FaultyDisk):
    """The disk of a machine whose present run has a name."""

    booted = BOOT

    def boot(self) -> str:
        return self.booted


class Machine:
    """A machine with a folder, whose power can be cut."""

    def __init__(self, root: Path) -> None:
        self.root, self.disk = root, BootedDisk()

    @contextlib.contextmanager
    def started(self, number: int = 2, flush: str = "ASYNC_FLUSH") -> Iterator[tuple[Broker, KeptMembership]]:
        """A start of the broker; it ends in order."""
        store = {"flush_disk_type": flush}
        with open_broker(
            self.root, FakeClock(), store, self.disk, leading=False, broker_id=number, failover="zookeeper"
        ) as broker:
            yield broker, made(broker, ConfigFile(self.root / "config" / MEMBERSHIP.name, self.disk))


def made(broker: Broker, file: object) -> KeptMembership:
    return KeptMembership(broker, TextFile(file, MEMBERSHIP), lambda call: call(), ADDRESS)


def opened(membership: KeptMembership) -> Membership:
    asyncio.run(membership.open())
    return membership.kept


@pytest.fixture
def broker(tmp_path) -> Iterator[Broker]:
    with open_broker(tmp_path, disk=BootedDisk(), leading=False, broker_id=2, failover="zookeeper") as opened:
        yield opened


def test_the_file(broker):
    file = MemoryFile(TEXT)
    membership = made(broker, file)
    assert opened(membership) == KEPT
    asyncio.run(membership.keep(epoch=8, whole=False))
    assert (
        file.text
        == '{"format":1,"store":"a1a1","member":2,"history":"0f8e3c","epoch":8,"whole":false,"boot":"2f1c","synced":false}\n'
    )
    assert opened(made(broker, file)) == Membership("a1a1", 2, "0f8e3c", 8, False, BOOT)


def test_a_new_broker_gets_a_token_that_stays(broker):
    file = MemoryFile()
    first = opened(made(broker, file))
    assert (first.member, first.history, first.epoch, first.whole) == (2, "", 0, True)
    assert len(first.store) == 16
    assert opened(made(broker, file)) == first


def test_each_process_has_another_incarnation(broker):
    file = MemoryFile(TEXT)
    one, other = (made(broker, file).member() for _ in range(2))
    assert one.incarnation != other.incarnation
    assert one == Member(2, one.incarnation, "a1a1", ADDRESS, True, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (TEXT.replace('"format":1', '"format":2'), "has format 2: this version of MetaQ reads format 1 only"),
        (TEXT.replace('"member":2', '"member":65'), "member is 65, and must be in 0..64"),
        (TEXT.replace("a1a1", ""), "store has 0 characters"),
        ("\0" * 100, "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_with_what_to_do(broker, text, why):
    with pytest.raises(ConfigError, match=r"memory\.json") as error:
        made(broker, MemoryFile(text))
    assert why in str(error.value)
    assert "restore it from its .bak" in str(error.value)


def test_the_folder_of_another_member_is_refused(broker):
    with pytest.raises(ConfigError, match=r"brokerId=2: this folder is that of member 3 of broker-a .*memory\.json"):
        made(broker, MemoryFile(TEXT.replace('"member":2', '"member":3')))


def test_an_epoch_never_goes_back(broker):
    membership = made(broker, MemoryFile(TEXT))
    asyncio.run(membership.keep(epoch=3))
    assert membership.kept == KEPT


def test_what_is_saved_at_the_same_time_counts_both(broker):
    """The epoch is noted by one task, that the log is whole by another."""

    async def work() -> None:
        file = SlowFile(TEXT.replace('"whole":true', '"whole":false'))
        membership = made(broker, file)
        both = asyncio.gather(membership.keep(epoch=8), membership.keep(whole=True))
        for _ in range(2):
            while not file.under_way:
                await asyncio.sleep(0)
            file.end()
        await both
        assert (membership.kept.epoch, membership.kept.whole) == (8, True)
        assert '"epoch":8,"whole":true' in file.text

    asyncio.run(work())


def test_what_cannot_be_saved_does_not_count(broker):
    file = MemoryFile(TEXT)
    membership = made(broker, file)
    file.error = OSError(28, "No space left on device")
    with pytest.raises(Refused, match=r"memory\.json could not be saved: No space left on device"):
        asyncio.run(membership.keep(epoch=8))
    assert membership.kept == KEPT
    assert membership.member().whole


# ---------------------------------------------------------------------- kills and power cuts


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path / "one")


def join(machine: Machine, flush: str = "ASYNC_FLUSH") -> None:
    """Belong to a group, with something in the log; ends in order."""
    with machine.started(flush=flush) as (broker, membership):
        opened(membership)
        asyncio.run(membership.keep(history="0f8e3c", epoch=1))
        append(broker)


def append(broker: Broker) -> None:
    """Have something in the log."""
    broker.in_sync.begin(2, GroupState("0f8e3c", 1, 2, "me", (Place(2, "a1a1"),)), 0)
    broker.in_sync.renewed(broker.clock.elapsed(), 60.0)
    broker.lead()
    broker.appender.put([message("orders", 0, b"x")])


def copied(root: Path, to: Path) -> Machine:
    """A machine with what is in the folder now: its broker was killed."""
    copy_folder(root, to)
    return Machine(to)


def killed(machine: Machine, to: Path, *, power: bool, flush: str = "ASYNC_FLUSH") -> Machine:
    """What a broker leaves that was killed while it ran, or whose machine lost its power."""
    with machine.started(flush=flush) as (broker, membership):
        opened(membership)
        append(broker)
        left = copied(machine.root, to)
    left.disk.booted = "another" if power else machine.disk.booted
    return left


@pytest.mark.parametrize(
    ("power", "flush", "whole"),
    [(False, "ASYNC_FLUSH", True), (True, "ASYNC_FLUSH", False), (True, "SYNC_FLUSH", True)],
)
def test_a_log_is_not_whole_after_a_power_cut(machine, tmp_path, power, flush, whole):
    """A kill takes nothing that was written; with SYNC_FLUSH all that was reported was on the disk."""
    join(machine, flush)
    left = killed(machine, tmp_path / "two", power=power, flush=flush)
    with left.started(flush=flush) as (_, membership):
        assert opened(membership).whole is whole
        assert membership.member().whole is whole


def test_it_is_not_whole_until_that_is_noted_however_often_it_starts(machine, tmp_path):
    join(machine)
    left = killed(machine, tmp_path / "two", power=True)
    left = killed(left, tmp_path / "three", power=False)
    for _ in range(2):
        with left.started() as (_, membership):
            assert not opened(membership).whole
    with left.started() as (_, membership):
        opened(membership)
        asyncio.run(membership.keep(whole=True))
    with left.started() as (_, membership):
        assert opened(membership).whole


def test_a_power_cut_is_not_forgotten_when_the_next_start_is_killed_before_it_is_noted(machine, tmp_path):
    """The store knows the machine's present run from the first start on."""
    join(machine)
    left = killed(machine, tmp_path / "two", power=True)
    with left.started():
        again = copied(left.root, tmp_path / "three")
    again.disk.booted = left.disk.booted
    with again.started() as (broker, membership):
        assert broker.store.recovered.kept
        assert not opened(membership).whole


def test_after_an_end_in_order_the_machine_may_start_anew(machine):
    """All is on the disk then."""
    join(machine)
    machine.disk.booted = "another"
    for _ in range(2):
        with machine.started() as (_, membership):
            assert opened(membership).whole


@pytest.mark.parametrize(
    ("before", "after", "whole"), [("SYNC_FLUSH", "ASYNC_FLUSH", True), ("ASYNC_FLUSH", "SYNC_FLUSH", False)]
)
def test_what_counts_is_how_it_ran_when_the_power_was_cut(machine, tmp_path, before, after, whole):
    """And not how it is started again."""
    join(machine, before)
    left = killed(machine, tmp_path / "two", power=True, flush=before)
    with left.started(flush=after) as (_, membership):
        assert opened(membership).whole is whole


def test_a_broker_that_was_in_no_group_has_reported_nothing(machine, tmp_path):
    with machine.started() as (_, membership):
        opened(membership)
    left = killed(machine, tmp_path / "two", power=True)
    with left.started() as (_, membership):
        assert opened(membership).whole
