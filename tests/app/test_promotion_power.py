"""Power cuts around the begin of an epoch: what its leader had is on its disk by then."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
from collections.abc import Callable

import pytest

from metaq.broker.replication.roles import Roles
from metaq.client.conversation.administration import GetReplicaState, Promote
from metaq.model.leadership import Leadership
from metaq.saved import Pending
from metaq.store.retention.housekeeping import Housekeeper
from metaq.testing import PowerLossDisk, power
from tests.app.test_pair import until
from tests.app.test_promotion import Brokers, consume, opened, send

HOUR_MS = 3_600_000


class OnLosingDisk:
    """A broker whose log becomes durable when somebody waits for that, and not by itself; a power cut takes all that is not."""

    def __init__(self, brokers: Brokers, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._brokers, self._name, self._folder = brokers, name, brokers._root / name
        self._disk = PowerLossDisk(self._folder)
        self._left: pathlib.Path | None = None
        monkeypatch.setattr(power, "_KEPT", (0.0,))
        monkeypatch.setattr(power, "_TORN", 0.0)
        monkeypatch.setattr(
            Housekeeper, "_round", lambda _housekeeper: None
        )  # its checkpoints make the log durable, too
        self._is_due = False
        monkeypatch.setattr(Roles, "keep", self._keeping(Roles.keep))

    async def start(self) -> None:
        await self._brokers.start(self._name, self._disk, {"flush_interval_commit_log": HOUR_MS})

    def cut(self) -> None:
        """Cut the power: what the broker does from here on does not count."""
        self._left = self._folder.with_name("what is left")
        self._disk.cut(self._left).close()

    def cut_when_an_epoch_begins(self) -> None:
        """Cut the power as soon as the next epoch of this broker is on its disk."""
        self._is_due = True

    def _keeping(self, keep: Callable[[Roles, Leadership], Pending]) -> Callable[[Roles, Leadership], Pending]:
        def keep_and_cut(roles: Roles, leadership: Leadership) -> Pending:
            is_own = roles._environment.store_options.store_path_root_dir == str(self._folder)
            begins = leadership.epoch > roles.kept.epoch
            pending = keep(roles, leadership)
            if self._is_due and is_own and begins:
                self._is_due = False
                pending.when_done(lambda _error: self.cut())
            return pending

        return keep_and_cut

    async def start_again(self) -> None:
        """End the broker, and start it on what the cut has left."""
        assert self._left is not None, "the power was cut"
        await self._brokers.stop(self._name)
        self._disk.close()
        shutil.rmtree(self._folder)
        self._left.rename(self._folder)
        self._disk, self._left = PowerLossDisk(self._folder), None
        await self.start()


def test_what_a_promoted_slave_has_is_on_its_disk(tmp_path, monkeypatch):
    """Otherwise its old master, which may have more after a power cut here, would follow it and cut that off."""

    async def body() -> None:
        async with opened(tmp_path, broker_role="SYNC_MASTER") as brokers:
            await brokers.stop("b")
            slave = OnLosingDisk(brokers, "b", monkeypatch)
            await slave.start()
            await until(lambda: brokers.broker("a").replicas.available)
            await send(brokers, 0, 20)
            await brokers.stop("a")
            slave.cut_when_an_epoch_begins()
            led = await brokers.ask("b", Promote(force=True))
            assert led.epochs[-1].start == led.log_end > 0
            await slave.start_again()
            await brokers.start("a")
            await brokers.same()
            assert (await brokers.ask("a", GetReplicaState())).cuts == ()
            assert sorted(await consume(brokers, 20)) == list(range(20))

    asyncio.run(body())


def test_what_a_master_has_copied_back_is_on_its_disk(tmp_path, monkeypatch):
    """Otherwise a second power cut would take it for good: a slave that has not heard of the epoch is not asked."""

    async def body() -> None:
        async with opened(tmp_path) as brokers:
            await brokers.stop("a")
            master = OnLosingDisk(brokers, "a", monkeypatch)
            await master.start()
            await send(brokers, 0, 20)
            await brokers.same()
            end = brokers.broker("a").store.log.end
            master.cut()
            master.cut_when_an_epoch_begins()
            await master.start_again()
            await brokers.stop("b")
            await master.start_again()
            assert brokers.broker("a").store.log.end == end
            assert sorted(await consume(brokers, 20)) == list(range(20))

    asyncio.run(body())
